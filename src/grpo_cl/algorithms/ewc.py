"""Elastic weight consolidation: weights that shape what the policy writes are held."""

from pydantic import PositiveInt
from typing_extensions import override

from grpo_cl.algorithms.anchored import AnchoredCL, AnchorOptions, scheduled_anchor
from grpo_cl.policy.continual.anchors import QuadraticAnchor
from grpo_cl.policy.continual.fisher import fisher
from grpo_cl.policy.continual.tensors import Tensors
from grpo_cl.policy.learner import Learner


class EwcOptions(AnchorOptions):
    """How weights are held, and by how many episodes their importance is measured."""

    samples: PositiveInt = 64
    """Latest episodes of a domain from which its Fisher information is estimated."""


class EwcCL(AnchoredCL[EwcOptions]):
    """Anchors weighed by the Fisher information of the policy's own replies."""

    options_type = EwcOptions
    shares_first_stage = True
    cost = "one pass per sample at the end of a domain"

    @override
    def make_anchor(self, learner: Learner) -> QuadraticAnchor:
        return scheduled_anchor(learner, self.options)

    @override
    def importance(self, domain: str) -> Tensors:
        assert self.trainer is not None
        traces = self.recent_traces(domain, self.options.samples)
        return fisher(self.trainer.policy.learner, traces)
