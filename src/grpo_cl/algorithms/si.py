"""Synaptic intelligence: anchors weighted by each weight's path integral over a stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import PositiveFloat
from typing_extensions import override

from grpo_cl.algorithms.anchored import AnchoredCL, AnchorOptions
from grpo_cl.algorithms.base import TrainerView
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.anchors import Schedule
from grpo_cl.policy.continual.path_integral import PathIntegral
from grpo_cl.policy.continual.tensors import Tensors


class SiOptions(AnchorOptions):
    """The penalty, and the damping of the importance."""

    schedule: Schedule = "online"
    """How the anchors of several stages are combined; Zenke et al. sum the importances and anchor
    at the newest weights."""
    damping: PositiveFloat = 0.1
    """Added to a weight's squared change in a stage, in units of the mean over all weights."""


class SiCL(AnchoredCL[SiOptions]):
    """Anchors weighted by how much the change of each weight lowered the task's loss."""

    options_type = SiOptions
    cost = "two more tensors of the size of the weights; no passes"

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self._path_integral = PathIntegral(trainer.policy.learner)

    @override
    def before_task(self, domain: str) -> None:
        if self.anchor.is_active:
            self._path_integral.start_stage()

    @override
    def transform_gradients(self, parameters: Sequence[tuple[str, Any]]) -> None:
        if self.anchor.is_active:
            # Before the anchor adds its own gradient.
            self._path_integral.before_update(parameters)
        super().transform_gradients(parameters)

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        self._path_integral.after_update()  # before the anchor moves the weights
        super().post_step_hook(trainer, domain)

    @override
    def importance(self, domain: str) -> Tensors:
        if not self._path_integral.start:
            raise ConfigError(
                f"si needs the path integral of {domain!r} from its first step, and another "
                "algorithm trained that domain; train it with si too"
            )
        return self._path_integral.importance(damping=self.options.damping)

    @override
    def tensor_groups(self) -> dict[str, Tensors]:
        return {**super().tensor_groups(), **self._path_integral.tensor_groups()}

    @override
    def load_tensor_groups(self, groups: Mapping[str, Tensors]) -> None:
        super().load_tensor_groups(groups)
        self._path_integral.load_tensor_groups(groups)
