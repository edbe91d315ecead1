"""Copies of a policy's trainable weights, sharded or not, and swapping one copy for another."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Protocol, Self

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


class WeightStore(Protocol):
    """Trainable weights that can be copied and replaced: ``Learner`` or ``ModuleWeights``."""

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights by name, sharded if the policy is."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the weights of these names, given in full or in shards."""
        ...


class ModuleWeights:
    """The trainable parameters of a module, in the module's own precision."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def weights(self) -> dict[str, Tensor]:
        """Copies of the parameters by name, sharded if the module is."""
        reshard(self._module)
        parameters = trainable_parameters(self._module)
        return {name: weight.detach().clone() for name, weight in parameters}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the parameters of these names; an optimizer's own copies are not touched."""
        restore(self._module, weights)


class WeightSnapshot:
    """Unsharded copies of a policy's weights that can replace its current ones temporarily."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    @classmethod
    def take(cls, source: WeightStore, *, on_cpu: bool = False) -> Self:
        """Copies of the current weights; a collective if ``source`` is sharded."""
        copies = {name: full_tensor(weight) for name, weight in source.weights().items()}
        return cls({name: copy.cpu() for name, copy in copies.items()} if on_cpu else copies)

    @contextmanager
    def swapped_into(
        self, target: WeightStore, *, current: "WeightSnapshot | None" = None
    ) -> Generator[None]:
        """A context in which ``target`` has these weights; its own come back afterwards.

        ``current`` is a snapshot of the weights of ``target``, if one has been taken already.
        """
        previous = target.weights() if current is None else current.tensors
        target.load_weights(self.tensors)
        try:
            yield
        finally:
            target.load_weights(previous)


def trainable_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The trainable parameters and their names, in the order of the module."""
    return [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]


def full_tensor(tensor: Tensor) -> Tensor:
    """The unsharded tensor; a collective, which every rank must call, if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The full ``tensor`` with the device, dtype and sharding of ``like``."""
    moved = tensor.to(like.device, like.dtype)
    if isinstance(like, DTensor):
        return distribute_tensor(moved, like.device_mesh, like.placements)
    return moved


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """Unsharded copies of the trainable parameters, by name."""
    reshard(module)
    return {
        name: full_tensor(weight.detach()).clone() for name, weight in trainable_parameters(module)
    }


def restore(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write weights, unsharded or in shards, into the parameters of the same names."""
    reshard(module)  # a write to an unsharded parameter would be lost with it
    parameters = dict(module.named_parameters())
    for name, weight in weights.items():
        target = parameters[name]
        # Through .data: autograd would refuse a later backward pass because of the in-place write,
        # although the original weights are back by then.
        target.data.copy_(shard_like(weight, target))


def reshard(module: nn.Module) -> None:
    """Free unsharded parameters of FSDP modules; the shards are what is trained and saved.

    A forward pass without gradients leaves the parameters of the root module unsharded.
    """
    for part in fsdp_modules(module):
        part.reshard()


def fsdp_modules(module: nn.Module) -> list[FSDPModule]:
    """The parts of ``module`` that FSDP2 shards, the root first."""
    return [part for part in module.modules() if isinstance(part, FSDPModule)]
