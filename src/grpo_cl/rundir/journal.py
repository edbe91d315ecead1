"""Journals: files that only grow, one JSON object per line, and that can be cut back."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from grpo_cl.errors import CheckpointError
from grpo_cl.rundir.encoding import encode
from grpo_cl.rundir.files import sync_folder, writing

BLOCK = 1 << 16


class Journal:
    """A journal open for writing; a line that a crash left unfinished is cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a line is with the system, and outlives the process, once it is appended.
            self._file = path.open("ab", buffering=0)
            self._file.truncate(_complete_size(path))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line, whole or not at all."""
        line = memoryview(f"{encode(record)}\n".encode("ascii"))
        size = self._size()
        with writing(self.path):
            try:
                while line:
                    line = line[self._file.write(line) :]
            except OSError:
                self._file.truncate(size)
                raise

    def offset(self) -> int:
        """Bytes written so far, to be kept in a checkpoint; they survive a power cut from now."""
        with writing(self.path):
            os.fsync(self._file.fileno())
            sync_folder(self.path.parent)
        return self._size()

    def truncate(self, offset: int) -> None:
        """Cut back to where a checkpoint found the journal."""
        size = self._size()
        if size < offset:
            raise CheckpointError(
                f"{self.path} has {size} bytes, but the checkpoint was made when it had {offset}; "
                "restore the file, or resume from an older checkpoint"
            )
        if not _ends_line(self.path, offset):
            raise CheckpointError(
                f"byte {offset} of {self.path} is inside a line, so the file is not the one the "
                "checkpoint was made with; resume from an older checkpoint"
            )
        with writing(self.path):
            self._file.truncate(offset)
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Give the file back; appending is over."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal that may still be growing; none if it was never begun."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # being written, or torn by a crash
            yield _parse(line, f"{path}, line {number}")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise CheckpointError(
            f"{where} is damaged ({error}); remove it to read the rest"
        ) from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{where} is no JSON object; remove it to read the rest")
    return record


def _complete_size(path: Path) -> int:
    """Bytes up to and including the last line end."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def _ends_line(path: Path, offset: int) -> bool:
    if offset == 0:
        return True
    with path.open("rb") as file:
        file.seek(offset - 1)
        return file.read(1) == b"\n"
