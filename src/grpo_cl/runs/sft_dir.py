"""The directory of a fine-tuning: checkpoints while it runs, a model when it is complete.

``DIR/sft_state`` has the settings, the model to start from if it was made, and the checkpoints,
each with a model that can be used. When the last checkpoint is complete, its model is published:
the files of an earlier model are removed from ``DIR``, those of the new one are linked into it, its
configuration last, and ``sft_state`` is removed. A process killed before leaves an earlier model as
it was; one killed while publishing leaves a directory without a configuration, which nothing loads,
and a resume publishes again.
"""

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import NonNegativeInt, ValidationError

from grpo_cl.config.sft import SFTSettings
from grpo_cl.errors import ConfigError
from grpo_cl.runs.checkpoints import (
    DELETED,
    Damage,
    latest_checkpoint,
    require_checkpoint,
    save_checkpoint,
    tidy,
)
from grpo_cl.runs.layout import RunDir, recorded_settings
from grpo_cl.runs.settings import differences
from grpo_cl.runs.state_files import StateKind, read_state, write_state
from grpo_cl.storage.files import (
    link_file,
    read_json,
    sync_folder,
    temporary_path,
    write_json,
    writing,
)
from grpo_cl.storage.lock import locked
from grpo_cl.types import Record, first_problem

CONFIGURATIONS = ("config.json", "adapter_config.json")
"""A directory without one of these holds no model."""
MODEL_FILES = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files of a model that would be read together with those of another."""

STATE = "state.json"

MAY_CHANGE = frozenset({"workers", "log_interval", "save_interval", "logging.keep_checkpoints"})
"""What a resumed fine-tuning may change: it decides when files are written, not their contents."""


class StartState(Record):
    """The state of the model to start from."""

    origin: str


class StepState(Record):
    """The state of a checkpoint."""

    step: NonNegativeInt


START_STATE = StateKind(
    "the state of a model to start from", StartState, "start again with --overwrite"
)
STEP_STATE = StateKind(
    "the state of a fine-tuning", StepState, "remove that checkpoint to use the one before it"
)


class MadeModel(NamedTuple):
    """The model to start from, if it was made for the fine-tuning."""

    folder: Path
    origin: str
    """The name of the model that it was made from; empty for a new one."""


class SFTCheckpoint(NamedTuple):
    """The state after some steps."""

    path: Path
    step: int

    @property
    def model_dir(self) -> Path:
        """The model, in the format of transformers or peft."""
        return model_dir(self.path)


class SFTLatest(NamedTuple):
    """The newest checkpoint that is intact, and the newer ones that are not."""

    checkpoint: SFTCheckpoint | None
    damaged: list[Damage]


def model_dir(checkpoint: Path) -> Path:
    """The folder of a checkpoint's model."""
    return checkpoint / "model"


class SFTDir:
    """The directory that ``grpo-cl sft`` writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_dir = root / "sft_state"

    @property
    def _settings(self) -> Path:
        return self.state_dir / "settings.json"

    @property
    def _start(self) -> Path:
        return self.state_dir / "start"

    @property
    def _published_settings(self) -> Path:
        return self.root / "sft.json"

    @property
    def is_finished(self) -> bool:
        """Whether it holds the model of a fine-tuning that is complete."""
        return self._published_settings.exists() and not self._settings.exists()

    @contextmanager
    def opened(self) -> Generator[None]:
        """Hold the directory's lock; folders that were made for it are removed if still empty."""
        absolute = self.root.absolute()
        made = [path for path in (absolute, *absolute.parents) if not path.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.root, remedy="choose another --out"):
                yield
        finally:
            for path in made:
                with suppress(OSError):  # not empty
                    path.rmdir()

    def require_vacant(self, *, overwrite: bool) -> None:
        """Refuse a directory that holds a model, unless it is to be overwritten, or a run."""
        if RunDir(self.root).metrics_journal.exists():
            raise ConfigError(
                f"--out {str(self.root)!r} holds a training run; choose another --out"
            )
        if overwrite:
            return
        if self._settings.exists():
            raise ConfigError(
                f"--out {str(self.root)!r} holds an unfinished fine-tuning; continue it with "
                f"--resume_from {self.root}, or start again with --overwrite"
            )
        existing = next(self._model_files(), None)
        if existing is not None:
            raise ConfigError(
                f"--out {str(self.root)!r} already holds a model ({existing.name}); choose another "
                "--out, or replace that model, once the new one is complete, with --overwrite"
            )

    def read_settings(self) -> SFTSettings:
        """The settings of the fine-tuning that is in the directory."""
        path = self._published_settings if self.is_finished else self._settings
        if not path.exists():
            raise ConfigError(
                f"--resume_from {str(self.root)!r} holds no fine-tuning to continue; start it with "
                f"--out {self.root}"
            )
        try:
            return SFTSettings.model_validate(read_json(path))
        except ValidationError as error:
            raise ConfigError(
                f"{path} does not have the settings of this version ({first_problem(error)}); "
                "continue with the version that wrote it, or start again with --overwrite"
            ) from error

    def require_same(self, own: SFTSettings, given: SFTSettings) -> None:
        """Refuse settings that would change the result of the fine-tuning that is resumed."""
        before, after = recorded_settings(own), recorded_settings(given)
        for section in ("options", "config"):
            for change in differences(before[section], after[section]):
                if change.name not in MAY_CHANGE:
                    raise ConfigError(
                        f"{change.name} is {change.before!r} in {self.root} and {change.after!r} "
                        "was given; leave it out, or start another fine-tuning in another --out"
                    )

    @contextmanager
    def workspace(self) -> Generator[Path]:
        """A folder, not yet made, for the model to start from until ``begin`` keeps it."""
        tidy(self.root)
        folder = temporary_path(self.root / "sft_start")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def begin(self, settings: SFTSettings, made: MadeModel | None) -> None:
        """Record the settings and the start; the state of an earlier fine-tuning is removed."""
        self._remove_state()
        if made is not None:

            def write(folder: Path) -> None:
                shutil.copytree(made.folder, model_dir(folder), copy_function=link_file)
                write_state(folder / STATE, START_STATE, {"origin": made.origin})

            save_checkpoint(self.state_dir, self._start.name, write, keep=None)
        self.write_settings(settings)  # last: without them there is nothing to resume

    def write_settings(self, settings: SFTSettings) -> None:
        """Record the settings."""
        write_json(self._settings, recorded_settings(settings))

    def made_model(self) -> MadeModel | None:
        """The model to start from that ``begin`` kept; None if it was not made."""
        if not self._start.exists():
            return None
        require_checkpoint(self._start)
        origin = read_state(self._start / STATE, START_STATE)["origin"]
        return MadeModel(model_dir(self._start), origin)

    def save(self, step: int, fill: Callable[[Path], None], *, keep: int) -> SFTCheckpoint:
        """Save what ``fill`` writes as the state after ``step`` steps."""

        def write(folder: Path) -> None:
            fill(folder)
            write_state(folder / STATE, STEP_STATE, {"step": step})

        path = save_checkpoint(self.state_dir, f"step_{step:08d}", write, keep=keep)
        return SFTCheckpoint(path, step)

    def latest(self) -> SFTLatest:
        """The newest intact checkpoint."""
        path, damaged = latest_checkpoint(self.state_dir)
        if path is None:
            return SFTLatest(None, damaged)
        step = read_state(path / STATE, STEP_STATE)["step"]
        return SFTLatest(SFTCheckpoint(path, step), damaged)

    def publish(self, checkpoint: SFTCheckpoint) -> None:
        """Make the model of ``checkpoint`` the one of the directory, and remove the state."""
        new = {
            file.relative_to(checkpoint.model_dir): file
            for file in sorted(checkpoint.model_dir.rglob("*"))
            if file.is_file()
        }
        tidy(self.root)
        with writing(self.root):
            for file in self._model_files():
                file.unlink()
            self._link(self._settings, self._published_settings)
            for name, file in new.items():
                if name.name not in CONFIGURATIONS:
                    self._link(file, self.root / name)
            sync_folder(self.root)
            for name in CONFIGURATIONS:
                if file := new.get(Path(name)):
                    self._link(file, self.root / name)
            sync_folder(self.root)
        self._remove_state()

    def _model_files(self) -> Iterator[Path]:
        """The files of the model in the directory, its configuration first."""
        for name in (*CONFIGURATIONS, *MODEL_FILES):
            yield from (path for path in sorted(self.root.glob(name)) if not path.is_dir())

    def _link(self, file: Path, target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        temporary = temporary_path(target)
        link_file(file, temporary)
        with temporary.open("rb") as linked:
            os.fsync(linked.fileno())  # a copy, on a disk without links, is not on the disk yet
        temporary.replace(target)
        temporary.unlink(missing_ok=True)  # a rename between two links of one file does nothing

    def _remove_state(self) -> None:
        deleted = self.root / f"{DELETED}{self.state_dir.name}"
        shutil.rmtree(deleted, ignore_errors=True)
        if self.state_dir.exists():
            self.state_dir.rename(deleted)
            sync_folder(self.root)
            shutil.rmtree(deleted, ignore_errors=True)
