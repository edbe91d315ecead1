"""Policy drift: KL divergence on generated tokens and weight distance from earlier policies."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor

from grpo_cl.errors import CheckpointError
from grpo_cl.metrics.rmatrix import Drift
from grpo_cl.policy.continual.adapters import TRAINED
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.continual.tensors import Tensors, load_tensors, save_tensors
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.weights import WeightSnapshot, full_tensor, restore
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.types import TokenTrace

DOMAINS_FILE = "domains.json"
"""The number of each domain's previous policy; number 0 is the initial policy of the run."""
LORA = ".lora_"
"""Part of the names of all LoRA factors, trained and frozen."""
FACTORS = {"lora_A.": "lora_B.", "lora_embedding_A.": "lora_embedding_B."}
"""Parts of the names of an A factor and of the B factor it is multiplied with."""


class AdaptedWeights:
    """A ``WeightStore`` of the optimizer's weights and of all frozen adapters."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._module = learner.policy.module

    def weights(self) -> Tensors:
        """Copies of all weights that differ between the policies of a run."""
        frozen = {name: weight.detach().clone() for name, weight in self._frozen().items()}
        return {**self._learner.weights(), **frozen}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the weights; a frozen adapter that is missing in ``weights`` becomes zero."""
        frozen = self._frozen()
        trained = {name: weight for name, weight in weights.items() if name not in frozen}
        self._learner.load_weights(trained)
        restore(self._module, {n: weights.get(n, torch.zeros(w.shape)) for n, w in frozen.items()})

    def _frozen(self) -> dict[str, Tensor]:
        trained = {name for name, _ in self._learner.policy.trainable()}
        named = self._module.named_parameters()
        return {name: w for name, w in named if LORA in name and name not in trained}


class PolicyHistory:
    """Snapshots on the CPU of the initial policy and of each domain's previous policy.

    A run builds its history before it loads a checkpoint, so the initial policy is not saved.
    Every method is a collective.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._module = learner.policy.module
        self._weights = AdaptedWeights(learner)
        self._initial = self._snapshot()
        self._previous: dict[str, WeightSnapshot] = {}
        names = self._initial.tensors
        self._scales = {
            layer: float(cast(Any, self._module.get_submodule(layer)).scaling[TRAINED])
            for layer in dict.fromkeys(n.partition(LORA)[0] for n in names if LORA in n)
        }
        self._initial_norm = self._norm_of_initial()

    def drift(self, domain: str, traces: Sequence[TokenTrace]) -> Drift:
        """Compare the current policy, which generated ``traces``, with initial and previous one."""
        current = self._shared(self._snapshot())
        previous = self._previous.get(domain)
        generated = [trace for trace in traces if any(trace.mask)]
        divergences = self._divergences(current, [self._initial, previous or current], generated)
        return Drift(
            kl_base=divergences.get(id(self._initial)),
            kl_previous=divergences.get(id(previous)),
            distance_base=self._distance(current, self._initial),
            distance_previous=None if previous is None else self._distance(current, previous),
            start_norm=self._initial_norm,
            tokens=sum(sum(trace.mask) for trace in generated),
            is_sampled=self._learner.config.evaluation.is_sampled,
        )

    def record(self, domain: str) -> None:
        """Make the current policy the previous one of ``domain``."""
        self._previous[domain] = self._shared(self._snapshot())

    def save(self, folder: Path) -> None:
        """Write the previous policies, each once."""
        policies = {id(policy): policy for policy in (self._initial, *self._previous.values())}
        numbers = {key: number for number, key in enumerate(policies)}
        flat = {
            f"{numbers[key]}/{name}": weight
            for key, policy in policies.items()
            for name, weight in policy.tensors.items()
            if policy is not self._initial
        }
        if self._learner.ranks.is_main:
            folder.mkdir()
            by_domain = {domain: numbers[id(policy)] for domain, policy in self._previous.items()}
            write_json(folder / DOMAINS_FILE, by_domain)
        save_tensors(folder, flat, is_main=self._learner.ranks.is_main)

    def load(self, folder: Path) -> None:
        """Restore the policies that ``save`` wrote."""
        if not folder.exists():
            raise CheckpointError(
                f"the checkpoint has no earlier policies at {folder}, which evaluation.drift=true "
                "needs; go on with evaluation.drift=false, as the run was started"
            )
        tensors: dict[int, Tensors] = {}
        for full_name, weight in load_tensors(folder).items():
            number, _, name = full_name.partition("/")
            tensors.setdefault(int(number), {})[name] = weight
        policies = {number: WeightSnapshot(weights) for number, weights in tensors.items()}
        policies[0] = self._initial
        by_domain: dict[str, int] = read_json(folder / DOMAINS_FILE)
        self._previous = {domain: policies[number] for domain, number in by_domain.items()}

    def _snapshot(self) -> WeightSnapshot:
        return WeightSnapshot.take(self._weights, on_cpu=True)

    def _shared(self, policy: WeightSnapshot) -> WeightSnapshot:
        """An equal snapshot of the history, or ``policy``: most domains share one."""
        stored = (self._initial, *self._previous.values())
        return next((other for other in stored if _are_equal(policy, other)), policy)

    def _divergences(
        self,
        current: WeightSnapshot,
        earlier: Sequence[WeightSnapshot],
        traces: list[TokenTrace],
    ) -> dict[int, float]:
        """The mean log-ratio per token to each policy, by its identity; empty without tokens.

        Both policies are scored in the same passes, so equal weights would give exactly 0; equal
        policies are one object, for which no pass is made.
        """
        others = {id(policy): policy for policy in earlier if policy is not current}
        if not traces:
            return {}
        now = trace_logprobs(self._learner, traces) if others else []
        divergences = {id(current): 0.0}
        for key, policy in others.items():
            with policy.swapped_into(self._weights, current=current):
                before = trace_logprobs(self._learner, traces)
            pairs = zip(chain(*now), chain(*before), strict=True)
            divergences[key] = fmean(new - old for new, old in pairs)
        return divergences

    def _distance(self, left: WeightSnapshot, right: WeightSnapshot) -> float:
        some, others = left.tensors, right.tensors
        weights = (some[name] - others[name] for name in some if LORA not in name)
        adapters = (
            scale * (_lora_product(some, layer) - _lora_product(others, layer))
            for layer, scale in self._scales.items()
        )
        return _norm(chain(weights, adapters))

    def _norm_of_initial(self) -> float:
        weights = (w for name, w in self._initial.tensors.items() if LORA not in name)
        layers = (
            self._module.get_parameter(f"{layer}.base_layer.weight") for layer in self._scales
        )
        return _norm(chain(weights, (full_tensor(weight.detach()).cpu() for weight in layers)))


def _are_equal(left: WeightSnapshot, right: WeightSnapshot) -> bool:
    return left.tensors.keys() == right.tensors.keys() and all(
        torch.equal(weight, right.tensors[name]) for name, weight in left.tensors.items()
    )


def _lora_product(weights: Mapping[str, Tensor], layer: str) -> Tensor:
    """The sum of B @ A over the adapters of a layer."""
    products = [
        weights[name.replace(factor_a, factor_b)].float() @ weight.float()
        for name, weight in weights.items()
        if name.startswith(layer + LORA)
        for factor_a, factor_b in FACTORS.items()
        if factor_a in name
    ]
    return torch.stack(products).sum(0)


def _norm(tensors: Iterable[Tensor]) -> float:
    norms = [float(torch.linalg.vector_norm(t, dtype=torch.float64)) for t in tensors]
    return math.hypot(*norms)
