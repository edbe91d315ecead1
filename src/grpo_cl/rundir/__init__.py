"""Where a run keeps its files, and how they get there whole."""

from grpo_cl.rundir.encoding import encode
from grpo_cl.rundir.files import link_file, read_json, write_file, write_json
from grpo_cl.rundir.journal import Journal, read_journal
from grpo_cl.rundir.layout import SERIES, CheckpointFiles, RunDir, file_name
from grpo_cl.rundir.redaction import redact, redact_command
from grpo_cl.rundir.resume import ResumePoint, resume_point
from grpo_cl.rundir.store import (
    Damage,
    Latest,
    latest_checkpoint,
    require_checkpoint,
    save_checkpoint,
    verify,
)

__all__ = [
    "SERIES",
    "CheckpointFiles",
    "Damage",
    "Journal",
    "Latest",
    "ResumePoint",
    "RunDir",
    "encode",
    "file_name",
    "latest_checkpoint",
    "link_file",
    "read_journal",
    "read_json",
    "redact",
    "redact_command",
    "require_checkpoint",
    "resume_point",
    "save_checkpoint",
    "verify",
    "write_file",
    "write_json",
]
