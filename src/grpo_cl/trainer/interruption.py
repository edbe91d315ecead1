"""A process that is asked to end finishes its step, saves, and ends."""

import signal
import threading
from types import FrameType
from typing import Self

STATUS = 128 + signal.SIGTERM
"""The exit status of a run that was asked to end and did."""


class Interruption:
    """Remembers a SIGTERM instead of dying of it; a second one kills as usual."""

    def __init__(self) -> None:
        self.is_asked = False
        self._listens = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._listens:
            self._previous = signal.signal(signal.SIGTERM, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        if self._listens:
            signal.signal(signal.SIGTERM, self._previous)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.is_asked = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
