"""Merging: the policy after a domain is made of those before and after it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import GRPOConfig, Share
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.merging import distance, elected, interpolated, summed, task_vector
from grpo_cl.policy.continual.shelf import Shelf
from grpo_cl.types import Record

PREVIOUS, AVERAGE = "previous", "average"
OPTIONS_OF = {
    "interpolate": {"alpha"},
    "task_arithmetic": {"scale"},
    "ties": {"scale", "keep"},
    "ema": {"decay"},
}


class MergeOptions(Record):
    """How policies are merged. Formulas in docs/algorithms.md."""

    method: Literal["interpolate", "task_arithmetic", "ties", "ema"] = "interpolate"
    alpha: Share = 0.5
    """Of ``interpolate``: the share of the policy that learned the domain; 1 does not merge."""
    scale: PositiveFloat | None = None
    """Of ``task_arithmetic`` and ``ties``: the length of what is added; None takes 0.4 and 1, as
    Yadav et al. 2023 (arXiv:2306.01708) do where nothing can be tuned."""
    keep: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Of ``ties``: the share of a task vector that counts, largest entries first."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Of ``ema``: how much of the average a step leaves; 0 measures the policy that learns."""

    @model_validator(mode="after")
    def _options_have_a_use(self) -> Self:
        idle = self.model_fields_set - OPTIONS_OF[self.method] - {"method"}
        if idle:
            used = " and ".join(sorted(OPTIONS_OF[self.method]))
            raise ValueError(f"{min(idle)} is no option of {self.method}, which has {used}")
        return self

    @property
    def length(self) -> float:
        """``scale``, or its default."""
        return self.scale or (1.0 if self.method == "ties" else 0.4)


class MergeCL(CLAlgorithm[MergeOptions]):
    """Merges weights after each domain, or averages them over all steps."""

    options_type = MergeOptions
    stores = "weights"
    cost = "memory for copies of the weights: one, or one per domain for task vectors"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._distance: float | None = None

    @override
    def check(self, config: GRPOConfig) -> None:
        if config.lora.r:
            raise ConfigError(
                f"merge cannot serve lora.r={config.lora.r}: the sum of two adapters is no "
                "adapter of that rank, and averages of their factors are something else; "
                "set lora.r=0, or choose domain_lora or olora"
            )

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self._order = trainer.config.task_order
        self._learner = trainer.policy.learner
        self._shelf = Shelf(self._learner)

    @override
    def before_task(self, domain: str) -> None:
        has_vectors = self.options.method in {"task_arithmetic", "ties"}
        if has_vectors and domain != self._order[0]:
            # A task vector is what learning a domain adds to the policy the run started from.
            self._shelf.load(self._shelf.start)
            self._learner.forget_moments()

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        if self.options.method != "ema":
            return
        today = self._shelf.today()
        average = interpolated(today, self._shelf[AVERAGE], self.options.decay)
        self._shelf.put(AVERAGE, average)
        self._distance = distance(today, average)

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if self.options.method == "ema":
            return
        today = self._shelf.today()
        merged = self._interpolate(today) if self._is_pairwise else self._add_up(today, domain)
        self._shelf.load(merged)
        self._distance = distance(today, merged)

    @override
    def policy_for_evaluation(self, domain: str) -> AbstractContextManager[None]:
        return self._shelf.instead(AVERAGE) if self.options.method == "ema" else nullcontext()

    @override
    def telemetry(self) -> Mapping[str, float]:
        return {} if self._distance is None else {"cl/merge_distance": self._distance}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"distance": self._distance}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._distance = state["distance"]

    @override
    def save_state(self, folder: Path) -> None:
        self._shelf.save(folder)

    @override
    def load_state(self, folder: Path) -> None:
        self._shelf.read(folder)

    @property
    def _is_pairwise(self) -> bool:
        return self.options.method == "interpolate"

    def _interpolate(self, today: Mapping[str, Any]) -> dict[str, Any]:
        merged = interpolated(self._shelf[PREVIOUS], today, self.options.alpha)
        self._shelf.put(PREVIOUS, merged)
        return merged

    def _add_up(self, today: Mapping[str, Any], domain: str) -> dict[str, Any]:
        self._shelf.put(domain, today)
        learned = self._order[: self._order.index(domain) + 1]
        start = self._shelf.start
        vectors = [task_vector(start, self._shelf[name]) for name in learned]
        if self.options.method == "ties":
            return elected(start, vectors, keep=self.options.keep, scale=self.options.length)
        return summed(start, vectors, self.options.length)
