"""Weights spread over the ranks, for policies too large to train whole on every device."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import torch
from peft import PeftModel
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from grpo_cl.errors import ConfigError
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.scoring import causal_model


def shard_policy(module: PreTrainedModel | PeftModel, ranks: Ranks) -> None:
    """Let FSDP2 keep a part of every weight on each rank and sum the gradients of all.

    A layer is gathered when it is needed and dropped again; what belongs to no layer (embeddings,
    head, last norm) stays gathered from a forward pass to the end of its backward pass. From now
    on a pass is a collective: all ranks make the same number of them.
    """
    parts = _layers(module)
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
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
    drop_whole(module)  # what a pass left gathered may be older than the shards
    parts = _sharded_parts(module)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for number, part in enumerate(parts):
            part.reshard()
            part.set_reshard_after_forward(number > 0, recurse=False)  # the first is the module


def drop_whole(module: nn.Module) -> None:
    """Let go of gathered weights: the shards are what learns, is loaded and is saved.

    A pass without gradients leaves the weights of no layer gathered until somebody asks.
    """
    for part in _sharded_parts(module):
        part.reshard()


def _sharded_parts(module: nn.Module) -> list[FSDPModule]:
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _layers(module: PreTrainedModel | PeftModel) -> list[nn.Module]:
    """What is sharded one by one; a policy of which FSDP2 would not learn all is refused."""
    causal = causal_model(module)
    names = set(causal._no_split_modules or ())
    layers = [part for part in module.modules() if type(part).__name__ in names]
    if not layers:
        # Gradients are summed when those of a layer are complete, and here they never would be.
        raise ConfigError(
            f"sharding=fsdp cuts a model between its layers and {type(causal).__name__} names "
            "none; leave sharding out"
        )
    known = {id(weight) for layer in layers for weight in layer.parameters()}
    learning = [name for name, weight in module.named_parameters() if weight.requires_grad]
    outside = [name for name in learning if id(module.get_parameter(name)) not in known]
    if isinstance(module, PeftModel) and outside:
        raise ConfigError(
            f"sharding=fsdp takes adapters of layers only and here {outside[0]!r} learns too; "
            "leave embeddings and head out of lora.targets"
        )
    return layers
