"""Progress output: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any, TextIO

from grpo_cl.metrics.time_left import Schedule, TimeLeft

STALL_S = 30.0
"""Silence after which a plain log reports what the run is waiting for."""
REDRAW_S = 0.1
BAR_CELLS = 20
CLEAR_LINE = "\r\x1b[K"

_STEP = {"reward_mean": ("reward", ".3f"), "pass_rate": ("passed", ".3f"), "loss": ("loss", ".4f")}
_EVALUATION = {
    "reward_mean": ("reward", ".3f"),
    "pass_rate": ("passed", ".3f"),
    "tool_accuracy": ("tool accuracy", ".3f"),
}


class Progress:
    """Writes the progress of a run to ``stream``."""

    def __init__(
        self,
        stream: TextIO,
        schedule: Schedule,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._has_reader = True
        self._schedule = schedule
        self._clock = clock
        self._is_live = stream.isatty()
        self.time_left = TimeLeft(schedule)
        self._started = self._last_event = self._last_output = clock()
        self._numbers: list[str] = []
        self._activity = ""
        self._is_step = True
        self._episodes = 0
        self._done = 0
        self._last_done = clock()
        self._is_drawn = False

    @property
    def lap_s(self) -> float:
        """Seconds since the last finished step or evaluation."""
        return self._clock() - self._last_event

    def begin(self, activity: str, *, is_step: bool = True) -> None:
        """Show what the run does now; the numbers of the last step are shown only with a step."""
        is_first = not self._activity
        if is_first:  # what a run does before is no part of its first evaluation
            self._last_event = self._clock()
        self._activity = printable(activity)
        self._is_step = is_step
        self._episodes = self._done = 0
        if self._is_live:
            self._redraw()
        elif is_first:
            self._write(self._activity)

    def begin_episodes(self, count: int) -> None:
        """Show that the activity plays ``count`` episodes."""
        self._episodes, self._done = count, 0
        self._last_done = self._clock()

    def episode_ended(self) -> None:
        """Count an episode; without a terminal a line is written after ``STALL_S`` of silence."""
        now = self._clock()
        self._done += 1
        quiet = now - self._last_output
        if self._is_live and quiet >= REDRAW_S:
            self._redraw()
        elif not self._is_live and quiet >= STALL_S:
            since = f"{now - self._last_done:.0f} s after the one before"
            self._write(f"{self._activity}: {self._count()}, {since}")
        self._last_done = now

    def step(
        self, stage: int, step: int, values: Mapping[str, Any], *, lap_s: float | None = None
    ) -> None:
        """Show a finished training step; ``step`` updates of the stage are done.

        ``lap_s`` is its wall time where another process measured it.
        """
        self.time_left.add_step(stage, step, self.lap_s if lap_s is None else lap_s)
        self._last_event = self._clock()
        reward, *rest = labels(values, _STEP) or [""]
        numbers = [reward, *_speed(values), *_equal_groups(values), *rest]
        self._numbers = [text for text in numbers if text]
        self._activity = step_name(self._schedule, stage, step)
        self._is_step = True
        self._episodes = 0
        if self._is_live:
            self._redraw()
        else:
            self._write(f"{self._activity}: {', '.join([*self._numbers, self._time_text()])}")

    def evaluation(
        self,
        domain: str,
        values: Mapping[str, Any],
        *,
        row: int | None,
        when: str,
        lap_s: float | None = None,
    ) -> None:
        """Show the evaluation of a domain on a permanent line."""
        self.time_left.add_evaluation(domain, self.lap_s if lap_s is None else lap_s, row=row)
        self._last_event = self._clock()
        self.note(f"{when}: {domain} {', '.join(labels(values, _EVALUATION))}")

    def note(self, text: str) -> None:
        """Write a permanent line above the live one."""
        self._write(printable(text))

    def redraw(self) -> None:
        """Draw the live line again, with the time that has passed."""
        if self._is_drawn:
            self._redraw()

    def erase(self) -> None:
        """Remove the live line, for a message of another writer; the next event draws it again."""
        if self._is_drawn:
            self._emit(CLEAR_LINE)
            self._is_drawn = False

    def _line(self) -> str:
        """The live line: the most important parts, as many as fit."""
        activity = f"{self._activity}  {self._count()}" if self._episodes else self._activity
        columns = get_terminal_size().columns - 1  # a line that wraps cannot be cleared
        # During an evaluation, the training reward would be taken for that of the evaluation.
        numbers = self._numbers if self._is_step else ()
        return fit([self._time_text(), activity, *numbers, self._bar()], columns)

    def _bar(self) -> str:
        filled = BAR_CELLS * self.time_left.steps_done // self._schedule.total_steps
        return "━" * filled + "─" * (BAR_CELLS - filled)

    def _count(self) -> str:
        return f"{self._done}/{self._episodes} episodes"

    def _time_text(self) -> str:
        seconds = self.time_left.seconds()
        if seconds is None:
            return f"{clock_time(self._clock() - self._started)} so far"
        return f"{clock_time(max(0.0, seconds - self.lap_s))} left"

    def _redraw(self) -> None:
        self._emit(CLEAR_LINE + self._line())
        self._is_drawn = True
        self._last_output = self._clock()

    def _write(self, line: str) -> None:
        if self._is_drawn:
            self._emit(f"{CLEAR_LINE}{line}\n{self._line()}")
        else:
            self._emit(f"{line}\n")
        self._last_output = self._clock()

    def _emit(self, text: str) -> None:
        if not self._has_reader:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            self._has_reader = False  # as after ``| head``; the run continues


def step_name(schedule: Schedule, stage: int, step: int) -> str:
    """``airline 1/3, step 4/10``."""
    domain = printable(schedule.domains[stage])
    return f"{domain} {stage + 1}/{len(schedule.domains)}, step {step}/{schedule.steps_per_task}"


def evaluation_name(schedule: Schedule, stage: int, step: int, *, row: int | None) -> str:
    """When an evaluation is made: before training, after a domain, or (None) within a stage."""
    if row is None:
        return f"{step_name(schedule, stage, step)}, evaluation"
    return f"after {schedule.domains[row - 1]}" if row else "before training"


def fit(parts: Sequence[str], columns: int) -> str:
    """As many of the first parts as fit into the columns; the first is cut if it does not."""
    line = parts[0][:columns]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > columns:
            break
        line = f"{line}  {part}"
    return line


def clock_time(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def printable(text: str) -> str:
    """``text`` without terminal control characters."""
    return "".join(char if char.isprintable() else "�" for char in text)


def labels(values: Mapping[str, Any], formats: Mapping[str, tuple[str, str]]) -> list[str]:
    """The numbers that are known, each with its label."""
    return [
        f"{label} {format(values[name], form)}"
        for name, (label, form) in formats.items()
        if values.get(name) is not None
    ]


def _speed(values: Mapping[str, Any]) -> list[str]:
    tokens, seconds = values.get("generated_tokens"), values.get("step_s")
    return [f"{tokens / seconds:,.0f} tokens/s"] if tokens and seconds else []


def _equal_groups(values: Mapping[str, Any]) -> list[str]:
    """Groups without variance, which give no gradient."""
    equal, groups = values.get("zero_variance_groups"), values.get("groups")
    return [f"{equal:.0f}/{groups:.0f} groups equal"] if groups and equal is not None else []
