"""The lock of a directory that one process writes; the kernel releases it when the process ends."""

import fcntl
import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from grpo_cl.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK_FILE = "lock"
"""Names the process that writes the directory; without one it exists only after a kill."""


@contextmanager
def locked(root: Path, *, remedy: str) -> Generator[None]:
    """Hold the lock of ``root``, which must exist; ``ConfigError`` if another process holds it.

    ``remedy`` completes the message "wait for it, or …".
    """
    path = root / LOCK_FILE
    file = _acquire(path, remedy)
    if file is None:
        yield
        return
    with file:
        file.truncate(0)
        file.write(_this_process().encode())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # before the lock is released, so that it is still ours


def require_unlocked(root: Path, *, remedy: str) -> None:
    """Raise ``ConfigError`` if a process holds the lock of ``root``; changes nothing."""
    try:
        file = (root / LOCK_FILE).open("rb")
    except OSError:
        return  # no process has locked it
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(root, file, remedy) from None
        except OSError:
            return  # the file system has no locks


def _acquire(path: Path, remedy: str) -> BinaryIO | None:
    """The locked file; None, with a warning, on a file system without locks."""
    while True:
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise _in_use(path.parent, file, remedy) from None
        except OSError as error:
            file.close()
            logger.warning(
                "%s cannot be locked (%s): start no second process in it", path.parent, error
            )
            return None
        if _is_same_file(file, path):
            return file
        file.close()  # its last holder removed it after it was opened here


def _open(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o666), "a+b")
    except OSError as error:
        raise ConfigError(
            f"{path.parent} cannot be locked: {path} cannot be written ({error.strerror}); remove "
            "it if it is not a lock file, or make the directory writable"
        ) from error


def _is_same_file(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _in_use(root: Path, file: BinaryIO, remedy: str) -> ConfigError:
    file.seek(0)
    holder = file.read().decode(errors="replace").strip() or "another process"
    return ConfigError(f"{root} is in use by {holder}; wait for it, or {remedy}")


def _this_process() -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}"
