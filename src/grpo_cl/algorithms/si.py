"""Synaptic intelligence: weights whose movement lowered the loss are held."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import PositiveFloat
from typing_extensions import override

from grpo_cl.algorithms.anchored import AnchoredCL, AnchorOptions, scheduled_anchor
from grpo_cl.algorithms.base import TrainerView
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.anchors import QuadraticAnchor
from grpo_cl.policy.continual.paths import WorkPath
from grpo_cl.policy.continual.tensors import Tensors
from grpo_cl.policy.learner import Learner


class SiOptions(AnchorOptions):
    """How weights are held, and how the importance of those that hardly moved is bounded."""

    damping: PositiveFloat = 0.1
    """Added to a weight's squared movement in a stage, in units of the mean over all weights."""


class SiCL(AnchoredCL[SiOptions]):
    """Anchors weighed by the work each weight did for the task, measured while it learns."""

    options_type = SiOptions
    cost = "two more tensors of the size of the weights; no passes"

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self._path = WorkPath(trainer.policy.learner)

    @override
    def make_anchor(self, learner: Learner) -> QuadraticAnchor:
        return scheduled_anchor(learner, self.options)

    @override
    def before_task(self, domain: str) -> None:
        if self.anchor.is_active:
            self._path.begin()

    @override
    def transform_gradients(self, parameters: Sequence[tuple[str, Any]]) -> None:
        if self.anchor.is_active:
            self._path.depart(parameters)  # before the anchor adds its own gradient
        super().transform_gradients(parameters)

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        self._path.arrive()  # before the anchor moves the weights
        super().post_step_hook(trainer, domain)

    @override
    def importance(self, domain: str) -> Tensors:
        if not self._path.start:
            raise ConfigError(
                f"si has not seen {domain!r} from its first step, so it cannot tell which weights "
                "mattered; train that domain with si too"
            )
        return self._path.importance(damping=self.options.damping)

    @override
    def groups(self) -> dict[str, Tensors]:
        return {**super().groups(), **self._path.groups()}

    @override
    def load_groups(self, groups: Mapping[str, Tensors]) -> None:
        super().load_groups(groups)
        self._path.load(groups)
