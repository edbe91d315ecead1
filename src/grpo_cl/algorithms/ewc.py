"""Elastic weight consolidation: anchors weighted by the Fisher information."""

from collections.abc import Sequence

from typing_extensions import override

from grpo_cl.algorithms.anchored import SampledAnchorCL
from grpo_cl.policy.continual.importance import fisher_diagonal
from grpo_cl.policy.continual.tensors import Tensors
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.types import TokenTrace


class EwcCL(SampledAnchorCL):
    """Anchors weighted by the Fisher information of the policy's own samples."""

    @override
    def estimate(self, learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
        return fisher_diagonal(learner, traces)
