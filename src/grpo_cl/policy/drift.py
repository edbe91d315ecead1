"""How far a policy is from those it was: on the tokens it writes, and in its weights."""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor

from grpo_cl.errors import CheckpointError
from grpo_cl.metrics.rmatrix import Drift
from grpo_cl.policy.continual.adapters import LEARNING
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.continual.shelf import kept
from grpo_cl.policy.continual.tensors import Tensors, load_tensors, save_tensors
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.reference import placed, restore
from grpo_cl.rundir import read_json, write_json
from grpo_cl.types import TokenTrace

PLACES = "domains.json"
"""Which of the kept policies is the last of which domain; number 0 is the first of the run."""
ADAPTER = ".lora_"
"""In the names of all factors of adapters, those that learn and those that no longer do."""
FACTORS = {"lora_A.": "lora_B.", "lora_embedding_A.": "lora_embedding_B."}
"""In the names of an inner factor and of the outer one it is multiplied with."""


class Past:
    """The policies a run had, as far as today's is compared with them, in main memory.

    They are the first and, for each domain, the one that was remembered last. A run makes its
    past before it goes back to a checkpoint, so the first is not written down. All ranks ask
    together.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._module = learner.policy.module
        self._start = self._today()
        self._previous: dict[str, Tensors] = {}
        self._scales = {
            layer: float(cast(Any, self._module.get_submodule(layer)).scaling[LEARNING])
            for layer in dict.fromkeys(
                name.partition(ADAPTER)[0] for name in self._start if ADAPTER in name
            )
        }
        self._norm = self._start_norm()

    def drift(self, domain: str, traces: Sequence[TokenTrace]) -> Drift:
        """Compare today's policy, which wrote ``traces``, with a domain's first and last."""
        today = self._shared(self._today())
        before = self._previous.get(domain)
        written = [trace for trace in traces if any(trace.mask)]
        divergences = self._divergences(today, [self._start, before or today], written)
        return Drift(
            kl_base=divergences.get(id(self._start)),
            kl_previous=divergences.get(id(before)),
            distance_base=self._distance(today, self._start),
            distance_previous=None if before is None else self._distance(today, before),
            start_norm=self._norm,
            tokens=sum(sum(trace.mask) for trace in written),
            is_sampled=self._learner.config.evaluation.is_sampled,
        )

    def remember(self, domain: str) -> None:
        """Let today's policy be the last of a domain."""
        self._previous[domain] = self._shared(self._today())

    def save(self, folder: Path) -> None:
        """Write the last policies, each once."""
        policies = {id(policy): policy for policy in (self._start, *self._previous.values())}
        numbers = {key: number for number, key in enumerate(policies)}
        flat = {
            f"{numbers[key]}/{name}": weight
            for key, policy in policies.items()
            for name, weight in policy.items()
            if policy is not self._start
        }
        if self._learner.ranks.is_main:
            folder.mkdir()
            places = {domain: numbers[id(policy)] for domain, policy in self._previous.items()}
            write_json(folder / PLACES, places)
        save_tensors(folder, flat, is_main=self._learner.ranks.is_main)

    def read(self, folder: Path) -> None:
        """Go on from ``save``."""
        if not folder.exists():
            raise CheckpointError(
                f"the checkpoint has no earlier policies at {folder}, which evaluation.drift=true "
                "compares with; go on with evaluation.drift=false, as the run began"
            )
        policies = {0: self._start}
        for full_name, weight in load_tensors(folder).items():
            number, _, name = full_name.partition("/")
            policies.setdefault(int(number), {})[name] = weight
        places: dict[str, int] = read_json(folder / PLACES)
        self._previous = {domain: policies[number] for domain, number in places.items()}

    def _today(self) -> Tensors:
        """Whole copies of the weights that learn, as they are optimised, and of older adapters."""
        return kept({**self._learner.weights(), **self._frozen()})

    def _frozen(self) -> dict[str, Tensor]:
        learning = {name for name, _ in self._learner.policy.trainable()}
        named = self._module.named_parameters()
        return {name: w for name, w in named if ADAPTER in name and name not in learning}

    def _shared(self, policy: Tensors) -> Tensors:
        """An equal that is kept already, or ``policy``: most runs have one for all domains."""
        known = (self._start, *self._previous.values())
        return next((other for other in known if _are_equal(policy, other)), policy)

    def _divergences(
        self, today: Tensors, earlier: Sequence[Tensors], written: list[TokenTrace]
    ) -> dict[int, float]:
        """The mean log-ratio per token to each policy, by its identity; empty without tokens.

        Both sides are scored in the same passes, so that equal weights would give exactly 0; they
        are one object, and no pass is made.
        """
        others = {id(policy): policy for policy in earlier if policy is not today}
        if not written:
            return {}
        now = trace_logprobs(self._learner, written) if others else []
        found = {id(today): 0.0}
        for key, policy in others.items():
            with self._instead(policy, today):
                then = trace_logprobs(self._learner, written)
            found[key] = fmean(a - b for a, b in zip(chain(*now), chain(*then), strict=True))
        return found

    @contextmanager
    def _instead(self, before: Tensors, today: Tensors) -> Generator[None]:
        self._load(before)
        try:
            yield
        finally:
            self._load(today)

    def _load(self, weights: Tensors) -> None:
        own = self._learner.weights()
        self._learner.load_weights({name: placed(weights[name], w) for name, w in own.items()})
        # An adapter that was not there yet added nothing.
        older = {
            name: weights.get(name, torch.zeros(w.shape)) for name, w in self._frozen().items()
        }
        restore(self._module, older)

    def _distance(self, one: Tensors, other: Tensors) -> float:
        weights = (one[name] - other[name] for name in one if ADAPTER not in name)
        layers = (
            scale * (_added(one, layer) - _added(other, layer))
            for layer, scale in self._scales.items()
        )
        return _norm(chain(weights, layers))

    def _start_norm(self) -> float:
        weights = (weight for name, weight in self._start.items() if ADAPTER not in name)
        layers = (
            self._module.get_parameter(f"{layer}.base_layer.weight") for layer in self._scales
        )
        return _norm(chain(weights, (kept({"": weight})[""] for weight in layers)))


def _are_equal(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        torch.equal(weight, others[name]) for name, weight in some.items()
    )


def _added(weights: Mapping[str, Tensor], layer: str) -> Tensor:
    """The sum of the products of a layer's adapters."""
    products = [
        weights[name.replace(inner, outer)].float() @ weight.float()
        for name, weight in weights.items()
        if name.startswith(layer + ADAPTER)
        for inner, outer in FACTORS.items()
        if inner in name
    ]
    return torch.stack(products).sum(0)


def _norm(tensors: Iterable[Tensor]) -> float:
    norms = [float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in tensors]
    return math.hypot(*norms)
