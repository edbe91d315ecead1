"""The upper bound: all domains at once, for as long as the others learn them in turn."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, PositiveFloat
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.types import Record, Task


class JointOptions(Record):
    """How much of each domain is played."""

    weights: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Relative share of every domain; empty for equal shares."""


class JointCL(CLAlgorithm[JointOptions]):
    """Draws the tasks of every step from all domains; a step plays as many as any other."""

    options_type = JointOptions
    stores = "environments"
    cost = "none; all domains must be there from the start"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._played: Counter[str] = Counter()

    @override
    def check(self, config: GRPOConfig) -> None:
        domains, weights = config.task_order, self.options.weights
        if weights and weights.keys() != set(domains):
            raise ConfigError(
                f"cl_options.weights names {', '.join(weights)} and the domains are "
                f"{', '.join(domains)}; give each a weight, or none to play them equally"
            )
        if config.loss.zero_variance == "resample" and len(domains) > 1:
            raise ConfigError(
                "loss.zero_variance=resample replaces groups by some of the stage's domain, "
                "which would tilt the shares of joint; set loss.zero_variance=skip"
            )

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        domains = trainer.config.task_order
        weights = self.options.weights or dict.fromkeys(domains, 1.0)
        self._tasks = trainer.tasks
        self._shares = {name: weights[name] / sum(weights.values()) for name in domains}

    @override
    def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
        counts = self._next_counts(len(new_tasks))
        own = counts.pop(current_domain, 0)
        self._tasks.give_back(current_domain, len(new_tasks) - own)
        others = [
            task for name, count in counts.items() for task in self._tasks.next_batch(name, count)
        ]
        return [*new_tasks[:own], *others]

    @override
    def telemetry(self) -> Mapping[str, float]:
        total = max(1, self._played.total())
        return {f"cl/share/{name}": self._played[name] / total for name in self._shares}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"played": dict(self._played)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._played = Counter(state["played"])

    def _next_counts(self, num_tasks: int) -> Counter[str]:
        """Tasks of each domain in a step; over steps no share is off by more than a task."""
        counts: Counter[str] = Counter()
        for _ in range(num_tasks):
            total = self._played.total() + 1
            behind = {name: s * total - self._played[name] for name, s in self._shares.items()}
            chosen = max(behind, key=behind.__getitem__)
            self._played[chosen] += 1
            counts[chosen] += 1
        return counts
