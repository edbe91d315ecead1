"""Counts the file operations of a process, and kills or fails it at the n-th.

Python's audit events name files that are opened, renamed, linked and removed; the profiler sees
calls of ``write``, ``truncate`` and ``fsync``. So nothing of the program is replaced.
"""

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

EVENTS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"})
METHODS = frozenset({"write", "writelines", "truncate"})
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

Spring = Callable[[str], None]
"""Called before the n-th operation, with its description."""


def die(operation: str) -> NoReturn:
    """Kill this process."""
    del operation
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def fill_disk(operation: str) -> NoReturn:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation)


class Trap:
    """Notes the operations on files under ``folder`` and springs before the n-th, from 0."""

    def __init__(self, folder: Path, at: int | None = None, spring: Spring = die) -> None:
        self.operations: list[str] = []
        self._folder = str(folder.resolve())
        self._at = at
        self._spring = spring

    def set(self) -> None:
        """Watch this process from now on; it cannot be undone."""
        sys.addaudithook(self._audit)
        sys.setprofile(self._profile)
        threading.setprofile(self._profile)

    def _note(self, operation: str) -> None:
        self.operations.append(operation)
        if len(self.operations) - 1 == self._at:
            self._spring(operation)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS:
            return
        if event == "open" and not int(arguments[2]) & WRITING:
            return
        path = arguments[0]
        # With a descriptor of a directory, as rmtree has it, the path is relative to it.
        in_descriptor = event in ("os.remove", "os.rmdir") and arguments[-1] != -1
        if isinstance(path, bytes | str) and (in_descriptor or self._is_inside(path)):
            self._note(f"{event} {Path(os.fsdecode(path)).name}")

    def _is_inside(self, path: bytes | str) -> bool:
        return str(Path(os.fsdecode(path)).absolute()).startswith(self._folder)

    def _profile(self, frame: FrameType, event: str, function: Any) -> None:
        del frame
        if event != "c_call":
            return
        name = function.__name__
        if name == "fsync":
            self._note("fsync")
        elif name == "serialize_file":  # safetensors
            self._note("serialize_file")
        elif name in METHODS and isinstance(function.__self__, io.IOBase):
            file: Any = function.__self__
            path = getattr(file, "name", None)
            if isinstance(path, str) and self._is_inside(path):
                self._note(f"{name} {Path(path).name}")
