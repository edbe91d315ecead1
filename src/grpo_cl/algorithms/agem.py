"""A-GEM: updates are projected so that they do not raise the loss on earlier successes."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import PositiveInt
from typing_extensions import override

from grpo_cl.algorithms.base import TrainerView
from grpo_cl.algorithms.rehearsal import RehearsalCL
from grpo_cl.config import ConfigRecord, Share
from grpo_cl.policy.continual.projection import Projection, UpdateProjection
from grpo_cl.runs.reservoir import even_shares
from grpo_cl.types import SUCCESS, Task, TokenTrace


class AgemOptions(ConfigRecord):
    """Strength of the projection, and size of the reference batch."""

    strength: Share = 1.0
    """Fraction of the harmful component that is removed; 0 leaves every update unchanged."""
    memory_batch: PositiveInt = 16
    """Successful episodes of earlier domains drawn for each step."""


class AgemCL(RehearsalCL[AgemOptions]):
    """Removes from each update what raises the cloning loss on successes of earlier domains."""

    options_type = AgemOptions
    rng_label = "agem"
    stores = "trajectories"
    cost = "one forward and backward pass over memory_batch episodes per step"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._num_projections = self._num_changed = 0
        self._reference_batch: list[TokenTrace] = []
        self._last: Projection | None = None

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        learner = trainer.policy.learner
        self._projection = UpdateProjection(learner, strength=self.options.strength)

    @override
    def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
        self._reference_batch = self._draw(current_domain) if self.options.strength else []
        return new_tasks

    @override
    def transform_gradients(self, parameters: Sequence[tuple[str, Any]]) -> None:
        if self._reference_batch:
            self._projection.before_update()

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        self._last = None
        if self._projection.has_update:
            self._last = self._projection.project_update(self._reference_batch)
            self._num_projections += 1
            self._num_changed += self._last.is_changed

    @override
    def telemetry(self) -> Mapping[str, float]:
        last = self._last
        return {
            "cl/projection_rate": self._num_changed / max(1, self._num_projections),
            "cl/memory_rise": last.loss_increase if last else 0.0,
            "cl/memory_cosine": last.cosine if last else 0.0,
        }

    @override
    def state_dict(self) -> dict[str, Any]:
        counts = {"corrected": self._num_projections, "changed": self._num_changed}
        return {**super().state_dict(), **counts}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._num_projections, self._num_changed = state["corrected"], state["changed"]

    def _draw(self, domain: str) -> list[TokenTrace]:
        """Successes of the domains before ``domain``, evenly over them."""
        earlier = self.earlier_domains(domain)
        if not earlier:
            return []
        rng = self.next_rng()
        drawn: list[TokenTrace] = []
        for name, share in even_shares(self.options.memory_batch, earlier, rng).items():
            successes = [
                record.trajectory.tokens
                for record in self.trainer.trajectory_buffer.records(name)
                if record.reward >= SUCCESS and record.trajectory.tokens
            ]
            drawn += rng.sample(successes, min(share, len(successes)))
        return drawn
