"""The base of the algorithms that draw data of earlier domains in every step."""

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, Options


class RehearsalCL(CLAlgorithm[Options]):
    """Draws from earlier domains, each time with a random generator of its own.

    The generator is seeded by the run's seed and the number of draws so far, so that a resumed
    run draws the same.
    """

    rng_label: ClassVar[str]
    """The part of the seed that separates the draws of one algorithm from those of others."""
    shares_first_stage = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.num_draws = 0
        self.metrics: dict[str, float] = {}

    def next_rng(self) -> Random:
        """The random generator of the next draw."""
        self.num_draws += 1
        return Random(f"{self.trainer.config.seed}/{self.rng_label}/{self.num_draws}")

    def earlier_domains(self, domain: str) -> tuple[str, ...]:
        """The domains trained before ``domain``."""
        order = self.trainer.config.task_order
        return tuple(order[: order.index(domain)])

    @override
    def telemetry(self) -> Mapping[str, float]:
        return self.metrics

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.num_draws}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_draws = state["draws"]
