"""KL reference models: earlier weights of the policy that compute log-probs."""

import copy
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, Self

import torch
from peft import PeftModel
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.logprobs import LogprobComputer
from grpo_cl.policy.model.weights import (
    ModuleWeights,
    WeightSnapshot,
    full_tensor,
    reshard,
    restore,
    snapshot,
)


class ReferenceModel(Protocol):
    """A policy whose weights change only by ``refresh`` or ``load_weights``."""

    def logprob_computer(self) -> AbstractContextManager[LogprobComputer]:
        """A context with a computer of the reference's log-probs."""
        ...

    def refresh(self) -> None:
        """Make the current weights of the policy the reference."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """The weights that a resumed run cannot load from its initial model; empty if none."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Restore non-empty ``weights`` of a reference."""
        ...


class AdapterReference:
    """The model with its adapter disabled, or with an earlier adapter."""

    def __init__(
        self, module: PeftModel, computer: LogprobComputer, *, has_initial_adapter: bool
    ) -> None:
        self._module = module
        self._computer = computer
        self._weights = ModuleWeights(module)
        self._adapter = WeightSnapshot.take(self._weights) if has_initial_adapter else None
        self._is_refreshed = False

    @contextmanager
    def logprob_computer(self) -> Generator[LogprobComputer]:
        """The policy's own computer, with the reference's adapter in the module."""
        if self._adapter is None:
            frozen = [weight for weight in self._module.parameters() if not weight.requires_grad]
            try:
                with self._module.disable_adapter():
                    yield self._computer
            finally:
                for weight in frozen:  # peft makes every adapter trainable that it enables again
                    weight.requires_grad = False
            return
        with self._adapter.swapped_into(self._weights):
            yield self._computer

    def refresh(self) -> None:
        """Copy the current adapter; the base model is frozen."""
        self._adapter = WeightSnapshot.take(self._weights)
        self._is_refreshed = True

    def weights(self) -> dict[str, Tensor]:
        """The reference adapter, once it differs from the initial one."""
        return dict(self._adapter.tensors) if self._adapter and self._is_refreshed else {}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Restore a reference adapter."""
        self._adapter = WeightSnapshot({name: weight.clone() for name, weight in weights.items()})
        self._is_refreshed = True


class CopyReference:
    """A frozen copy of the module."""

    def __init__(
        self, policy: PreTrainedModel, module: PreTrainedModel, computer: LogprobComputer
    ) -> None:
        self._policy = policy
        self.module = module
        self._computer = computer
        self._is_refreshed = False

    @classmethod
    def copy_of(cls, policy: PreTrainedModel, device: torch.device | None) -> Self:
        """A reference with the current weights of an unsharded policy, to compute on ``device``."""
        if isinstance(policy, FSDPModule):
            raise ConfigError(
                "a sharded policy cannot be copied to make its first reference model; "
                "set kl_coef above 0, so that one is made before sharding, or use LoRA (lora.r)"
            )
        module = copy.deepcopy(policy).eval().requires_grad_(requires_grad=False)
        return cls(policy, module, LogprobComputer.build(module, device))

    @contextmanager
    def logprob_computer(self) -> Generator[LogprobComputer]:
        """The computer of the copy."""
        try:
            yield self._computer
        finally:
            reshard(self.module)

    def refresh(self) -> None:
        """Copy the current weights of the policy."""
        self.load_weights(snapshot(self._policy))

    def weights(self) -> dict[str, Tensor]:
        """All weights, once they differ from the initial ones."""
        if not self._is_refreshed:
            return {}
        return {name: full_tensor(weight) for name, weight in self.module.named_parameters()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Restore weights by name."""
        restore(self.module, weights)
        self._is_refreshed = True
