"""LoRA adapters of successive domains: new ones, and a stack of frozen ones.

Shapes: R rank of the trained adapter, P rank of a frozen one, D inputs of a layer.
"""

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel
from torch import Tensor

from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.tensors import Tensors, load_tensors, save_tensors
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.weights import WeightSnapshot, restore, shard_like

TRAINED = "default"
"""The name of the trained adapter in peft."""
LORA_A, LORA_B = f".lora_A.{TRAINED}.", f".lora_B.{TRAINED}."
"""Parts of the names of the two factors; a layer adds ``B @ A`` to its weight."""


def require_adapter(learner: Learner, algorithm: str) -> None:
    """Refuse a policy with trainable weights other than LoRA factors of linear layers."""
    others = [name for name in learner.weights() if LORA_A not in name and LORA_B not in name]
    if others:
        raise ConfigError(
            f"{algorithm} trains one LoRA adapter per domain, but {others[0]!r} is trainable too; "
            "set lora.r to 8 or more, with linear layers only in lora.targets"
        )


def is_untrained(weights: Mapping[str, Tensor]) -> bool:
    """Whether an adapter adds nothing yet: all B factors are zero."""
    return not any(bool(weight.any()) for name, weight in weights.items() if LORA_B in name)


def new_adapter(like: Mapping[str, Tensor], seed: int) -> Tensors:
    """A new adapter with B = 0 and A drawn as peft draws it."""
    generator = torch.Generator().manual_seed(seed)
    adapter: Tensors = {}
    for name, weight in like.items():
        initial = torch.zeros(weight.shape)
        if LORA_A in name:
            bound = 1 / math.sqrt(weight.shape[1])
            initial.uniform_(-bound, bound, generator=generator)
        adapter[name] = shard_like(initial, weight)
    return adapter


class AdapterStack:
    """Frozen adapters of earlier domains, which every forward pass adds to the trained one.

    They are not merged into the model: rounding to bfloat16 would lose most of what was learned
    (docs/algorithms.md), and the model without adapters remains the KL reference.
    """

    def __init__(self, learner: Learner) -> None:
        assert isinstance(learner.policy.module, PeftModel)
        self._learner = learner
        self._module = learner.policy.module
        self._adapters: list[Tensors] = []

    def __len__(self) -> int:
        return len(self._adapters)

    def push(self) -> None:
        """Freeze a copy of the trained adapter."""
        self._add(WeightSnapshot.take(self._learner, on_cpu=True).tensors)

    def overlap(self) -> Tensor:
        """The orthogonality loss of O-LoRA.

        The sum of the absolute entries of A_frozen A_trainedᵀ, [P, R], over layers and frozen
        adapters.
        """
        parts: list[Tensor] = []
        parameters = dict(self._module.named_parameters())
        for name, trained_RD in self._learner.policy.trainable():
            if LORA_A in name:
                for number in range(len(self)):
                    frozen_PD = parameters[_frozen_parameter(name, number)]
                    parts.append((frozen_PD.detach() @ trained_RD.T).abs().sum())
        return torch.stack(parts).sum()

    def save(self, folder: Path) -> None:
        """Write the frozen adapters."""
        flat = {
            f"{number}/{name}": weight
            for number, adapter in enumerate(self._adapters)
            for name, weight in adapter.items()
        }
        save_tensors(folder, flat, is_main=self._learner.ranks.is_main)

    def load(self, folder: Path) -> None:
        """Restore the adapters that ``save`` wrote, on an empty stack."""
        adapters: dict[int, Tensors] = {}
        for full_name, weight in load_tensors(folder).items():
            number, _, name = full_name.partition("/")
            adapters.setdefault(int(number), {})[name] = weight
        for number in sorted(adapters):
            self._add(adapters[number])

    def _add(self, adapter: Tensors) -> None:
        number = len(self)
        settings = copy.deepcopy(cast(LoraConfig, self._module.peft_config[TRAINED]))
        settings.lora_dropout = 0.0
        with torch.random.fork_rng(devices=[]):  # peft draws weights, which are then replaced
            cast(Any, self._module).add_adapter(_frozen_name(number), settings)
        weights = {_frozen_parameter(name, number): weight for name, weight in adapter.items()}
        restore(self._module, weights)
        self._adapters.append(adapter)
        frozen = [_frozen_name(position) for position in range(len(self))]
        # The sum starts with the oldest, so that a new adapter of zeros changes no bit.
        cast(Any, self._module.base_model).set_adapter([*frozen, TRAINED])
        self._module.set_requires_grad(frozen, requires_grad=False)


def _frozen_name(number: int) -> str:
    return f"earlier_{number}"


def _frozen_parameter(name: str, number: int) -> str:
    """The name that a parameter of the trained adapter has in a frozen one."""
    return name.replace(f".{TRAINED}.", f".{_frozen_name(number)}.")
