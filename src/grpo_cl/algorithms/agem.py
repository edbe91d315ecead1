"""A-GEM: an update may not make earlier successes less likely."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pydantic import PositiveInt
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.buffer import earlier_domains, even_shares
from grpo_cl.config import Share
from grpo_cl.policy.continual.projection import Projection, UpdateProjection
from grpo_cl.types import SUCCESS, Record, Task, TokenTrace


class AgemOptions(Record):
    """What an update is held against."""

    strength: Share = 1.0
    """How much of the harmful part of an update is taken away; 0 leaves every update as it is."""
    memory_batch: PositiveInt = 16
    """Successful episodes of earlier domains drawn for each step."""


class AgemCL(CLAlgorithm[AgemOptions]):
    """Takes out of each update what would raise the cloning loss on successes of the past."""

    options_type = AgemOptions
    stores = "trajectories"
    shares_first_stage = True
    cost = "one forward and backward pass over memory_batch episodes per step"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._draws = self._corrected = self._changed = 0
        self._memory: list[TokenTrace] = []
        self._found: Projection | None = None

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        learner = trainer.policy.learner
        self._projection = UpdateProjection(learner, strength=self.options.strength)

    @override
    def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
        self._memory = self._draw(current_domain) if self.options.strength else []
        return new_tasks

    @override
    def transform_gradients(self, parameters: Sequence[tuple[str, Any]]) -> None:
        if self._memory:
            self._projection.keep()

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        self._found = None
        if self._projection.has_update:
            self._found = self._projection.correct(self._memory)
            self._corrected += 1
            self._changed += self._found.is_changed

    @override
    def telemetry(self) -> Mapping[str, float]:
        found = self._found
        return {
            "cl/projection_rate": self._changed / max(1, self._corrected),
            "cl/memory_rise": found.rise if found else 0.0,
            "cl/memory_cosine": found.cosine if found else 0.0,
        }

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws, "corrected": self._corrected, "changed": self._changed}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws, self._corrected = state["draws"], state["corrected"]
        self._changed = state["changed"]

    def _draw(self, domain: str) -> list[TokenTrace]:
        """Successes of the domains before ``domain``, as many of each."""
        assert self.trainer is not None
        config, buffer = self.trainer.config, self.trainer.trajectory_buffer
        earlier = earlier_domains(config.task_order, domain)
        if not earlier:
            return []
        self._draws += 1
        rng = Random(f"{config.seed}/agem/{self._draws}")
        chosen: list[TokenTrace] = []
        for name, share in even_shares(self.options.memory_batch, earlier, rng).items():
            successes = [
                record.trajectory.tokens
                for record in buffer.records(name)
                if record.reward >= SUCCESS and record.trajectory.tokens
            ]
            chosen += rng.sample(successes, min(share, len(successes)))
        return chosen
