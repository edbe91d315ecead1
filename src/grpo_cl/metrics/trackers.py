"""Experiment trackers behind one small interface. The run directory holds everything anyway."""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.rundir import RunDir, redact

logger = logging.getLogger(__name__)

DEFAULT_PROJECT = "grpo-cl"
START_S = 30
"""How long a run waits for a server of a tracker that is to send its numbers."""
Errors = tuple[type[Exception], ...]


class Tracker(Protocol):
    """Where numbers go besides the run directory."""

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Show what the run is."""
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Show numbers at a step of the whole run."""
        ...

    def close(self) -> None:
        """Finish; nothing is logged afterwards."""
        ...


class TensorBoardTracker:
    """Event files for TensorBoard, written as they come, without torch or TensorFlow."""

    def __init__(self, folder: Path) -> None:
        # Only the record format and the messages are taken: the package's own file writer works in
        # a thread, where a full disk would surface late and outside of any handler.
        records = import_module("tensorboard.summary.writer.record_writer")
        self._events = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries = import_module("tensorboard.compat.proto.summary_pb2")
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("events.out.tfevents.*")))
        # TensorBoard reads the files of a folder in the order of their names.
        file = folder / f"events.out.tfevents.{number:010d}.grpo-cl"
        self._records = records.RecordWriter(file.open("wb"))
        self._is_started = False
        self._write(file_version="brain.Event:2")

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Show the configuration as a text."""
        text = f"```json\n{json.dumps(config, indent=2)}\n```"
        tensor = import_module("tensorboard.compat.proto.tensor_pb2").TensorProto(
            dtype=import_module("tensorboard.compat.proto.types_pb2").DT_STRING,
            string_val=[text.encode()],
        )
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        metadata = self._summaries.SummaryMetadata(plugin_data=plugin)
        value = self._summaries.Summary.Value(tag="config", tensor=tensor, metadata=metadata)
        self._write(summary=self._summaries.Summary(value=[value]))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to each curve; the first call tells TensorBoard to drop later points."""
        if not self._is_started:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._write(session_log=start, step=step)
            self._is_started = True
        points = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
        ]
        self._write(summary=self._summaries.Summary(value=points), step=step)

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _write(self, **content: Any) -> None:
        event = self._events.Event(wall_time=time.time(), **content)
        self._records.write(event.SerializeToString())
        self._records.flush()


class WandbTracker:
    """A Weights & Biases run, kept offline unless the environment asks to send it."""

    def __init__(self, project: str, root: Path) -> None:
        wandb = import_module("wandb")
        sends = os.environ.get("WANDB_API_KEY") is not None
        mode = os.environ.get("WANDB_MODE") or ("online" if sends else "offline")
        # A command line and a host's name say nothing about the run's numbers, and may be private.
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            init_timeout=START_S,
            silent=True,
            x_disable_meta=True,
        )
        self._run = wandb.init(
            project=project, name=root.name, dir=str(root), mode=mode, settings=settings
        )

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Set the run's configuration."""
        self._run.config.update(dict(config), allow_val_change=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to each curve."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class TrackioTracker:
    """A trackio run in trackio's own local store; ``trackio show`` opens it."""

    def __init__(self, project: str, root: Path) -> None:
        self._run = import_module("trackio").init(
            project=project, name=root.name, resume="allow", embed=False
        )

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Set the run's configuration; trackio sends it with the first numbers."""
        self._run.config.update(config)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to each curve."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Guarded:
    """A tracker whose first failure is logged and is its last: it never stops training."""

    def __init__(self, name: str, tracker: Tracker, errors: Errors) -> None:
        self._name = name
        self._tracker: Tracker | None = tracker
        self._errors = errors

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Show what the run is, without what must stay secret."""
        self._try(lambda tracker: tracker.log_config(redact(config, variables=os.environ)))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Show numbers at a step of the whole run."""
        self._try(lambda tracker: tracker.log(values, step))

    def close(self) -> None:
        """Finish."""
        self._try(lambda tracker: tracker.close())
        self._tracker = None

    def _try(self, call: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except self._errors as error:
            logger.warning(
                "the tracker %s failed and is left out from now on: %s", self._name, error
            )
            failed, self._tracker = self._tracker, None
            with suppress(*self._errors):
                failed.close()


class _Kind(NamedTuple):
    open: Callable[[GRPOConfig, Path], Tracker]
    errors: Callable[[], Errors]


def require_trackers(config: GRPOConfig) -> None:
    """Refuse a run whose trackers are not installed, before any work is done."""
    for name in chosen_trackers(config):
        if find_spec(name) is None:
            raise ConfigError(
                f"the tracker {name!r} needs a package that is not installed; run "
                f"`pip install {name}` or leave it out of logging.trackers"
            )


def chosen_trackers(config: GRPOConfig) -> tuple[str, ...]:
    """The trackers of a run; naming a wandb project chooses wandb."""
    chosen = config.logging.trackers
    return (*chosen, "wandb") if config.wandb_project and "wandb" not in chosen else chosen


def open_trackers(config: GRPOConfig, root: Path) -> list[Tracker]:
    """The trackers of the run in ``root``; one that cannot start is logged and left out."""
    require_trackers(config)
    opened: list[Tracker] = []
    for name in chosen_trackers(config):
        kind = _KINDS[name]
        errors = kind.errors()
        try:
            opened.append(Guarded(name, kind.open(config, root), errors))
        except errors as error:
            logger.warning("the tracker %s could not start and is left out: %s", name, error)
    for tracker in opened:
        tracker.log_config(config.model_dump(mode="json"))
    return opened


def _wandb_errors() -> Errors:
    return (OSError, import_module("wandb").Error)


def _trackio_errors() -> Errors:
    # trackio has no base class of its own: local problems are plain built-in errors.
    remote = import_module("trackio.exceptions").TrackioAPIError
    return (OSError, sqlite3.Error, RuntimeError, ValueError, remote)


_KINDS = {
    "tensorboard": _Kind(
        lambda config, root: TensorBoardTracker(RunDir(root).tensorboard_dir), lambda: (OSError,)
    ),
    "wandb": _Kind(
        lambda config, root: WandbTracker(config.wandb_project or DEFAULT_PROJECT, root),
        _wandb_errors,
    ),
    "trackio": _Kind(
        lambda config, root: TrackioTracker(config.wandb_project or DEFAULT_PROJECT, root),
        _trackio_errors,
    ),
}
