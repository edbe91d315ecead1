"""Checksums of the JSON files of a run directory that are read back.

``checksums.json`` has the SHA-256 of each. It is written before the file is replaced, with the old
checksum beside the new one, so that a process killed in between leaves a file that has one of them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_cl.errors import CheckpointError
from grpo_cl.runs.state_files import StateKind, read_state, write_state
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import read_json, write_file
from grpo_cl.types import Record

CHECKSUMS = "checksums.json"
OWN_CHECKSUM = "sha256"
"""The key of a file's checksum over its other keys."""


class FileChecksums(Record):
    """The contents of ``checksums.json``."""

    files: dict[str, list[str]]
    """The SHA-256 that each file has; two while it is being replaced."""


KIND = StateKind(
    "a list of checksums", FileChecksums, "restore it, or remove it to go on without checksums"
)


def begin_checksums(root: Path) -> None:
    """From now on the files of ``root`` have checksums."""
    if not (root / CHECKSUMS).exists():
        write_state(root / CHECKSUMS, KIND, {"files": {}})


def require_checksums(root: Path) -> None:
    """Raise ``CheckpointError`` if the checksums of ``root`` cannot be read."""
    if (root / CHECKSUMS).exists():
        read_state(root / CHECKSUMS, KIND)


def write_result(path: Path, chunks: Iterable[str]) -> None:
    """Replace a file atomically, with its checksum if its directory has some."""
    checksums = path.with_name(CHECKSUMS)
    if not checksums.exists():
        write_file(path, chunks)
        return
    content = "".join(chunks).encode("utf-8", "backslashreplace")
    files: dict[str, list[str]] = read_state(checksums, KIND)["files"]
    new = hashlib.sha256(content).hexdigest()
    held = files.get(path.name, [])[-1:]
    if held != [new]:
        write_state(checksums, KIND, {"files": {**files, path.name: [*held, new]}})
    write_file(path, [content])


def write_json_result(path: Path, value: Any) -> None:
    """Replace a file by ``value`` as indented JSON, with its checksum."""
    write_result(path, [encode(value, indent=2), "\n"])


def changed_file(path: Path) -> str | None:
    """A sentence if a file is not as it was written; None if it is, or has no checksum."""
    checksums = path.with_name(CHECKSUMS)
    if not path.exists() or not checksums.exists():
        return None
    held = read_state(checksums, KIND)["files"].get(path.name)
    if held is None or hashlib.sha256(path.read_bytes()).hexdigest() in held:
        return None
    return f"{path} was changed or damaged after the run wrote it"


def require_unchanged(path: Path, remedy: str) -> None:
    """Raise ``CheckpointError`` if a file is not as it was written."""
    if problem := changed_file(path):
        raise CheckpointError(f"{problem} (its SHA-256 is not in {CHECKSUMS}); {remedy}")


def written_again(path: Path) -> str:
    """What to do about a file that the run can write again from its checkpoint and journal."""
    return f"restore it, or write it again with grpo-cl train --resume_from {path.parent}"


def with_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """JSON data with a checksum of its own, for a file that differs between equal runs."""
    return {**value, OWN_CHECKSUM: _checksum(value)}


def read_with_checksum(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file of ``with_checksum``; {} if there is no file.

    A file without a checksum is of an earlier version if its directory has no checksums either.
    """
    value = read_json(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must contain a JSON object; {remedy}")
    held = value.pop(OWN_CHECKSUM, None)
    is_checked = held is not None or (path.exists() and path.with_name(CHECKSUMS).exists())
    if is_checked and held != _checksum(value):
        raise CheckpointError(f"{path} was changed or damaged after the run wrote it; {remedy}")
    return value


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(encode(value).encode("ascii")).hexdigest()
