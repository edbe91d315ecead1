"""The state of a checkpoint: where the run was, and how long its journals were."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from grpo_cl.runs.layout import CheckpointFiles
from grpo_cl.runs.state_files import StateKind, read_state, write_state
from grpo_cl.storage.checksums import Seal
from grpo_cl.storage.files import read_json
from grpo_cl.types import Record


class StagePosition(Record):
    """Finished stages, and updates made in the current one."""

    stage: NonNegativeInt
    step: NonNegativeInt


class Offsets(Record):
    """Bytes of each journal."""

    metrics: NonNegativeInt
    episodes: NonNegativeInt


class LineChecksum(Record):
    """Number of lines of a journal, and the checksum over them (``storage/checksums.py``)."""

    lines: NonNegativeInt
    sha256: str


class JournalChecksums(Record):
    """The checksum of each journal."""

    metrics: LineChecksum
    episodes: LineChecksum


class CheckpointState(Record):
    """The contents of ``state.json``."""

    position: StagePosition
    global_step: NonNegativeInt
    tasks_per_step: PositiveInt | None
    """Tasks of one update of the run, on all ranks together; None at the start of a fork."""
    tasks: dict[str, Any]
    algorithm: dict[str, Any] | None
    """None at the start of a fork with another algorithm."""
    changes: list[dict[str, Any]]
    """Settings that changed at a resume or a fork, with the step."""
    offsets: Offsets
    checksums: JournalChecksums | None
    """None in a run that was begun without them."""
    r_matrix: dict[str, Any]


def _from_first_format(state: dict[str, Any], path: Path) -> dict[str, Any]:
    added: dict[str, Any] = {"changes": [], "checksums": None}
    if "tasks_per_step" not in state:
        # The ranks divided these tasks.
        config = read_json(CheckpointFiles(path.parent).config)
        size = config["batch_size_per_gpu"] * config["gradient_accumulation_steps"]
        added["tasks_per_step"] = size
    return added | state


STATE = StateKind(
    "the state of a checkpoint",
    CheckpointState,
    "resume from an older checkpoint",
    {1: _from_first_format},
)
"""Kind of the file ``state.json`` of a checkpoint."""


def read_checkpoint_state(files: CheckpointFiles) -> dict[str, Any]:
    """The state of a checkpoint, of any earlier version."""
    return read_state(files.state, STATE)


def write_checkpoint_state(files: CheckpointFiles, state: Mapping[str, Any]) -> None:
    """Write the state of a checkpoint."""
    write_state(files.state, STATE, state)


def seal_of(state: Mapping[str, Any], name: str) -> Seal | None:
    """The checksum of a journal at the checkpoint; None if the run was begun without them."""
    checksums = (state["checksums"] or {}).get(name)
    return None if checksums is None else Seal(state["offsets"][name], **checksums)


def with_seals(state: Mapping[str, Any], seals: Mapping[str, Seal]) -> dict[str, Any]:
    """The state with other journals."""
    checksums = {name: {"lines": s.lines, "sha256": s.sha256} for name, s in seals.items()}
    offsets = {name: seal.size for name, seal in seals.items()}
    return {
        **state,
        "offsets": {**state.get("offsets", {}), **offsets},
        "checksums": {**(state.get("checksums") or {}), **checksums},
    }
