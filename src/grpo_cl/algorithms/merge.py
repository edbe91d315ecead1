"""Model merging: the policy after a domain is a combination of several sets of weights."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import ConfigRecord, GRPOConfig, Share
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.merging import (
    add_task_vectors,
    interpolate,
    task_vector,
    ties_merge,
    weight_distance,
)
from grpo_cl.policy.continual.policy_store import PolicyStore
from grpo_cl.policy.continual.tensors import Tensors

PREVIOUS, AVERAGE = "previous", "average"
OPTIONS_OF = {
    "interpolate": {"alpha"},
    "task_arithmetic": {"scale"},
    "ties": {"scale", "keep"},
    "ema": {"decay"},
}


class MergeOptions(ConfigRecord):
    """The merging method and its parameters. Formulas in docs/algorithms.md."""

    method: Literal["interpolate", "task_arithmetic", "ties", "ema"] = "interpolate"
    alpha: Share = 0.5
    """For ``interpolate``: the weight of the newly trained policy; 1 does not merge."""
    scale: PositiveFloat | None = None
    """For ``task_arithmetic`` and ``ties``: the factor on the merged task vector; None is 0.4 and
    1, the values of Yadav et al. 2023 (arXiv:2306.01708) without validation data."""
    keep: Annotated[float, Field(gt=0, le=1)] = 0.2
    """For ``ties``: the fraction of each task vector that counts, largest entries first."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """For ``ema``: the factor on the average per step; 0 evaluates the trained policy."""

    @model_validator(mode="after")
    def _options_belong_to_method(self) -> Self:
        unused = self.model_fields_set - OPTIONS_OF[self.method] - {"method"}
        if unused:
            known = " and ".join(sorted(OPTIONS_OF[self.method]))
            raise ValueError(f"{min(unused)} is no option of {self.method}, which has {known}")
        return self

    @property
    def vector_scale(self) -> float:
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
                f"merge does not support lora.r={config.lora.r}: the sum of two adapters has a "
                "higher rank, and the average of their factors is another product; "
                "set lora.r=0, or choose domain_lora or olora"
            )

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self._policies = PolicyStore(trainer.policy.learner)

    @override
    def before_task(self, domain: str) -> None:
        uses_task_vectors = self.options.method in {"task_arithmetic", "ties"}
        if uses_task_vectors and domain != self.trainer.config.task_order[0]:
            # A task vector is the difference to the initial policy, so training starts from there.
            learner = self.trainer.policy.learner
            learner.load_weights(self._policies.initial)
            learner.reset_optimizer()

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        if self.options.method != "ema":
            return
        current = self._policies.current_weights()
        average = interpolate(current, self._policies[AVERAGE], self.options.decay)
        self._policies.put(AVERAGE, average)
        self._distance = weight_distance(current, average)

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if self.options.method == "ema":
            return
        current = self._policies.current_weights()
        is_pairwise = self.options.method == "interpolate"
        merged = self._interpolate(current) if is_pairwise else self._combine(current, domain)
        trainer.policy.learner.load_weights(merged)
        self._distance = weight_distance(current, merged)

    @override
    def policy_for_evaluation(self, domain: str) -> AbstractContextManager[None]:
        is_average = self.options.method == "ema"
        return self._policies.swapped_in(AVERAGE) if is_average else nullcontext()

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
        self._policies.save(folder)

    @override
    def load_state(self, folder: Path) -> None:
        self._policies.load(folder)

    def _interpolate(self, current: Tensors) -> Tensors:
        merged = interpolate(self._policies[PREVIOUS], current, self.options.alpha)
        self._policies.put(PREVIOUS, merged)
        return merged

    def _combine(self, current: Tensors, domain: str) -> Tensors:
        """The initial weights plus the merged task vectors of all domains so far."""
        self._policies.put(domain, current)
        order = self.trainer.config.task_order
        initial = self._policies.initial
        trained = order[: order.index(domain) + 1]
        vectors = [task_vector(initial, self._policies[name]) for name in trained]
        scale = self.options.vector_scale
        if self.options.method == "ties":
            return ties_merge(initial, vectors, keep=self.options.keep, scale=scale)
        return add_task_vectors(initial, vectors, scale)
