"""Types of the commands' arguments; a value that does not fit is refused before any work."""

import errno
import math
import os
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_cl.errors import ConfigError

LARGEST_COUNT = 1_000_000_000
LARGEST_SEED = 2**63 - 1
"""The largest seed that PyTorch and NumPy take."""


def integer(low: int, high: int = LARGEST_COUNT) -> Callable[[str], int]:
    """The type of an integer from ``low`` to ``high``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise ArgumentTypeError(f"{text!r} is not an integer from {low} to {high}")
        return value

    return read


def number(low: float, high: float, *, is_above: bool = False) -> Callable[[str], float]:
    """The type of a finite number from ``low`` to ``high``; ``is_above`` excludes ``low``."""
    start = f"above {low:g}" if is_above else f"from {low:g}"
    end = f" and up to {high:g}" if is_above else f" to {high:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (is_above and value == low):
            raise ArgumentTypeError(f"{text!r} is not a finite number {start}{end}")
        return value

    return read


count = integer(0)
positive = integer(1)
seed = integer(-LARGEST_SEED, LARGEST_SEED)
port = integer(0, 65535)
share = number(0, 1)


def text(value: str) -> str:
    """A text that is not empty."""
    if not value:
        raise ArgumentTypeError("'' is empty; leave the option out, or give a value")
    return value


def input_file(value: str) -> Path:
    """The path of an existing file."""
    path = Path(text(value))
    if not path.is_file():
        reason = "is a directory" if path.is_dir() else "does not exist"
        raise ArgumentTypeError(f"{value!r} {reason}; give a file")
    return path


def input_dir(value: str) -> Path:
    """The path of an existing directory."""
    path = Path(text(value))
    if not path.is_dir():
        reason = "is a file" if path.exists() else "does not exist"
        raise ArgumentTypeError(f"{value!r} {reason}; give a directory")
    return path


def input_path(value: str) -> Path:
    """The path of an existing file or directory."""
    path = Path(text(value))
    if not path.exists():
        raise ArgumentTypeError(f"{value!r} does not exist; give a file or a directory")
    return path


def output_file(value: str) -> Path:
    """The path of a file that can be written."""
    path = Path(text(value))
    if path.is_dir():
        raise ArgumentTypeError(f"{value!r} is a directory; give a file")
    _require_writable(path.parent, value)
    return path


def output_dir(value: str) -> Path:
    """The path of a directory that exists or can be made, and that can be written."""
    path = Path(text(value))
    _require_writable(path, value)
    return path


def _require_writable(folder: Path, value: str) -> None:
    """Write an unnamed file to the folder, or to the one in which it would be made."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ArgumentTypeError(
            f"{value!r} cannot be written: {existing}: {error.strerror}; choose another place"
        ) from error


def require_text(words: Sequence[str]) -> None:
    """Raise for an argument that is not Unicode text, which no file of a run could hold."""
    before = ""
    for word in words:
        if "\0" in word or any("\ud800" <= character <= "\udfff" for character in word):
            raise ConfigError(
                f"the argument {f'{before} {word}'.strip()!r} has a NUL character or bytes that "
                "are not UTF-8; give another value, or rename the file"
            )
        before = word
