"""Joint training: the upper bound, all domains at once with the same compute."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, PositiveFloat
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import ConfigRecord, GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.types import Task


class JointOptions(ConfigRecord):
    """The mixture of domains."""

    weights: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Relative weight of every domain; empty for equal weights."""


class JointCL(CLAlgorithm[JointOptions]):
    """Draws the tasks of every step from all domains, as many as any other algorithm."""

    options_type = JointOptions
    stores = "environments"
    cost = "none; all domains must be available from the start"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._num_played: Counter[str] = Counter()

    @override
    def check(self, config: GRPOConfig) -> None:
        domains, weights = config.task_order, self.options.weights
        if weights and weights.keys() != set(domains):
            raise ConfigError(
                f"cl_options.weights names {', '.join(weights)}, but the domains are "
                f"{', '.join(domains)}; give a weight for each, or none for equal weights"
            )
        if config.loss.zero_variance == "resample" and len(domains) > 1:
            raise ConfigError(
                "loss.zero_variance=resample replaces groups by groups of the stage's domain, "
                "which would change the mixture of joint; set loss.zero_variance=skip"
            )

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        domains = trainer.config.task_order
        weights = self.options.weights or dict.fromkeys(domains, 1.0)
        self._shares = {name: weights[name] / sum(weights.values()) for name in domains}

    @override
    def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
        loader, counts = self.trainer.tasks, self._next_counts(len(new_tasks))
        num_current = counts.pop(current_domain, 0)
        loader.give_back(current_domain, len(new_tasks) - num_current)
        others = [task for name, count in counts.items() for task in loader.next_batch(name, count)]
        return [*new_tasks[:num_current], *others]

    @override
    def telemetry(self) -> Mapping[str, float]:
        total = max(1, self._num_played.total())
        return {f"cl/share/{name}": self._num_played[name] / total for name in self._shares}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"played": dict(self._num_played)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_played = Counter(state["played"])

    def _next_counts(self, num_tasks: int) -> Counter[str]:
        """Tasks of each domain in a step; over steps no share is off by more than one task."""
        counts: Counter[str] = Counter()
        for _ in range(num_tasks):
            total = self._num_played.total() + 1
            deficits = {n: share * total - self._num_played[n] for n, share in self._shares.items()}
            chosen = max(deficits, key=deficits.__getitem__)
            self._num_played[chosen] += 1
            counts[chosen] += 1
        return counts
