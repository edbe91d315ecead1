"""``grpo-cl watch``: the progress of a run of another process, from its run directory."""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cl.cli import values
from grpo_cl.cli.parser import Parser, command
from grpo_cl.errors import ConfigError

POLL_S = 1.0


def add_options(parser: Parser) -> None:
    """Add the options of ``watch``."""
    parser.add_argument("run_dir", type=values.input_dir, metavar="RUN", help="a run directory")
    parser.add("--once", action="store_true", help="print what is there and do not wait for more")
    parser.set_defaults(run=command("watch", "watch"))


def watch(arguments: argparse.Namespace) -> int:
    """Show a run until it ends; 1 if its process ended before the run was complete."""
    follower = Follower(arguments.run_dir)
    while True:
        is_held = holds_lock(arguments.run_dir)  # before reading: nothing is written after it
        follower.read()
        if arguments.once or not is_held:
            break
        time.sleep(POLL_S)
    return follower.finish(is_held=is_held)


def holds_lock(root: Path) -> bool:
    """Whether a process writes the run."""
    from grpo_cl.storage.lock import require_unlocked

    try:
        require_unlocked(root, remedy="")
    except ConfigError:
        return True
    return False


class Key(NamedTuple):
    """What a line of the metrics and one of the times are about."""

    kind: str
    stage: int
    step: int
    domain: str | None
    row: int | None


class Follower:
    """Shows the lines of a run's journals that it has not shown yet."""

    def __init__(self, root: Path) -> None:
        from grpo_cl.metrics.progress import Progress
        from grpo_cl.metrics.time_left import Schedule
        from grpo_cl.runs.layout import RunDir
        from grpo_cl.runs.settings import read_settings

        self.run: RunDir = RunDir(root)
        if not self.run.config.is_file():
            raise ConfigError(f"{root} is not a run directory: it has no {self.run.config.name}")
        config = read_settings(self.run.config)
        self.schedule: Schedule = Schedule(
            config.task_order, config.num_steps_per_task, config.eval_interval
        )
        self._now = time.time()
        self.progress: Progress = Progress(sys.stdout, self.schedule, clock=lambda: self._now)
        self._shown = 0
        self._cells: set[Key] = set()

    def read(self) -> None:
        """Show the new lines, and how long ago the last one was written."""
        from grpo_cl.storage.journal import read_journal

        lines = [line for line in read_journal(self.run.metrics_journal) if _is_event(line)]
        if len(lines) < self._shown:
            self.progress.note("the run was resumed from an earlier step")
            self._shown = 0
        times = {_time_key(line): line for line in read_journal(self.run.times_journal)}
        for line in lines[self._shown :]:
            key = self._metric_key(line)
            self._show(key, line, times.get(key, {}))
        self._shown = len(lines)
        self._now = time.time()
        self.progress.redraw()

    def _show(self, key: Key, line: Mapping[str, Any], times: Mapping[str, Any]) -> None:
        from grpo_cl.metrics.progress import evaluation_name

        self._now = times.get("ended_at", self._now)
        lap_s = times.get("lap_s", times.get("step_s", times.get("play_s", 0.0)))
        if key.kind == "train":
            self.progress.step(key.stage, key.step + 1, {**line, **times}, lap_s=lap_s)
            return
        assert key.domain is not None
        when = evaluation_name(self.schedule, key.stage, key.step, row=key.row)
        self.progress.evaluation(key.domain, line, row=key.row, when=when, lap_s=lap_s)
        self._cells.add(key)

    def _metric_key(self, line: Mapping[str, Any]) -> Key:
        from grpo_cl.metrics.rmatrix import BASE

        after = line.get("after")
        row = None if after is None else [BASE, *self.schedule.domains].index(after)
        kind = line["series"].partition("/")[2]
        return Key(kind, line["task_idx"], line["step"], line.get("domain"), row)

    @property
    def is_complete(self) -> bool:
        """Whether the last row of the R-matrix is written."""
        last = {key.domain for key in self._cells if key.row == len(self.schedule.domains)}
        return last == set(self.schedule.domains)

    def finish(self, *, is_held: bool) -> int:
        """Print how the run ended, if it did, and return the exit status."""
        from grpo_cl.cli.output import matrix_table
        from grpo_cl.metrics.rmatrix import RMatrix

        self.progress.erase()
        if is_held:
            return 0
        if self.is_complete and self.run.r_matrix.is_file():
            print(matrix_table(RMatrix.load(self.run.r_matrix)))
            print(f"the run is complete; grpo-cl report {self.run.root} writes its page")
            return 0
        done = f"{self.progress.time_left.steps_done} of {self.schedule.total_steps} steps"
        print(
            f"grpo-cl: the process of this run has ended after {done}; continue it with grpo-cl "
            f"train --resume_from {self.run.root}",
            file=sys.stderr,
        )
        return 1


def _is_event(line: Mapping[str, Any]) -> bool:
    return str(line.get("series", "")).endswith(("/train", "/eval"))


def _time_key(line: Mapping[str, Any]) -> Key:
    return Key(line["kind"], line["stage"], line["step"], line.get("domain"), line.get("row"))
