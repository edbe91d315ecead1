"""L2 penalties towards earlier weights: anchors of equal importance."""

from pydantic import NonNegativeFloat
from typing_extensions import override

from grpo_cl.algorithms.anchored import AnchoredCL, PenaltyOptions
from grpo_cl.algorithms.base import TrainerView
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.importance import uniform_importance
from grpo_cl.policy.continual.tensors import Tensors


class L2Options(PenaltyOptions):
    """Strength and form of the penalty."""

    strength: NonNegativeFloat = 0.05
    """``proximal``: the rate per update at which weights return to their anchor. ``loss``: the
    coefficient λ of the penalty."""


class L2SpCL(AnchoredCL[L2Options]):
    """Anchors all weights at their values at the end of the previous domain."""

    options_type = L2Options
    shares_first_stage = True
    cost = "none"

    @override
    def importance(self, domain: str) -> Tensors:
        return uniform_importance(self.trainer.policy.learner)


class L2InitCL(AnchoredCL[L2Options]):
    """Anchors all weights at the initial weights of the run, from the first step on."""

    options_type = L2Options
    cost = "none"

    @override
    def before_task(self, domain: str) -> None:
        if not self.anchor.is_active or self.anchor.terms:
            return
        first = self.trainer.config.task_order[0]
        if domain != first:
            raise ConfigError(
                f"l2_init needs the initial weights of the run, and another algorithm trained "
                f"{first!r}; train with l2_init from the first domain on"
            )
        self.anchor.add_anchor(self.importance(domain))

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        """The anchor stays at the initial weights."""

    @override
    def importance(self, domain: str) -> Tensors:
        return uniform_importance(self.trainer.policy.learner)
