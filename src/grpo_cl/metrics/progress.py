"""What a person at the console sees: a live line on a terminal, plain lines anywhere else."""

import time
from collections.abc import Callable, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any, TextIO

STALL_S = 30.0
"""Silence after which a plain log says what it is waiting for."""
REDRAW_S = 0.1
BAR_CELLS = 20
CLEAR_LINE = "\r\x1b[K"

_PLAIN = {"loss": ".4f", "reward_mean": ".3f", "reward_max": ".3f", "pass_rate": ".3f"}
_LIVE = {"reward_mean": ("reward", ".3f"), "pass_rate": ("passed", ".3f"), "loss": ("loss", ".4f")}
_EVALUATION = {"pass_rate": ".3f", "reward_mean": ".3f", "tool_accuracy": ".3f"}


class Progress:
    """Writes the progress of a run over ``domains`` to ``stream``."""

    def __init__(
        self,
        stream: TextIO,
        *,
        domains: Sequence[str],
        steps_per_task: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._domains = domains
        self._steps_per_task = steps_per_task
        self._clock = clock
        self._is_live = stream.isatty()
        self._pace = _Pace(clock())
        self._line = ""
        self._last_output = clock()
        self._last_done: tuple[int, float] = (0, clock())

    def step(self, task_idx: int, step: int, values: Mapping[str, Any]) -> None:
        """Show a finished training step; ``step`` updates of the stage are done."""
        self._pace.add(self._clock())
        if self._is_live:
            self._redraw(self._live_line(task_idx, step, values))
        else:
            self._write(f"Task {task_idx}, Step {step}: {_listed(values, _PLAIN)}")

    def evaluation(self, task_idx: int, domain: str, values: Mapping[str, Any]) -> None:
        """Show one measured domain on a line that stays."""
        self.note(f"Task {task_idx}, Eval {domain}: {_listed(values, _EVALUATION)}")

    def note(self, text: str) -> None:
        """Write a line that stays, above the live one."""
        self._write(printable(text))
        self._pace.skip(self._clock())

    def waiting(self, task_idx: int, step: int, *, done: int, total: int, what: str) -> None:
        """Show how far a step is; call it as often as you like while something is played.

        Where there is no terminal it writes a line only after ``STALL_S`` of silence.
        """
        now = self._clock()
        if done != self._last_done[0]:
            self._last_done = (done, now)
        quiet = now - self._last_output
        if self._is_live and quiet >= REDRAW_S:
            self._redraw(self._line, suffix=f"  {done}/{total} {what}")
        elif not self._is_live and quiet >= STALL_S:
            since = f"{now - self._last_done[1]:.0f} s since the last one"
            self._write(f"Task {task_idx}, Step {step}: waiting, {done}/{total} {what}, {since}")

    def close(self) -> None:
        """Leave the last live line on the screen and end it."""
        if self._line:
            self._stream.write("\n")
            self._stream.flush()
            self._line = ""

    def _live_line(self, task_idx: int, step: int, values: Mapping[str, Any]) -> str:
        finished = task_idx * self._steps_per_task + step
        total = len(self._domains) * self._steps_per_task
        filled = BAR_CELLS * finished // total
        parts = [
            f"{printable(self._domains[task_idx])} {task_idx + 1}/{len(self._domains)}",
            f"step {step}/{self._steps_per_task}",
            "━" * filled + "─" * (BAR_CELLS - filled),
            *_named(values, _LIVE),
        ]
        if "tokens" in values and values.get("step_s"):
            parts.append(f"{values['tokens'] / values['step_s']:,.0f} tokens/s")
        if (left := self._pace.left(total - finished)) is not None:
            parts.append(f"{clock_time(left)} left")
        return "  ".join(parts)

    def _redraw(self, line: str, suffix: str = "") -> None:
        columns = get_terminal_size().columns - 1  # a line that wraps cannot be cleared
        self._stream.write(CLEAR_LINE + (line + suffix)[:columns])
        self._stream.flush()
        self._line = line[:columns]
        self._last_output = self._clock()

    def _write(self, line: str) -> None:
        before = CLEAR_LINE if self._line else ""
        self._stream.write(f"{before}{line}\n{self._line}")
        self._stream.flush()
        self._last_output = self._clock()


class _Pace:
    """The mean time of a step, without the time spent on anything else."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._spent_s = 0.0
        self._steps = 0

    def add(self, now: float) -> None:
        self._spent_s += now - self._since
        self._steps += 1
        self._since = now

    def skip(self, now: float) -> None:
        self._since = now

    def left(self, steps: int) -> float | None:
        return steps * self._spent_s / self._steps if self._steps else None


def clock_time(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def printable(text: str) -> str:
    """``text`` without characters that could steer a terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def _listed(values: Mapping[str, Any], formats: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name}={format(values[name], form)}"
        for name, form in formats.items()
        if values.get(name) is not None
    )


def _named(values: Mapping[str, Any], formats: Mapping[str, tuple[str, str]]) -> list[str]:
    return [
        f"{label} {format(values[name], form)}"
        for name, (label, form) in formats.items()
        if values.get(name) is not None
    ]
