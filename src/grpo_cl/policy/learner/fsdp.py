"""FSDP2 sharding of policies that are too large to train on one device."""

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
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.logprobs import causal_model
from grpo_cl.policy.model.weights import fsdp_modules, reshard, trainable_parameters


def shard_policy(module: PreTrainedModel | PeftModel, ranks: DistributedContext) -> None:
    """Shard every weight over the ranks with FSDP2, which then sums the gradients over ranks.

    The module is moved to the ranks' device part by part, so it may be too large for one device.
    A layer is unsharded when it is needed and resharded afterwards; parameters outside the layers
    (embeddings, head, last norm) stay unsharded from a forward pass to the end of its backward
    pass. A forward or backward pass becomes a collective: all ranks make the same number of them.
    """
    layers = _layers(module)
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    for part in (*layers, module):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
        sharded = cast(FSDPModule, part)
        sharded.set_gradient_divide_factor(1.0)  # the loss is a sum over ranks, not a mean
        sharded.set_force_sum_reduction_for_comms(True)  # gloo supports no other


@contextmanager
def unsharded(module: PreTrainedModel | PeftModel) -> Generator[None]:
    """A context with the full weights on every rank, in which forwards are not collectives.

    Used for rollouts of a sharded policy: the weights must fit on one device, gradients and
    moments need not. All ranks enter and leave together.
    """
    reshard(module)  # parameters left unsharded by a forward pass may be older than the shards
    parts = fsdp_modules(module)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for number, part in enumerate(parts):
            part.reshard()
            part.set_reshard_after_forward(
                number > 0, recurse=False
            )  # the first is the root module


def _layers(module: PreTrainedModel | PeftModel) -> list[nn.Module]:
    """The layers to shard one by one; raises if FSDP2 would not train all parameters."""
    causal = causal_model(module)
    names = set(causal._no_split_modules or ())
    layers = [part for part in module.modules() if type(part).__name__ in names]
    if not layers:
        # Gradients are reduced when those of a layer are complete, which would never happen.
        raise ConfigError(
            f"sharding=fsdp shards a model by its layers and {type(causal).__name__} names none "
            "in _no_split_modules; leave sharding out"
        )
    in_layers = {id(weight) for layer in layers for weight in layer.parameters()}
    outside = [name for name, weight in trainable_parameters(module) if id(weight) not in in_layers]
    if isinstance(module, PeftModel) and outside:
        raise ConfigError(
            f"sharding=fsdp supports adapters inside layers only and {outside[0]!r} is outside; "
            "leave embeddings and head out of lora.targets"
        )
    return layers
