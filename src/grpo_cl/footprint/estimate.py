"""Memory of all phases of a run's step, and whether a GPU has it."""

from dataclasses import dataclass

from grpo_cl.footprint.cache import has_graphs
from grpo_cl.footprint.overheads import CUDA_CONTEXT, FRAGMENTATION, GRAPH_POOL
from grpo_cl.footprint.phase import Phase
from grpo_cl.footprint.plan import Plan
from grpo_cl.footprint.sampling import sample_phase
from grpo_cl.footprint.training import score_phase, update_phase


@dataclass(frozen=True)
class Estimate:
    """What each phase takes on one GPU."""

    plan: Plan
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> int:
        """Bytes of tensors in the fullest phase, as the allocator counts them."""
        return max(phase.peak for phase in self.phases)

    @property
    def needed(self) -> int:
        """Bytes a GPU must have: the peak, what the allocator cannot use, the CUDA context."""
        graphs = GRAPH_POOL if has_graphs(self.plan) else 0
        return round(self.peak * (1 + FRAGMENTATION)) + CUDA_CONTEXT + graphs

    @property
    def fits(self) -> bool:
        """Whether a GPU of the plan has enough."""
        return self.needed <= self.plan.memory


def estimate(plan: Plan) -> Estimate:
    """The memory of a run, phase by phase."""
    phases = (sample_phase(plan), score_phase(plan), update_phase(plan))
    return Estimate(plan, tuple(phase for phase in phases if phase is not None))
