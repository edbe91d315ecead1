"""Past experience, by domain."""

from grpo_cl.buffer.reservoir import Experience, Strategy
from grpo_cl.buffer.shares import earlier_domains, even_shares
from grpo_cl.buffer.trajectories import TrajectoryBuffer

__all__ = ["Experience", "Strategy", "TrajectoryBuffer", "earlier_domains", "even_shares"]
