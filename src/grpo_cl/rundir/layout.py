"""Where a run keeps its files. No other module spells a file name of the run directory."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo_cl.errors import ConfigError
from grpo_cl.rundir.environment import describe_environment
from grpo_cl.rundir.files import TEMPORARY, write_json
from grpo_cl.rundir.journal import read_journal
from grpo_cl.rundir.redaction import hide
from grpo_cl.rundir.store import Latest, drop_newer, latest_checkpoint, save_checkpoint, tidy

SERIES = "series"
"""The field of a metrics line that says which list of metrics.json it belongs to."""

_STEP = "step_"
_STAGE = "checkpoint_task_"
_NAME_BYTES = 100


def file_name(text: str, suffix: str = "") -> str:
    """A file name for any text, at most 100 bytes; equal only for equal texts."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}", text):
        return f"{text}{suffix}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
    return f"{readable[: _NAME_BYTES - len(digest) - len(suffix) - 2]}~{digest}{suffix}"


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of one checkpoint, at a stage's end or within it."""

    root: Path

    @property
    def model_dir(self) -> Path:
        """The policy, as other programs load it."""
        return self.root / "model"

    @property
    def trajectories(self) -> Path:
        """What the buffer held."""
        return self.root / "trajectories.json"

    @property
    def config(self) -> Path:
        """The description of the run."""
        return self.root / "config.json"

    @property
    def state(self) -> Path:
        """Plain data that an exact resume needs; absent at a stage's end."""
        return self.root / "state.json"

    @property
    def policy_dir(self) -> Path:
        """Weights, optimizer and random states that an exact resume needs."""
        return self.root / "policy"

    @property
    def algorithm_dir(self) -> Path:
        """What a continual-learning algorithm keeps for an exact resume."""
        return self.root / "algorithm"

    def write_config(self, config: BaseModel) -> None:
        """Write the description of the run, without the user part of addresses."""
        _write_config(self.config, config)


@dataclass(frozen=True)
class RunDir:
    """The files of one run. Making the object touches nothing; ``create`` and ``reopen`` do."""

    root: Path

    @property
    def config(self) -> Path:
        """The description of the run."""
        return self.root / "config.json"

    @property
    def environment(self) -> Path:
        """What the run ran on."""
        return self.root / "environment.json"

    @property
    def metrics(self) -> Path:
        """Every number by series, written at stage ends."""
        return self.root / "metrics.json"

    @property
    def metrics_journal(self) -> Path:
        """Every number as it came, one line per step or evaluation."""
        return self.root / "metrics.jsonl"

    @property
    def trajectories_journal(self) -> Path:
        """Every training episode as it came."""
        return self.root / "trajectories.jsonl"

    @property
    def times_journal(self) -> Path:
        """What the clock said, one line per step or evaluation, repeated ones too."""
        return self.root / "times.jsonl"

    @property
    def r_matrix(self) -> Path:
        """The score on each domain after each stage."""
        return self.root / "r_matrix.json"

    @property
    def report(self) -> Path:
        """The page a person reads."""
        return self.root / "report.html"

    @property
    def plots_dir(self) -> Path:
        """The figures."""
        return self.root / "plots"

    @property
    def tensorboard_dir(self) -> Path:
        """Event files."""
        return self.root / "tensorboard"

    @property
    def checkpoints_dir(self) -> Path:
        """Where the run can go on from."""
        return self.root / "checkpoints"

    @property
    def published_dir(self) -> Path:
        """Weights on their way to the servers that write for the run."""
        return self.root / "published"

    def plot(self, name: str) -> Path:
        """The figure called ``name``, whatever characters that has."""
        return self.plots_dir / file_name(name, ".png")

    def stage_checkpoint(self, index: int) -> CheckpointFiles:
        """What was learned after stage ``index``."""
        return CheckpointFiles(self.root / f"{_STAGE}{index}")

    def create(self) -> None:
        """Make the directory and prove that it can be written; one that holds a run is refused."""
        held = self._held()
        if held:
            raise ConfigError(
                f"log_dir {str(self.root)!r} holds a run already ({held}); go on with it by "
                f"--resume_from {self.root}, or choose another --log_dir"
            )
        self._prove_writable()

    def reopen(self) -> None:
        """Make ready to go on with the run: remove what a killed process left half done."""
        self._prove_writable()
        tidy(self.root)
        tidy(self.checkpoints_dir)

    def save_step(self, step: int, fill: Callable[[CheckpointFiles], None], *, keep: int) -> Path:
        """Save what ``fill`` writes as the state after ``step`` updates; the newest are kept."""
        return save_checkpoint(
            self.checkpoints_dir,
            f"{_STEP}{step:08d}",
            lambda folder: fill(CheckpointFiles(folder)),
            keep=keep,
        )

    def save_stage(self, index: int, fill: Callable[[CheckpointFiles], None]) -> Path:
        """Save what ``fill`` writes as the outcome of stage ``index``."""
        return save_checkpoint(
            self.root,
            f"{_STAGE}{index}",
            lambda folder: fill(CheckpointFiles(folder)),
            keep=None,
        )

    def latest(self) -> Latest:
        """The newest good checkpoint and the damaged ones after it."""
        return latest_checkpoint(self.checkpoints_dir)

    def rewind(self, *, step: int, stages: int) -> None:
        """Forget checkpoints of more than ``step`` updates or ``stages`` finished stages.

        The journals are cut back by whoever writes them, to the offsets in the checkpoint.
        """
        drop_newer(self.checkpoints_dir, _STEP, than=step)
        drop_newer(self.root, _STAGE, than=stages - 1)

    def write_config(self, config: BaseModel) -> None:
        """Write the description of the run, without the user part of addresses."""
        _write_config(self.config, config)

    def write_environment(
        self, *, command: Sequence[str], task_releases: Mapping[str, str]
    ) -> None:
        """Write what the run runs on, free of secrets."""
        described = describe_environment(
            command=command, variables=os.environ, task_releases=task_releases
        )
        write_json(self.environment, described)

    def read_metrics(self) -> dict[str, list[dict[str, Any]]]:
        """Every number by series, from the journal: also of a run that has not ended."""
        metrics: dict[str, list[dict[str, Any]]] = {}
        for record in read_journal(self.metrics_journal):
            metrics.setdefault(str(record.pop(SERIES, "")), []).append(record)
        return metrics

    def _held(self) -> str | None:
        """A file that shows that the directory is some run's."""
        files = (
            self.config,
            self.environment,
            self.metrics,
            self.metrics_journal,
            self.trajectories_journal,
            self.r_matrix,
            self.checkpoints_dir,
        )
        stages = sorted(self.root.glob(f"{_STAGE}*")) if self.root.is_dir() else []
        return next((path.name for path in (*files, *stages) if path.exists()), None)

    def _prove_writable(self) -> None:
        proof = self.root / f"{TEMPORARY}proof"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            proof.write_bytes(b"writable")
            proof.unlink()
        except OSError as error:
            raise ConfigError(
                f"log_dir {str(self.root)!r} cannot be written: {error.strerror}; "
                "make it writable, or choose another --log_dir"
            ) from error


def _write_config(path: Path, config: BaseModel) -> None:
    plain = config.model_dump(mode="json")
    write_json(path, _each_text(plain, lambda text: hide(text, variables=os.environ)))


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _each_text(entry, change) for name, entry in value.items()}
    if isinstance(value, list):
        return [_each_text(entry, change) for entry in value]
    return value
