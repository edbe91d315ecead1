"""File names of the run directory; no other module spells them."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.runs.checkpoints import (
    Draft,
    Latest,
    draft_checkpoint,
    latest_checkpoint,
    numbered_after,
    tidy,
)
from grpo_cl.runs.environment import describe_environment
from grpo_cl.runs.result_files import with_checksum, write_json_result
from grpo_cl.storage.files import (
    create_file,
    link_file,
    read_json,
    sync_folder,
    temporary_path,
    write_json,
    writing,
)
from grpo_cl.storage.journal import copy_lines, read_journal
from grpo_cl.storage.redaction import hide

SERIES = "series"
"""The key of a metrics line that names its list in metrics.json."""
INITIAL_FILE = "initial.json"
"""The checksum of the model that a run began with, whose weights a checkpoint does not contain."""

_STEP = "step_"
_STAGE = "checkpoint_task_"
_NAME_BYTES = 100


def file_name(text: str, suffix: str = "") -> str:
    """A file name for any text, at most 100 bytes; different texts have different names."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}", text):
        return f"{text}{suffix}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
    return f"{readable[: _NAME_BYTES - len(digest) - len(suffix) - 2]}~{digest}{suffix}"


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of one checkpoint, of a step or of a finished stage."""

    root: Path

    @property
    def model_dir(self) -> Path:
        """The policy as a Hugging Face model directory."""
        return self.root / "model"

    @property
    def trajectories(self) -> Path:
        """The trajectory buffer."""
        return self.root / "trajectories.json"

    @property
    def config(self) -> Path:
        """The configuration of the run."""
        return self.root / "config.json"

    @property
    def rollouts(self) -> Path:
        """The rollouts of the next step; absent unless they were played ahead of it."""
        return self.root / "rollouts.json"

    @property
    def state(self) -> Path:
        """JSON state for an exact resume; absent in the checkpoint of a stage."""
        return self.root / "state.json"

    @property
    def finished_stage(self) -> int | None:
        """The stage after which the checkpoint was made; None within a stage, or if unreadable."""
        try:
            position = read_json(self.state)["position"]
        except (CheckpointError, KeyError, TypeError):
            return None
        return position["stage"] - 1 if position["step"] == 0 else None

    @property
    def policy_dir(self) -> Path:
        """Weights and optimizer state for an exact resume."""
        return self.root / "policy"

    @property
    def initial_model(self) -> Path:
        """The checksum of the model that the run began with."""
        return self.policy_dir / INITIAL_FILE

    @property
    def algorithm_dir(self) -> Path:
        """Tensors of the continual-learning algorithm for an exact resume."""
        return self.root / "algorithm"

    def write_config(self, config: BaseModel) -> None:
        """Write the configuration, without credentials in URLs."""
        write_json(self.config, recorded_settings(config))


class CutOff(NamedTuple):
    """What a resume from an earlier checkpoint moved aside."""

    folder: Path
    steps: int
    """Checkpoints of later steps."""
    stages: int
    """Models of later stages."""
    metrics: int
    """Lines of the metrics journal."""
    episodes: int


@dataclass(frozen=True)
class RunDir:
    """The files of one run. Constructing it touches no file; ``create`` and ``reopen`` do."""

    root: Path

    @property
    def config(self) -> Path:
        """The configuration of the run."""
        return self.root / "config.json"

    @property
    def config_changes(self) -> Path:
        """Settings that changed at a resume or a fork, with the step; absent if none did."""
        return self.root / "config_changes.json"

    @property
    def damage(self) -> Path:
        """Damage of journals without which the run went on; absent if there was none."""
        return self.root / "damage.json"

    @property
    def damaged_dir(self) -> Path:
        """Journals that were found damaged, as they were."""
        return self.root / "damaged"

    @property
    def journals(self) -> dict[str, Path]:
        """The journals that a resume truncates, by their names in the state of a checkpoint."""
        return {"metrics": self.metrics_journal, "episodes": self.trajectories_journal}

    @property
    def environment(self) -> Path:
        """Versions, commit and variables of the run."""
        return self.root / "environment.json"

    @property
    def metrics(self) -> Path:
        """All metrics by series, written at the end of each stage."""
        return self.root / "metrics.json"

    @property
    def metrics_journal(self) -> Path:
        """All metrics in order, one line per step or evaluation."""
        return self.root / "metrics.jsonl"

    @property
    def trajectories_journal(self) -> Path:
        """All training episodes in order."""
        return self.root / "trajectories.jsonl"

    @property
    def evaluations_dir(self) -> Path:
        """The episodes behind the R-matrix, a file per cell."""
        return self.root / "evaluations"

    def evaluation_episodes(self, row: int, domain: str) -> Path:
        """The episodes of a domain in a row of the R-matrix; row 0 is before training."""
        return self.evaluations_dir / file_name(f"{row}_{domain}", ".jsonl.gz")

    def evaluation_tokens(self, row: int, domain: str) -> Path:
        """The token ids of the same episodes, in the same order."""
        return self.evaluations_dir / file_name(f"{row}_{domain}", ".tokens.jsonl.gz")

    def evaluations_after(self, row: int) -> list[Path]:
        """The files of later rows of the R-matrix."""
        rows = {
            path: int(number[0])
            for path in sorted(self.evaluations_dir.glob("*.gz"))
            if (number := re.match("[0-9]+", path.name))
        }
        return sorted((path for path in rows if rows[path] > row), key=rows.__getitem__)

    @property
    def times_journal(self) -> Path:
        """Wall times, one line per step or evaluation, including those repeated after a resume."""
        return self.root / "times.jsonl"

    @property
    def spending(self) -> Path:
        """Tokens and cost of every paid completion; absent if no model was paid for."""
        return self.root / "spending.jsonl"

    @property
    def r_matrix(self) -> Path:
        """The R-matrix."""
        return self.root / "r_matrix.json"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.root / "report.html"

    @property
    def viewer(self) -> Path:
        """The page with the evaluation episodes."""
        return self.root / "episodes.html"

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
        """Checkpoints of steps, for resuming."""
        return self.root / "checkpoints"

    @property
    def published_dir(self) -> Path:
        """Weights published to rollout servers."""
        return self.root / "published"

    @property
    def cut_off_dir(self) -> Path:
        """What resumes from earlier checkpoints moved aside."""
        return self.root / "cut_off"

    def plot(self, name: str) -> Path:
        """The figure called ``name``, which may contain any characters."""
        return self.plots_dir / file_name(name, ".png")

    def stage_checkpoint(self, index: int) -> CheckpointFiles:
        """The checkpoint after stage ``index``."""
        return CheckpointFiles(self.root / f"{_STAGE}{index}")

    def stage_of(self, path: Path) -> int | None:
        """The number of the stage whose checkpoint ``path`` is; None for another path."""
        number = path.name.removeprefix(_STAGE)
        is_stage = path.parent == self.root and path.name.startswith(_STAGE)
        return int(number) if is_stage and number.isdecimal() else None

    def stage_end(self, index: int) -> CheckpointFiles | None:
        """The checkpoint for resuming after stage ``index``; None if it was not kept."""
        steps = numbered_after(self.checkpoints_dir, _STEP, -1)
        found = (CheckpointFiles(path) for path in steps)
        return next((files for files in found if files.finished_stage == index), None)

    def last_stage(self) -> int | None:
        """The number of the last finished stage; None if there is none."""
        models = numbered_after(self.root, _STAGE, -1)
        return self.stage_of(models[0]) if models else None

    def require_vacant(self) -> None:
        """Refuse a directory that holds a run."""
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(
                f"{str(self.root)!r} is a file, and a run needs a directory; choose another path"
            )
        existing = self._existing_file()
        if existing:
            raise ConfigError(
                f"{str(self.root)!r} already holds a run ({existing}); continue it with "
                f"--resume_from {self.root}, or choose another directory"
            )

    def require_writable(self) -> None:
        """Create the directory if it does not exist, and check that it is writable."""
        proof = temporary_path(self.root / "proof")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with create_file(proof) as file:
                file.write(b"writable")
            proof.unlink()
        except OSError as error:
            raise ConfigError(
                f"log_dir {str(self.root)!r} cannot be written: {error.strerror}; "
                "make it writable, or choose another --log_dir"
            ) from error

    def reopen(self) -> None:
        """Remove what a killed process left."""
        tidy(self.root)
        tidy(self.checkpoints_dir)
        tidy(self.evaluations_dir)

    def draft_step(
        self,
        step: int,
        fill: Callable[[CheckpointFiles], None],
        *,
        keep: int,
        keep_stage_ends: bool = False,
    ) -> Draft:
        """The checkpoint after ``step`` updates; once published, the newest ``keep`` remain.

        With ``keep_stage_ends`` those made at the end of a stage remain too.
        """
        return draft_checkpoint(
            self.checkpoints_dir,
            f"{_STEP}{step:08d}",
            lambda folder: fill(CheckpointFiles(folder)),
            keep=keep,
            is_spared=lambda path: (
                keep_stage_ends and CheckpointFiles(path).finished_stage is not None
            ),
        )

    def save_step(self, step: int, fill: Callable[[CheckpointFiles], None], *, keep: int) -> Path:
        """Save the checkpoint after ``step`` updates; the newest ``keep`` remain."""
        return self.draft_step(step, fill, keep=keep).publish()

    def draft_stage(self, index: int, fill: Callable[[CheckpointFiles], None]) -> Draft:
        """The checkpoint after stage ``index``."""
        return draft_checkpoint(
            self.root,
            f"{_STAGE}{index}",
            lambda folder: fill(CheckpointFiles(folder)),
            keep=None,
        )

    def latest(self) -> Latest:
        """The newest intact checkpoint and the damaged ones after it."""
        return latest_checkpoint(self.checkpoints_dir)

    def cut_off(self, *, step: int, stages: int, metrics: int, episodes: int) -> CutOff | None:
        """Move aside what is later than a checkpoint; None if nothing is.

        Later are checkpoints of more than ``step`` updates or ``stages`` finished stages. If there
        are any, the journals from the given offsets on are copied first, so that a process killed
        in between leaves a run that resumes from the newest checkpoint that is still there. The
        journals are truncated and later evaluations are removed afterwards, by their owner. Without
        later checkpoints nothing is kept: the lines after the newest checkpoint are written again
        by the resumed run.
        """
        steps = numbered_after(self.checkpoints_dir, _STEP, step)
        models = numbered_after(self.root, _STAGE, stages - 1)
        if not steps and not models:
            return None
        number = 1 + len(list(self.cut_off_dir.glob("*")))
        folder = self.cut_off_dir / f"{number}_from_{_STEP}{step:08d}"
        with writing(folder):
            (folder / self.checkpoints_dir.name).mkdir(parents=True)
            lines = [
                copy_lines(journal, folder / journal.name, start=offset)
                for journal, offset in (
                    (self.metrics_journal, metrics),
                    (self.trajectories_journal, episodes),
                )
            ]
            for path in (self.config, self.config_changes, self.metrics, self.r_matrix):
                if path.exists():
                    shutil.copyfile(path, folder / path.name)
            for path in self.evaluations_after(stages):
                copy = folder / path.relative_to(self.root)
                copy.parent.mkdir(exist_ok=True)
                link_file(path, copy)
            sync_folder(folder)
            # Newest first: whatever remains after a kill has no gap.
            for path in (*steps, *models):
                path.rename(folder / path.relative_to(self.root))
            sync_folder(self.checkpoints_dir)
            sync_folder(self.root)
        return CutOff(folder, len(steps), len(models), lines[0], lines[1])

    def write_config(self, config: BaseModel) -> None:
        """Write the configuration, without credentials in URLs."""
        write_json_result(self.config, recorded_settings(config))

    def write_environment(
        self, *, command: Sequence[str], task_releases: Mapping[str, str]
    ) -> None:
        """Write versions, commit, command line and variables, without secrets."""
        described = describe_environment(
            command=command, variables=os.environ, task_releases=task_releases
        )
        write_json(self.environment, with_checksum(described))

    def read_metrics(self) -> dict[str, list[dict[str, Any]]]:
        """All metrics by series, from the journal, so also of an unfinished run."""
        metrics: dict[str, list[dict[str, Any]]] = {}
        for record in read_journal(self.metrics_journal):
            metrics.setdefault(str(record.pop(SERIES, "")), []).append(record)
        return metrics

    def _existing_file(self) -> str | None:
        """The name of a file that shows that the directory holds a run."""
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


def recorded_settings(config: BaseModel) -> dict[str, Any]:
    """The contents of ``config.json``: the configuration without credentials in URLs."""
    plain = config.model_dump(mode="json")
    return _map_strings(plain, lambda text: hide(text, variables=os.environ))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _map_strings(entry, change) for name, entry in value.items()}
    if isinstance(value, list):
        return [_map_strings(entry, change) for entry in value]
    return value
