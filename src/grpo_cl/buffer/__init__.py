"""Past experience, by domain."""

from grpo_cl.buffer.reservoir import Experience, Strategy
from grpo_cl.buffer.trajectories import TrajectoryBuffer

__all__ = ["Experience", "Strategy", "TrajectoryBuffer"]
