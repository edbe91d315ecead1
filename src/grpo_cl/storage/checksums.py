"""Checksums of a journal's lines, by which damage is found and located.

``NAME.jsonl.sha256`` has an entry of fixed width for each line of ``NAME.jsonl``: the first 16 hex
digits of the line's SHA-256, and the offset at which the line ends. A checkpoint has the number of
entries and the SHA-256 over all of them, so that the journal is verified even without that file,
and that file only locates the damage.
"""

import errno
import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self, overload

from typing_extensions import override

from grpo_cl.storage.files import create_file, writing

SUFFIX = ".sha256"
DIGITS = 16
WIDTH = DIGITS + 1 + 12 + 1
"""Bytes of an entry: checksum, space, end of the line as 12 hex digits, newline."""


class Seal(NamedTuple):
    """The state of a journal at a checkpoint."""

    size: int
    """Bytes of the journal."""
    lines: int
    sha256: str
    """SHA-256 over the entries of these lines."""


def checksums_file(journal: Path) -> Path:
    """The file with the checksums of ``journal``."""
    return journal.with_name(f"{journal.name}{SUFFIX}")


def checksum(line: bytes) -> str:
    """The checksum of one line, newline included."""
    return hashlib.sha256(line).hexdigest()[:DIGITS]


def entry(line: bytes, end: int) -> bytes:
    """The entry of a line that ends at the offset ``end``."""
    return f"{checksum(line)} {end:012x}\n".encode("ascii")


def has_checksum(line: bytes, held: bytes) -> bool:
    """Whether ``held`` is the entry of this line."""
    return held[:DIGITS] == checksum(line).encode("ascii")


def entries_of(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The entries of consecutive lines from the beginning of a file."""
    end = 0
    for line in lines:
        end += len(line)
        yield entry(line, end)


def read_lines(path: Path, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The complete lines of a file between two offsets; none if it does not exist."""
    if not path.exists():
        return
    position = start
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            position += len(line)
            if not line.endswith(b"\n") or (end is not None and position > end):
                return
            yield line


class Entries(Sequence[bytes]):
    """The entries in the file beside a journal, as one block of bytes: there may be millions."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @classmethod
    def read(cls, journal: Path) -> Self:
        """The entries of ``journal``; none if it has no file of checksums."""
        path = checksums_file(journal)
        return cls(path.read_bytes() if path.is_file() else b"")

    @override
    def __len__(self) -> int:
        return len(self._content) // WIDTH

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "Entries": ...
    @override
    def __getitem__(self, index: int | slice) -> "bytes | Entries":
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return Entries(self._content[start * WIDTH : stop * WIDTH])
        start = range(len(self))[index] * WIDTH
        return self._content[start : start + WIDTH]

    @property
    def sha256(self) -> str:
        """SHA-256 over all of them."""
        return self.digest().hexdigest()

    def digest(self) -> "hashlib._Hash":
        """The hash object over all of them, to be continued."""
        return hashlib.sha256(self._content[: len(self) * WIDTH])


class ChecksumWriter:
    """The checksums of a journal that is open for writing."""

    def __init__(self, journal: Path) -> None:
        """Open the file and make it cover the journal: what it lacks is read from there."""
        self.path = checksums_file(journal)
        self._journal = journal
        with writing(self.path):
            self._file = self.path.open("ab", buffering=0)
        self.lines = 0
        self._digest = hashlib.sha256()
        self.truncate(journal.stat().st_size)

    def append(self, line: bytes, end: int) -> None:
        """Add the checksum of a line that ends at ``end``."""
        added = entry(line, end)
        with writing(self.path):
            try:
                if self._file.write(added) != WIDTH:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                self._file.truncate(self.lines * WIDTH)
                raise
        self.lines += 1
        self._digest.update(added)

    def truncate(self, size: int, seal: Seal | None = None) -> None:
        """Leave the entries of the first ``size`` bytes of the journal, which are intact.

        If the entries are not those of ``seal``, they are computed anew.
        """
        held = Entries.read(self._journal)
        held = held[: bisect_left(held, size + 1, key=_end)]
        covered = _end(held[-1]) if held else 0
        is_other = seal is not None and held.sha256 != seal.sha256
        if is_other or not _is_line_end(self._journal, covered):
            held, covered = Entries(b""), 0
        with writing(self.path):
            self._file.truncate(len(held) * WIDTH)
        self.lines, self._digest = len(held), held.digest()
        for line in read_lines(self._journal, start=covered, end=size):
            covered += len(line)
            self.append(line, covered)

    def seal(self, size: int) -> Seal:
        """Fsync, and return the state for a checkpoint."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        return Seal(size, self.lines, self._digest.hexdigest())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def find_damage(journal: Path, seal: Seal) -> str | None:
    """How ``journal`` differs from what it was when it was sealed; None if it does not."""
    held = Entries.read(journal)[: seal.lines]
    is_located = held.sha256 == seal.sha256
    digest, count, first = hashlib.sha256(), 0, None
    for found in entries_of(read_lines(journal, end=seal.size)):
        if first is None and is_located and held[count : count + 1] and held[count] != found:
            first = count + 1
        digest.update(found)
        count += 1
    if (count, digest.hexdigest()) == (seal.lines, seal.sha256):
        return None
    if not journal.exists():
        return f"{journal} is missing, with {seal.lines} lines"
    if first is not None:
        return f"{journal} is damaged: line {first} is not the one that was written"
    if count < seal.lines:
        return f"{journal} is damaged: of {seal.lines} lines {count} are left"
    return f"{journal} is not the file that the checkpoint was made with"


def extended_seal(journal: Path, seal: Seal | None) -> Seal | None:
    """The seal of all lines that have checksums; ``seal`` if these do not continue it."""
    held = Entries.read(journal)
    if seal is not None and held[: seal.lines].sha256 != seal.sha256:
        return seal
    return Seal(_end(held[-1]), len(held), held.sha256) if held else seal


class Repair(NamedTuple):
    """A journal without its damaged lines."""

    seal: Seal
    lost: int
    """Lines that are no longer there; 0 if it is not known how many there were."""


def repair(journal: Path, seal: Seal, *, aside: Path) -> Repair:
    """Move a damaged journal to ``aside`` and write its intact lines up to ``seal`` anew."""
    with writing(journal):
        if journal.exists():
            journal.rename(aside)
    held = Entries.read(journal)[: seal.lines]
    is_located = held.sha256 == seal.sha256
    lines = read_lines(aside)
    # Without checksums whatever can be read is kept.
    kept = _intact(lines, held) if is_located else filter(_is_record, lines)
    digest, count, size = hashlib.sha256(), 0, 0
    with writing(journal), create_file(journal) as file:
        for line in kept:
            if not is_located and size + len(line) > seal.size:
                break
            size += len(line)
            count += 1
            file.write(line)
            digest.update(entry(line, size))
        file.flush()
        os.fsync(file.fileno())
    checksums_file(journal).unlink(missing_ok=True)  # written anew when the journal is opened
    return Repair(Seal(size, count, digest.hexdigest()), max(0, seal.lines - count))


def _intact(lines: Iterable[bytes], held: Entries) -> Iterator[bytes]:
    """The lines that have an entry, in the order of the entries."""
    places: dict[bytes, list[int]] = {}
    for place, known in enumerate(held):
        places.setdefault(known[:DIGITS], []).append(place)
    expected = 0
    for line in lines:
        candidates = places.get(checksum(line).encode("ascii"), [])
        index = bisect_left(candidates, expected)
        if index < len(candidates):
            expected = candidates[index] + 1
            yield line


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _end(held: bytes) -> int:
    try:
        return int(held[DIGITS + 1 :], 16)
    except ValueError:
        return -1  # damaged


def _is_line_end(path: Path, offset: int) -> bool:
    if offset <= 0:
        return offset == 0
    with path.open("rb") as file:
        file.seek(offset - 1)
        return file.read(1) == b"\n"
