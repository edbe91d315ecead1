"""Memory-aware synapses: anchors weighted by the sensitivity of the log-probs."""

from collections.abc import Sequence

from typing_extensions import override

from grpo_cl.algorithms.anchored import SampledAnchorCL, SampledOptions
from grpo_cl.policy.continual.anchors import Schedule
from grpo_cl.policy.continual.importance import sensitivity
from grpo_cl.policy.continual.tensors import Tensors
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.types import TokenTrace


class MasOptions(SampledOptions):
    """The penalty, and the estimate of the importance."""

    schedule: Schedule = "online"
    """How the anchors of several stages are combined; Aljundi et al. sum the importances and anchor
    at the newest weights."""


class MasCL(SampledAnchorCL):
    """Anchors weighted by the sensitivity of the policy's log-probs."""

    options_type = MasOptions

    @override
    def estimate(self, learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
        return sensitivity(learner, traces)
