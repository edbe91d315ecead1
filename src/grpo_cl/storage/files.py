"""Atomic file writes: after a crash a file has its old or its new content."""

import errno
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from grpo_cl.errors import CheckpointError
from grpo_cl.storage.encoding import encode

TEMPORARY = ".tmp-"
"""Prefix of unfinished files and directories; they may be removed at any time."""
_RANDOM_BYTES = 8
LEFTOVER = re.compile(rf"{re.escape(TEMPORARY)}.+-[0-9a-f]{{{2 * _RANDOM_BYTES}}}", re.DOTALL)
"""The names of ``temporary_path``."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn an ``OSError`` into a ``CheckpointError`` that says what to do."""
    try:
        yield
    except _write_errors() as error:
        code = error.errno if isinstance(error, OSError) else _os_error(error)
        reason = os.strerror(code) if code else str(error)
        raise CheckpointError(f"cannot write {path}: {reason}; {_remedy(code)}") from error


def _write_errors() -> tuple[type[Exception], ...]:
    """``OSError``, and that of safetensors, an optional package, if it was imported."""
    safetensors = sys.modules.get("safetensors")
    return (OSError,) if safetensors is None else (OSError, safetensors.SafetensorError)


def _os_error(error: Exception) -> int | None:
    """The error number in a message of safetensors, whose errors have no other."""
    match = re.search(r"\(os error ([0-9]+)\)", str(error))
    return int(match[1]) if match else None


def _remedy(code: int | None) -> str:
    if code in _FULL:
        remedy = "free some space"
    elif code in _REFUSED:
        remedy = "make the directory writable"
    else:
        remedy = "check the disk and the path"
    return f"{remedy} and resume; earlier checkpoints are intact"


def write_file(path: Path, chunks: Iterable[str | bytes]) -> None:
    """Replace ``path`` atomically: temporary file, fsync, rename, fsync of the directory."""
    temporary = temporary_path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with create_file(temporary) as file:
                file.writelines(map(_as_bytes, chunks))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def temporary_path(path: Path) -> Path:
    """An unused name in the directory of ``path``, by which a leftover is recognised as ours."""
    return path.with_name(f"{TEMPORARY}{path.name[:40]}-{secrets.token_hex(_RANDOM_BYTES)}")


def create_file(path: Path) -> BinaryIO:
    """Open a new file for writing; one that exists is never opened, and no link is followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def _as_bytes(chunk: str | bytes) -> bytes:
    return chunk.encode("utf-8", "backslashreplace") if isinstance(chunk, str) else chunk


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON."""
    write_file(path, [encode(value, indent=2), "\n"])


def link_file(source: Path | str, target: Path | str) -> None:
    """Hard-link a file that is never modified; copy it where the disk has no links."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)


def read_json(path: Path) -> Any:
    """Read a JSON file; ``CheckpointError`` if it is missing or damaged."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}; is it a run directory?"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}); restore it, or resume from an older checkpoint"
        ) from error


def sync_folder(path: Path) -> None:
    """Fsync a directory, so that added and removed names survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
