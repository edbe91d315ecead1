"""L2 penalties towards earlier weights: all weights are held alike."""

from pydantic import NonNegativeFloat
from typing_extensions import override

from grpo_cl.algorithms.anchored import AnchoredCL
from grpo_cl.algorithms.base import TrainerView
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.anchors import Form, QuadraticAnchor
from grpo_cl.policy.continual.fisher import uniform
from grpo_cl.policy.continual.tensors import Tensors
from grpo_cl.policy.learner import Learner
from grpo_cl.types import Record


class L2Options(Record):
    """How weights are held."""

    strength: NonNegativeFloat = 0.05
    """``proximal``: the rate at which weights are pulled back in an update. ``loss``: the
    coefficient λ of the penalty."""
    form: Form = "proximal"
    """Whether weights are pulled back after the optimizer's step, or gradients are added to."""


class L2SpCL(AnchoredCL[L2Options]):
    """Holds all weights to those at the end of the previous domain."""

    options_type = L2Options
    shares_first_stage = True
    cost = "none"

    @override
    def make_anchor(self, learner: Learner) -> QuadraticAnchor:
        return _newest_anchor(learner, self.options)

    @override
    def importance(self, domain: str) -> Tensors:
        assert self.trainer is not None
        return uniform(self.trainer.policy.learner)


class L2InitCL(AnchoredCL[L2Options]):
    """Holds all weights to those the run began with, from the first step on."""

    options_type = L2Options
    cost = "none"

    @override
    def make_anchor(self, learner: Learner) -> QuadraticAnchor:
        return _newest_anchor(learner, self.options)

    @override
    def before_task(self, domain: str) -> None:
        assert self.trainer is not None
        if not self.anchor.is_active or self.anchor.terms:
            return
        first = self.trainer.config.task_order[0]
        if domain != first:
            raise ConfigError(
                f"l2_init was not there when {first!r} began, so it does not know the weights to "
                "hold to; train with l2_init from the first domain on"
            )
        self.anchor.hold(self.importance(domain))

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        """Nothing is held that was learned."""

    @override
    def importance(self, domain: str) -> Tensors:
        assert self.trainer is not None
        return uniform(self.trainer.policy.learner)


def _newest_anchor(learner: Learner, options: L2Options) -> QuadraticAnchor:
    """One that holds to one place at a time."""
    strength, form = options.strength, options.form
    return QuadraticAnchor(learner, strength=strength, form=form, schedule="online", decay=0.0)
