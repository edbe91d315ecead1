"""What the algorithms share that hold weights by quadratic anchors; they differ in what matters."""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import NonNegativeFloat, model_validator
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, Options, TrainerView
from grpo_cl.config import Share
from grpo_cl.policy.continual.anchors import Form, QuadraticAnchor, Schedule
from grpo_cl.policy.continual.fisher import normalised
from grpo_cl.policy.continual.tensors import (
    Tensors,
    grouped,
    load_tensors,
    save_tensors,
    ungrouped,
)
from grpo_cl.policy.learner import Learner
from grpo_cl.types import Record, TokenTrace

_log = logging.getLogger(__name__)


class AnchorOptions(Record):
    """How weights are held."""

    strength: NonNegativeFloat = 0.01
    """``proximal``: the rate at which a weight of mean importance is pulled back in an update.
    ``loss``: the coefficient λ of the penalty."""
    form: Form = "proximal"
    """Whether weights are pulled back after the optimizer's step, or gradients are added to."""
    schedule: Schedule = "merged"
    """How the anchors of several stages go together."""
    decay: Share = 1.0
    """What is left of older importances after a stage, with the schedule ``online``."""

    @model_validator(mode="after")
    def _decay_has_a_use(self) -> Self:
        if self.decay != 1 and self.schedule != "online":
            raise ValueError("decay acts with schedule=online only; set that or leave decay out")
        return self


def scheduled_anchor(learner: Learner, options: AnchorOptions) -> QuadraticAnchor:
    """An anchor as the options say."""
    return QuadraticAnchor(
        learner,
        strength=options.strength,
        form=options.form,
        schedule=options.schedule,
        decay=options.decay,
    )


class AnchoredCL(CLAlgorithm[Options]):
    """Holds weights where they were at the end of a stage, as firmly as they matter."""

    stores = "weights"
    anchor: QuadraticAnchor

    @abstractmethod
    def make_anchor(self, learner: Learner) -> QuadraticAnchor:
        """What holds the weights of ``learner``."""

    @abstractmethod
    def importance(self, domain: str) -> Tensors:
        """How much each weight matters, now that ``domain`` is learned; any scale will do."""

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self.anchor = self.make_anchor(trainer.policy.learner)
        if trainer.config.lora.r and self.anchor.is_active:
            _log.warning(
                "anchors hold the two factors of an adapter, not their product; the same policy "
                "can be written with other factors, at another distance (docs/algorithms.md)"
            )

    @override
    def transform_gradients(self, parameters: Sequence[tuple[str, Any]]) -> None:
        self.anchor.oppose(parameters)

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        self.anchor.settle()

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if self.anchor.is_active:
            self.anchor.hold(normalised(self.importance(domain)))

    @override
    def telemetry(self) -> Mapping[str, float]:
        return self.anchor.numbers

    @override
    def save_state(self, folder: Path) -> None:
        assert self.trainer is not None
        save_tensors(folder, ungrouped(self.groups()), is_main=self.trainer.policy.is_main)

    @override
    def load_state(self, folder: Path) -> None:
        assert self.trainer is not None
        weights = self.trainer.policy.learner.weights()
        self.load_groups(grouped(load_tensors(folder), like=weights))

    def groups(self) -> dict[str, Tensors]:
        """The tensors a resumed run needs."""
        return self.anchor.groups()

    def load_groups(self, groups: Mapping[str, Tensors]) -> None:
        """Go on from ``groups``."""
        self.anchor.load(groups)

    def recent_traces(self, domain: str, count: int) -> list[TokenTrace]:
        """What the policy wrote last in ``domain``, nearly as it would write today."""
        assert self.trainer is not None
        records = self.trainer.trajectory_buffer.sample(domain, count, "recent")
        return [record.trajectory.tokens for record in records if record.trajectory.tokens]
