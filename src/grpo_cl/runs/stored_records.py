"""The records of a reservoir: new ones in memory, saved ones in their file until they are read."""

import os
import weakref
from array import array
from collections.abc import Iterator, Sequence
from operator import eq
from pathlib import Path
from typing import TypeVar, overload
from zlib import crc32

from pydantic import ValidationError
from typing_extensions import override

from grpo_cl.errors import TaskDataError
from grpo_cl.storage.encoding import encode
from grpo_cl.types import Record

R = TypeVar("R", bound=Record)


class RecordFile:
    """A file of JSON lines from which single lines are read, also after it was deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at a place."""
        return os.pread(self._descriptor, size, offset)


class Places:
    """Where the records stand in a file, with a checksum of each."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self._sizes = array("q")
        self._checksums = array("L")

    def add(self, offset: int, line: bytes) -> None:
        """Add the place of the next record."""
        self.offsets.append(offset)
        self._sizes.append(len(line))
        self._checksums.append(crc32(line))

    def reserve(self) -> None:
        """Add the place of a record that is not in the file."""
        self.add(0, b"")

    def read(self, slot: int, file: RecordFile) -> bytes:
        """The record in ``slot``; one that was damaged since it was added is refused."""
        line = file.read(self.offsets[slot], self._sizes[slot])
        if crc32(line) != self._checksums[slot]:
            raise TaskDataError(
                f"{file.path} was damaged while it was in use: the record at byte "
                f"{self.offsets[slot]} has another checksum; resume from another checkpoint"
            )
        return line


class StoredRecords(Sequence[R]):
    """Records in numbered slots; one that was saved is parsed each time it is read."""

    def __init__(self, kind: type[R]) -> None:
        self._kind = kind
        self._file: RecordFile | None = None
        self._places = Places()
        self._recent: dict[int, R] = {}  # slots filled since they were saved

    @override
    def __len__(self) -> int:
        return len(self._places.offsets)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> "Sequence[R]": ...
    @override
    def __getitem__(self, index: int | slice) -> "R | Sequence[R]":
        if isinstance(index, slice):
            return [self[slot] for slot in range(len(self))[index]]
        slot = range(len(self))[index]
        if slot in self._recent:
            return self._recent[slot]
        line = self.line(slot)
        try:
            return self._kind.model_validate_json(line)
        except ValidationError as error:
            assert self._file is not None
            raise TaskDataError(
                f"{self._file.path} has a damaged record at byte {self._places.offsets[slot]}; "
                "load the trajectories of another checkpoint"
            ) from error

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredRecords):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it grows

    def append(self, record: R) -> None:
        """Fill the next slot."""
        self._recent[len(self)] = record
        self._places.reserve()

    def __setitem__(self, slot: int, record: R) -> None:
        self._recent[slot] = record

    def line(self, slot: int) -> bytes:
        """The record as JSON, without parsing one that was saved."""
        if slot in self._recent:
            return encode(self._recent[slot].model_dump(mode="json")).encode("ascii")
        assert self._file is not None
        return self._places.read(slot, self._file)

    def lines(self) -> Iterator[bytes]:
        """All records as JSON."""
        return map(self.line, range(len(self)))

    def stored(self, file: RecordFile, places: Places) -> None:
        """All records are in ``file`` at these places; none is kept in memory."""
        self._file, self._places = file, places
        self._recent.clear()
