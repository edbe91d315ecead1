"""Memory-aware synapses: weights that the log-probabilities are sensitive to are held."""

from pydantic import PositiveInt
from typing_extensions import override

from grpo_cl.algorithms.anchored import AnchoredCL, AnchorOptions, scheduled_anchor
from grpo_cl.policy.continual.anchors import QuadraticAnchor
from grpo_cl.policy.continual.fisher import sensitivity
from grpo_cl.policy.continual.tensors import Tensors
from grpo_cl.policy.learner import Learner


class MasOptions(AnchorOptions):
    """How weights are held, and by how many episodes their importance is measured."""

    samples: PositiveInt = 64
    """Latest episodes of a domain on which the sensitivity is measured."""


class MasCL(AnchoredCL[MasOptions]):
    """Anchors weighed by the sensitivity of the policy's log-probabilities."""

    options_type = MasOptions
    shares_first_stage = True
    cost = "one pass per sample at the end of a domain"

    @override
    def make_anchor(self, learner: Learner) -> QuadraticAnchor:
        return scheduled_anchor(learner, self.options)

    @override
    def importance(self, domain: str) -> Tensors:
        assert self.trainer is not None
        traces = self.recent_traces(domain, self.options.samples)
        return sensitivity(self.trainer.policy.learner, traces)
