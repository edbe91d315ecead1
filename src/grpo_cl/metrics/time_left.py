"""How long a run still takes, from the wall times of its finished steps and evaluations."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

RECENT = 10
"""Steps and evaluations whose mean is the estimate of the next one: lengths of episodes change."""


class Schedule(NamedTuple):
    """The steps and evaluations of a run."""

    domains: Sequence[str]
    steps_per_task: int
    eval_interval: int | None = None

    @property
    def total_steps(self) -> int:
        """Updates of all stages."""
        return len(self.domains) * self.steps_per_task


class TimeLeft:
    """The estimate, after every step and evaluation that is added.

    A wall time is counted from the end of the previous step or evaluation, so that checkpoints and
    hooks are included in the times.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._stage = 0
        self._step = 0
        self._next_row = dict.fromkeys(schedule.domains, 0)
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._evaluations: defaultdict[str, deque[float]] = defaultdict(
            lambda: deque(maxlen=RECENT)
        )

    def add_step(self, stage: int, step: int, seconds: float) -> None:
        """A finished update; ``step`` updates of the stage are done."""
        self._stage, self._step = stage, step
        self._steps.append(seconds)

    def add_evaluation(self, domain: str, seconds: float, *, row: int | None) -> None:
        """A finished evaluation, of a row of the R-matrix or (None) within a stage."""
        self._evaluations[domain].append(seconds)
        if row is not None:
            self._next_row[domain] = row + 1

    def add_line(self, line: Mapping[str, Any]) -> None:
        """A line of the journal of times; older lines have no wall time and are passed over."""
        if "lap_s" not in line:
            return
        if line["kind"] == "train":
            self.add_step(line["stage"], line["step"] + 1, line["lap_s"])
        elif line["domain"] in self._next_row:
            self.add_evaluation(line["domain"], line["lap_s"], row=line["row"])

    def move_to(self, stage: int, step: int, *, rows: int) -> None:
        """Continue at the position of a checkpoint, with its finished rows of the R-matrix."""
        self._stage, self._step = stage, step
        self._next_row = dict.fromkeys(self._schedule.domains, rows)

    @property
    def steps_done(self) -> int:
        """Finished updates of all stages."""
        return self._stage * self._schedule.steps_per_task + self._step

    def seconds(self) -> float | None:
        """Seconds until the run ends; None before a step and an evaluation are known."""
        steps_left = self._schedule.total_steps - self.steps_done
        left = {name: self._evaluations_left(name) for name in self._schedule.domains}
        known = {name: fmean(times) for name, times in self._evaluations.items()}
        if (steps_left and not self._steps) or (any(left.values()) and not known):
            return None
        training_s = steps_left * fmean(self._steps) if steps_left else 0.0
        typical_s = fmean(known.values()) if known else 0.0
        return training_s + sum(left[name] * known.get(name, typical_s) for name in left)

    def _evaluations_left(self, domain: str) -> int:
        schedule = self._schedule
        rows = len(schedule.domains) + 1 - self._next_row[domain]
        if schedule.eval_interval is None:
            return rows
        per_stage = (schedule.steps_per_task - 1) // schedule.eval_interval
        first = max(schedule.domains.index(domain), self._stage)
        within = (len(schedule.domains) - first) * per_stage
        if first == self._stage < len(schedule.domains):
            within -= min(self._step // schedule.eval_interval, per_stage)
        return rows + within
