"""Weights spread over the ranks, for policies too large to train whole on every device."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import torch
from peft import PeftModel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.scoring import causal_model


def shard_policy(module: PreTrainedModel | PeftModel, ranks: Ranks) -> None:
    """Let FSDP2 keep a part of every weight on each rank and sum the gradients of all.

    A layer is gathered when it is needed and dropped again; what belongs to no layer (embeddings,
    head, last norm) stays gathered from a forward pass to the end of its backward pass. From now
    on a pass is a collective: all ranks make the same number of them.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    layers = set(causal_model(module)._no_split_modules or ())
    parts = [part for part in module.modules() if type(part).__name__ in layers]
    for part in (*parts, module):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
        sharded = cast(FSDPModule, part)
        sharded.set_gradient_divide_factor(1.0)  # the loss is a sum over ranks, not a mean
        sharded.set_force_sum_reduction_for_comms(True)  # gloo knows no other


@contextmanager
def gathered(module: PreTrainedModel | PeftModel) -> Generator[None]:
    """All weights whole on every rank, so that each may pass through the module on its own.

    This is how a sharded policy plays episodes or is saved: the weights have to fit a device,
    their gradients and moments do not. All ranks enter and leave together.
    """
    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for number, part in enumerate(parts):
            part.reshard()
            part.set_reshard_after_forward(number > 0, recurse=False)  # the first is the module
