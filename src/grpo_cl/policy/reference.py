"""The earlier self a policy is held to."""

import copy
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from grpo_cl.errors import ConfigError
from grpo_cl.policy.scoring import Scorer


class Reference(Protocol):
    """A policy that does not move until it is told to."""

    def scorer(self) -> AbstractContextManager[Scorer]:
        """A context under which the reference scores tokens."""
        ...

    def refresh(self) -> None:
        """Make the policy's weights of now the reference."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """What a resumed run cannot find in the model it started from; often nothing."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Become the reference that gave ``weights``, which are not empty."""
        ...


class AdapterReference:
    """The model with its adapter switched off, or with an earlier adapter in its place."""

    def __init__(self, module: PeftModel, scorer: Scorer, *, starts_adapted: bool) -> None:
        self._module = module
        self._scorer = scorer
        self._adapter: dict[str, Tensor] = {}
        self._is_refreshed = False
        if starts_adapted:
            self._adapter = snapshot(module)

    @contextmanager
    def scorer(self) -> Generator[Scorer]:
        """The policy's own scorer, over the reference's adapter for a while."""
        if not self._adapter:
            frozen = [weight for weight in self._module.parameters() if not weight.requires_grad]
            try:
                with self._module.disable_adapter():
                    yield self._scorer
            finally:
                for weight in frozen:  # peft lets all adapters learn that it switches on again
                    weight.requires_grad = False
            return
        current = snapshot(self._module)
        restore(self._module, self._adapter)
        try:
            yield self._scorer
        finally:
            restore(self._module, current)

    def refresh(self) -> None:
        """Keep a copy of the adapter; the base never moves."""
        self._adapter = snapshot(self._module)
        self._is_refreshed = True

    def weights(self) -> dict[str, Tensor]:
        """The kept adapter, once it is not the one the run started from."""
        return dict(self._adapter) if self._is_refreshed else {}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take a kept adapter."""
        self._adapter = {name: weight.clone() for name, weight in weights.items()}
        self._is_refreshed = True


class CopyReference:
    """A frozen second module."""

    def __init__(self, module: PreTrainedModel) -> None:
        if isinstance(module, FSDPModule):
            raise ConfigError(
                "a sharded policy cannot be copied to become its first reference; "
                "set kl_coef above 0, so that one is kept from the start, or use LoRA (lora.r)"
            )
        self._source = module
        self.module = copy.deepcopy(module).eval().requires_grad_(requires_grad=False)
        self._scorer = Scorer(self.module)
        self._is_refreshed = False

    @contextmanager
    def scorer(self) -> Generator[Scorer]:
        """The copy's scorer."""
        yield self._scorer

    def refresh(self) -> None:
        """Copy the policy's weights over."""
        self.load_weights(snapshot(self._source))

    def weights(self) -> dict[str, Tensor]:
        """All weights, once they are not those the run started from."""
        if not self._is_refreshed:
            return {}
        return {name: whole(weight) for name, weight in self.module.named_parameters()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights by name."""
        restore(self.module, weights)
        self._is_refreshed = True


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that learn, in the module's own order."""
    return [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the shards of all ranks; every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """The whole ``tensor`` on the device, in the precision and in the shards of ``like``."""
    moved = tensor.to(like.device, like.dtype)
    if isinstance(like, DTensor):
        return distribute_tensor(moved, like.device_mesh, like.placements)
    return moved


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """Whole copies of the parameters that learn."""
    return {name: whole(weight.detach()).clone() for name, weight in trainable(module)}


def restore(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write whole weights into the parameters of these names, sharded or not."""
    parameters = dict(module.named_parameters())
    for name, weight in weights.items():
        target = parameters[name]
        value = weight.to(target.device, target.dtype)
        if isinstance(target, DTensor):
            value = distribute_tensor(value, target.device_mesh, target.placements)
        # Through .data: a backward pass that is still to come must find its tensors unchanged
        # once the old weights are back, and autograd would refuse it for the writing alone.
        target.data.copy_(value)
