"""Low-rank adapters: new ones, and earlier ones that stay under the one that learns.

Shapes: R rank of a new adapter, P rank of an earlier one, D inputs of a layer.
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
from grpo_cl.policy.continual.shelf import kept
from grpo_cl.policy.continual.tensors import Tensors, load_tensors, save_tensors
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.reference import placed, restore

LEARNING = "default"
"""What peft calls the adapter that learns."""
INNER, OUTER = f".lora_A.{LEARNING}.", f".lora_B.{LEARNING}."
"""In the names of the two factors; a layer adds ``OUTER @ INNER`` to its weight."""


def require_adapter(learner: Learner, algorithm: str) -> None:
    """Refuse a policy of which more, or something else, learns than adapters of linear layers."""
    others = [name for name in learner.weights() if INNER not in name and OUTER not in name]
    if others:
        raise ConfigError(
            f"{algorithm} gives every domain an adapter, and here {others[0]!r} learns too; "
            "set lora.r to 8 or more, with linear layers only in lora.targets"
        )


def is_new(weights: Mapping[str, Tensor]) -> bool:
    """Whether an adapter changes nothing yet."""
    return not any(bool(weight.any()) for name, weight in weights.items() if OUTER in name)


def new_adapter(like: Mapping[str, Tensor], seed: int) -> Tensors:
    """An adapter that changes nothing yet, drawn the way peft draws one."""
    chance = torch.Generator().manual_seed(seed)
    made: Tensors = {}
    for name, weight in like.items():
        drawn = torch.zeros(weight.shape)
        if INNER in name:
            bound = 1 / math.sqrt(weight.shape[1])
            drawn.uniform_(-bound, bound, generator=chance)
        made[name] = placed(drawn, weight)
    return made


class AdapterStack:
    """Adapters of earlier domains, frozen, each adding its part to every pass.

    They are not merged into the model: a bfloat16 weight would round most of what was learned away
    (docs/algorithms.md), and the model without adapters stays the reference.
    """

    def __init__(self, learner: Learner) -> None:
        assert isinstance(learner.policy.module, PeftModel)
        self._learner = learner
        self._module = learner.policy.module
        self._layers: list[Tensors] = []

    def __len__(self) -> int:
        return len(self._layers)

    def push(self) -> None:
        """Freeze a copy of the adapter that learns."""
        self._add(kept(self._learner.weights()))

    def overlap(self) -> Tensor:
        """How much of what earlier adapters read the one that learns reads too.

        The mean of the absolute entries of A_old A_newᵀ, [P, R], summed over layers and earlier
        adapters.
        """
        parts: list[Tensor] = []
        parameters = dict(self._module.named_parameters())
        for name, inner_RD in self._learner.policy.trainable():
            if INNER in name:
                for number in range(len(self)):
                    old_PD = parameters[_renamed(name, number)]
                    parts.append((old_PD.detach() @ inner_RD.T).abs().mean())
        return torch.stack(parts).sum()

    def save(self, folder: Path) -> None:
        """Write the frozen adapters."""
        flat = {
            f"{number}/{name}": weight
            for number, layer in enumerate(self._layers)
            for name, weight in layer.items()
        }
        save_tensors(folder, flat, is_main=self._learner.ranks.is_main)

    def read(self, folder: Path) -> None:
        """Go on from ``save``, with nothing frozen so far."""
        layers: dict[int, Tensors] = {}
        for full_name, weight in load_tensors(folder).items():
            number, _, name = full_name.partition("/")
            layers.setdefault(int(number), {})[name] = weight
        for number in sorted(layers):
            self._add(layers[number])

    def _add(self, layer: Tensors) -> None:
        number = len(self)
        settings = copy.deepcopy(cast(LoraConfig, self._module.peft_config[LEARNING]))
        settings.lora_dropout = 0.0
        with torch.random.fork_rng(devices=[]):  # peft draws weights, which are then replaced
            cast(Any, self._module).add_adapter(_name(number), settings)
        restore(self._module, {_renamed(name, number): weight for name, weight in layer.items()})
        self._layers.append(layer)
        frozen = [_name(place) for place in range(len(self))]
        # The sum begins with the oldest, so a new adapter of zeros changes not one bit.
        cast(Any, self._module.base_model).set_adapter([*frozen, LEARNING])
        self._module.set_requires_grad(frozen, requires_grad=False)


def _name(number: int) -> str:
    return f"earlier_{number}"


def _renamed(name: str, number: int) -> str:
    return name.replace(f".{LEARNING}.", f".{_name(number)}.")
