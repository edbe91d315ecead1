"""Clients of experiment trackers: TensorBoard, wandb and trackio.

They show numbers that ``MetricsTracker`` forwards; the run directory has all of them.
"""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.tables import Table, markdown
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.redaction import redact

logger = logging.getLogger(__name__)

DEFAULT_PROJECT = "grpo-cl"
START_S = 30
"""Seconds to wait for the server of an online tracker at the start of a run."""
Errors = tuple[type[Exception], ...]


class ExperimentTracker(Protocol):
    """A destination of metrics besides the run directory.

    Any object with these methods can be given to the trainer, ``GRPOTrainer(config,
    trackers=[…])``. Its errors are not caught.
    """

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Log the configuration of the run."""
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics at a global step."""
        ...

    def close(self) -> None:
        """Finish the run; nothing is logged afterwards."""
        ...


@runtime_checkable
class TableTracker(Protocol):
    """A tracker that also shows tables."""

    def log_table(self, name: str, table: Table, step: int) -> None:
        """Log a table at a global step."""
        ...


class TensorBoardTracker:
    """TensorBoard event files, written without torch or TensorFlow."""

    def __init__(self, directory: Path) -> None:
        # The package's own file writer runs in a thread, where a full disk would raise late and
        # outside of any handler, so only its record format and messages are used.
        records = import_module("tensorboard.summary.writer.record_writer")
        self._events = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries = import_module("tensorboard.compat.proto.summary_pb2")
        directory.mkdir(parents=True, exist_ok=True)
        number = len(list(directory.glob("events.out.tfevents.*")))
        # TensorBoard reads the files of a directory in the order of their names.
        file = directory / f"events.out.tfevents.{number:010d}.grpo-cl"
        self._records = records.RecordWriter(file.open("wb"))
        self._is_started = False
        self._write(file_version="brain.Event:2")

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Log the configuration as text."""
        self._write_text("config", f"```json\n{json.dumps(config, indent=2)}\n```")

    def log_table(self, name: str, table: Table, step: int) -> None:
        """Log a table as text."""
        self._write_text(name, markdown(table), step=step)

    def _write_text(self, name: str, text: str, **place: int) -> None:
        tensor = import_module("tensorboard.compat.proto.tensor_pb2").TensorProto(
            dtype=import_module("tensorboard.compat.proto.types_pb2").DT_STRING,
            string_val=[text.encode()],
        )
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        metadata = self._summaries.SummaryMetadata(plugin_data=plugin)
        value = self._summaries.Summary.Value(tag=name, tensor=tensor, metadata=metadata)
        self._write(summary=self._summaries.Summary(value=[value]), **place)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to each curve; the first call makes TensorBoard drop later points."""
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
    """A Weights & Biases run, offline unless WANDB_MODE or WANDB_API_KEY is set."""

    def __init__(self, project: str, root: Path) -> None:
        self._wandb = wandb = import_module("wandb")
        has_key = os.environ.get("WANDB_API_KEY") is not None
        mode = os.environ.get("WANDB_MODE") or ("online" if has_key else "offline")
        # The command line and the host name may be private.
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

    def log_table(self, name: str, table: Table, step: int) -> None:
        """Log a table; the newest one is shown, earlier ones by their step."""
        shown = self._wandb.Table(
            columns=list(table.columns), data=[list(row) for row in table.rows]
        )
        self._run.log({name: shown}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class TrackioTracker:
    """A trackio run in trackio's local database; ``trackio show`` opens it."""

    def __init__(self, project: str, root: Path) -> None:
        self._trackio = import_module("trackio")
        self._run = self._trackio.init(project=project, name=root.name, resume="allow", embed=False)

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Set the run's configuration; trackio sends it with the first numbers."""
        self._run.config.update(config)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to each curve."""
        self._run.log(dict(values), step=step)

    def log_table(self, name: str, table: Table, step: int) -> None:
        """Log a table; the newest one is shown, earlier ones by their step."""
        shown = self._trackio.Table(
            columns=list(table.columns), data=[list(row) for row in table.rows]
        )
        self._run.log({name: shown}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class FailSafeTracker:
    """A tracker that is disabled after its first error, which is logged; training continues."""

    def __init__(self, name: str, tracker: ExperimentTracker, errors: Errors) -> None:
        self._name = name
        self._tracker: ExperimentTracker | None = tracker
        self._errors = errors

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Log the configuration of the run without its secrets."""
        self._try(lambda tracker: tracker.log_config(redact(config, variables=os.environ)))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics at a global step."""
        self._try(lambda tracker: tracker.log(values, step))

    def log_table(self, name: str, table: Table, step: int) -> None:
        """Log a table without secrets, if the tracker shows tables."""
        rows = [
            tuple(row) for row in redact([list(row) for row in table.rows], variables=os.environ)
        ]

        def log(tracker: ExperimentTracker) -> None:
            if isinstance(tracker, TableTracker):
                tracker.log_table(name, table._replace(rows=rows), step)

        self._try(log)

    def close(self) -> None:
        """Finish the run."""
        self._try(lambda tracker: tracker.close())
        self._tracker = None

    def _try(self, call: Callable[[ExperimentTracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except self._errors as error:
            logger.warning("the tracker %s failed and is disabled: %s", self._name, error)
            failed, self._tracker = self._tracker, None
            with suppress(*self._errors):
                failed.close()


class _TrackerType(NamedTuple):
    open: Callable[[GRPOConfig, Path], ExperimentTracker]
    errors: Callable[[], Errors]


def require_trackers(config: GRPOConfig) -> None:
    """Raise if a tracker of the run is not installed."""
    for name in tracker_names(config):
        if find_spec(name) is None:
            raise ConfigError(
                f"the tracker {name!r} needs a package that is not installed; run "
                f"`pip install {name}`, or {_way_out(name, config)}"
            )


def _way_out(name: str, config: GRPOConfig) -> str:
    is_listed = name in config.logging.trackers
    return "remove it from logging.trackers" if is_listed else "leave wandb_project out"


def tracker_names(config: GRPOConfig) -> tuple[str, ...]:
    """The trackers of a run; ``wandb_project`` adds wandb."""
    names = config.logging.trackers
    return (*names, "wandb") if config.wandb_project and "wandb" not in names else names


def open_trackers(
    config: GRPOConfig, root: Path, *, own: Sequence[ExperimentTracker] = ()
) -> list[ExperimentTracker]:
    """The ``own`` trackers and those named in ``config``, with the configuration logged.

    A named one that cannot start is logged and skipped.
    """
    require_trackers(config)
    opened: list[ExperimentTracker] = []
    for name in tracker_names(config):
        tracker_type = _TRACKERS[name]
        errors = tracker_type.errors()
        try:
            opened.append(FailSafeTracker(name, tracker_type.open(config, root), errors))
        except errors as error:
            logger.warning("the tracker %s could not start and is disabled: %s", name, error)
    settings = config.model_dump(mode="json")
    for tracker in opened:
        tracker.log_config(settings)
    for tracker in own:
        tracker.log_config(redact(settings, variables=os.environ))
    return [*own, *opened]


def _wandb_errors() -> Errors:
    return (OSError, import_module("wandb").Error)


def _trackio_errors() -> Errors:
    # trackio has no base class of errors: local errors are built-in exceptions.
    remote = import_module("trackio.exceptions").TrackioAPIError
    return (OSError, sqlite3.Error, RuntimeError, ValueError, remote)


_TRACKERS = {
    "tensorboard": _TrackerType(
        lambda config, root: TensorBoardTracker(RunDir(root).tensorboard_dir), lambda: (OSError,)
    ),
    "wandb": _TrackerType(
        lambda config, root: WandbTracker(config.wandb_project or DEFAULT_PROJECT, root),
        _wandb_errors,
    ),
    "trackio": _TrackerType(
        lambda config, root: TrackioTracker(config.wandb_project or DEFAULT_PROJECT, root),
        _trackio_errors,
    ),
}
