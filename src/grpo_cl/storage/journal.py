"""Append-only journals: one JSON object per line, truncated to a checkpoint on resume."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from grpo_cl.errors import CheckpointError
from grpo_cl.storage.checksums import ChecksumWriter, Entries, Seal, has_checksum, read_lines
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import create_file, sync_folder, writing

BLOCK = 1 << 16


class Journal:
    """A journal open for writing; an incomplete last line is removed first."""

    def __init__(self, path: Path, *, has_checksums: bool = False) -> None:
        self.path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: an appended line is in the kernel and survives the process.
            self._file = path.open("ab", buffering=0)
            self._file.truncate(_complete_size(path))
        self._checksums = ChecksumWriter(path) if has_checksums else None

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one line atomically."""
        line = f"{encode(record)}\n".encode("ascii")
        size = self._size()
        remaining = memoryview(line)
        with writing(self.path):
            try:
                while remaining:
                    remaining = remaining[self._file.write(remaining) :]
                if self._checksums is not None:
                    self._checksums.append(line, size + len(line))
            except (OSError, CheckpointError):
                self._file.truncate(size)
                raise

    def offset(self) -> int:
        """Fsync, and return the size for the checkpoint."""
        with writing(self.path):
            os.fsync(self._file.fileno())
            sync_folder(self.path.parent)
        return self._size()

    def seal(self) -> Seal:
        """Fsync journal and checksums, and return their state for the checkpoint."""
        assert self._checksums is not None, f"{self.path} was opened without checksums"
        return self._checksums.seal(self.offset())

    def truncate(self, offset: int, seal: Seal | None = None) -> None:
        """Truncate to the size recorded in a checkpoint; ``seal`` is that of the checkpoint."""
        require_offset(self.path, offset)
        if self._checksums is not None:
            self._checksums.truncate(offset, seal)  # first: a reader finds no line missing
        with writing(self.path):
            self._file.truncate(offset)
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._checksums is not None:
            self._checksums.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def require_offset(path: Path, offset: int) -> None:
    """Raise ``CheckpointError`` unless a journal can be truncated to a checkpoint's ``offset``."""
    size = path.stat().st_size if path.exists() else 0
    if size < offset:
        raise CheckpointError(
            f"{path} has {size} bytes, but the checkpoint was made when it had {offset}; "
            "restore the file, or resume from an older checkpoint"
        )
    if not _ends_line(path, offset):
        raise CheckpointError(
            f"byte {offset} of {path} is inside a line, so the file is not the one the "
            "checkpoint was made with; resume from an older checkpoint"
        )


def copy_lines(path: Path, target: Path, *, start: int = 0, end: int | None = None) -> int:
    """Copy the bytes from ``start`` to ``end`` of a journal to a new file; the number of lines."""
    count = 0
    with writing(target), create_file(target) as copy:
        if path.exists():
            with path.open("rb") as file:
                file.seek(start)
                remaining = (path.stat().st_size if end is None else end) - start
                while block := file.read(min(BLOCK, max(0, remaining))):
                    copy.write(block)
                    count += block.count(b"\n")
                    remaining -= len(block)
        copy.flush()
        os.fsync(copy.fileno())
    return count


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal, which may still be growing; none if it does not exist.

    Lines are compared with their checksums if the journal has some.
    """
    held = Entries.read(path)  # before the journal: a line is written before its checksum
    number = 0
    # What follows the last newline is being written, or incomplete after a crash.
    for number, line in enumerate(read_lines(path), 1):
        if number <= len(held) and not has_checksum(line, held[number - 1]):
            raise CheckpointError(
                f"{path}, line {number} is not the one that was written; {_remedy(path)}"
            )
        yield _parse(line, f"{path}, line {number}")
    if number < len(held):
        raise CheckpointError(
            f"{path} has {number} of the {len(held)} lines that were written; {_remedy(path)}"
        )


def _remedy(path: Path) -> str:
    return (
        "restore the file, or go on without its damaged lines: grpo-cl train --resume_from "
        f"{path.parent} --accept_damage"
    )


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise CheckpointError(
            f"{where} is damaged ({error}); remove it to read the rest"
        ) from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{where} is not a JSON object; remove it to read the rest")
    return record


def _complete_size(path: Path) -> int:
    """Size up to and including the last newline."""
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
