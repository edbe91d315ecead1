"""Files that are either as they were or as they should be, even after a crash."""

import errno
import json
import os
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_cl.errors import CheckpointError
from grpo_cl.rundir.encoding import encode

TEMPORARY = ".tmp-"
"""Begins the name of what is not finished; it may be removed at any time."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn what the system refuses into one sentence that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"cannot write {path}: {reason}; {_way_out(error)}") from error


def _way_out(error: OSError) -> str:
    if error.errno in _FULL:
        cure = "free some space"
    elif error.errno in _REFUSED:
        cure = "make the directory writable"
    else:
        cure = "check the disk and the path"
    return f"{cure} and resume, what was saved before is untouched"


def write_file(path: Path, chunks: Iterable[str]) -> None:
    """Replace ``path`` as a whole: temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.writelines(chunk.encode("utf-8", "backslashreplace") for chunk in chunks)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON."""
    write_file(path, [encode(value, indent=2), "\n"])


def link_file(source: Path | str, target: Path | str) -> None:
    """One file under two names, on disks that can; for files that nobody writes into."""
    try:
        os.link(source, target)
    except OSError:  # another disk, or one that has no links
        shutil.copy2(source, target)


def read_json(path: Path) -> Any:
    """What ``write_json`` wrote, or a sentence about what is wrong with the file."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; is it a run's?") from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is no JSON ({error}); restore it, or resume from an older checkpoint"
        ) from error


def sync_folder(path: Path) -> None:
    """Make names that were added to or removed from a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
