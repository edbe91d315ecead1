"""Run directories: layout, checkpoints, trajectories and the buffer of past episodes."""

from grpo_cl.runs.checkpoints import (
    Damage,
    Latest,
    latest_checkpoint,
    require_checkpoint,
    save_checkpoint,
    verify,
)
from grpo_cl.runs.layout import SERIES, CheckpointFiles, RunDir, file_name
from grpo_cl.runs.reservoir import Experience, Strategy
from grpo_cl.runs.resume import ResumePoint, resume_point
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.storage.redaction import redact, redact_command

__all__ = [
    "SERIES",
    "CheckpointFiles",
    "Damage",
    "Experience",
    "Latest",
    "ResumePoint",
    "RunDir",
    "Strategy",
    "TrajectoryBuffer",
    "file_name",
    "latest_checkpoint",
    "redact",
    "redact_command",
    "require_checkpoint",
    "resume_point",
    "save_checkpoint",
    "verify",
]
