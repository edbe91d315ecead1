"""Checkpoints: directories that are written atomically and verified by checksums.

A directory is filled under a temporary name, each file is synced and listed with its size and
SHA-256 in MANIFEST.json, and a rename publishes it. A process killed at any time leaves either a
checkpoint that verifies, or a temporary name that is ignored. When a checkpoint replaces one of the
same name, unchanged files are hard-linked instead of written again.
"""

import filecmp
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from grpo_cl.errors import CheckpointError
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import LEFTOVER, TEMPORARY, sync_folder, write_file, writing
from grpo_cl.types import Record

MANIFEST = "MANIFEST.json"
FORMAT = 1

DELETED = ".del-"
"""Prefix of a checkpoint that is being deleted."""
REPLACED = ".old-"
"""Prefix of a checkpoint until its replacement of the same name is in place."""


class FileEntry(Record):
    """Size and checksum of one file."""

    size: int
    sha256: str


class Manifest(Record):
    """All files of a checkpoint, by relative path."""

    format: int
    files: dict[str, FileEntry]


class Damage(NamedTuple):
    """A damaged checkpoint, with the first problem found."""

    path: Path
    problem: str


class Latest(NamedTuple):
    """The newest checkpoint that verifies, and the newer ones that do not."""

    path: Path | None
    damaged: list[Damage]


@dataclass(frozen=True)
class Draft:
    """A checkpoint whose files are written under a temporary name."""

    target: Path
    keep: int | None
    is_spared: Callable[[Path], bool]

    @property
    def folder(self) -> Path:
        """The temporary directory."""
        return self.target.with_name(f"{TEMPORARY}{self.target.name}")

    def publish(self) -> Path:
        """Sync the files, list them with their checksums, and give the directory its name."""
        with writing(self.target):
            try:
                _reuse(self.folder, self.target)
                _seal(self.folder)
                _publish(self.folder, self.target)
            finally:
                shutil.rmtree(self.folder, ignore_errors=True)
            if self.keep is not None:
                for old in _older(self.target)[self.keep - 1 :]:
                    if not self.is_spared(old):
                        _delete(old)
        return self.target


def draft_checkpoint(
    parent: Path,
    name: str,
    fill: Callable[[Path], None],
    *,
    keep: int | None,
    is_spared: Callable[[Path], bool] = lambda path: False,
) -> Draft:
    """The checkpoint ``parent/name`` with the files that ``fill`` writes, not yet published.

    When it is published, the newest ``keep`` of the checkpoints whose names differ only in their
    number remain, and those that are spared; None keeps all. A directory has one draft at a time.
    """
    assert name == Path(name).name and not name.startswith("."), name
    draft = Draft(parent / name, keep, is_spared)
    with writing(draft.target):
        parent.mkdir(parents=True, exist_ok=True)
        _tidy_checkpoints(parent, name)
        draft.folder.mkdir()  # fails if anything has that name, a link too
        with ExitStack() as on_error:
            on_error.callback(shutil.rmtree, draft.folder, ignore_errors=True)
            fill(draft.folder)
            on_error.pop_all()
    return draft


def save_checkpoint(
    parent: Path,
    name: str,
    fill: Callable[[Path], None],
    *,
    keep: int | None,
    is_spared: Callable[[Path], bool] = lambda path: False,
) -> Path:
    """Write and publish the checkpoint ``parent/name``."""
    return draft_checkpoint(parent, name, fill, keep=keep, is_spared=is_spared).publish()


class CheckpointPublisher:
    """Publishes drafts in a thread, in order: training goes on while files reach the disk."""

    def __init__(self) -> None:
        self._last: Future[Path] | None = None

    def save(self, draft: Callable[[], Draft]) -> None:
        """Write a draft now and publish it in the thread, after the one before is published."""
        self.wait()
        thread = ThreadPoolExecutor(1, "checkpoint")
        self._last = thread.submit(draft().publish)
        thread.shutdown(wait=False)  # it ends when the checkpoint is published

    def wait(self) -> None:
        """Wait until what was saved is published; raises the error if it could not be."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


def verify(path: Path) -> str | None:
    """The first problem of a checkpoint, or None if it is intact."""
    try:
        listed = Manifest.model_validate_json((path / MANIFEST).read_bytes())
        found = _files(path)
    except OSError as error:
        return f"{MANIFEST} cannot be read: {error.strerror}"
    except ValidationError:
        return f"{MANIFEST} is damaged"
    if listed.format != FORMAT:
        return f"{MANIFEST} has format {listed.format}, this release reads {FORMAT}"
    found.pop(MANIFEST, None)
    missing = sorted(listed.files.keys() - found.keys())
    if missing:
        return f"{missing[0]} is missing"
    extra = sorted(found.keys() - listed.files.keys())
    if extra:
        return f"{extra[0]} was added after the checkpoint was made"
    problems = (_problem(found[name], name, entry) for name, entry in listed.files.items())
    return next(filter(None, problems), None)


def latest_checkpoint(parent: Path) -> Latest:
    """The newest checkpoint of ``parent`` that verifies; read-only, so safe beside a live run."""
    damaged: list[Damage] = []
    for path in _checkpoints(parent):
        problem = verify(path)
        if problem is None:
            return Latest(path, damaged)
        damaged.append(Damage(path, problem))
    return Latest(None, damaged)


def newest_checkpoint(parent: Path) -> Path | None:
    """The newest checkpoint of ``parent``, which may be damaged."""
    return next(iter(_checkpoints(parent)), None)


def require_checkpoint(path: Path) -> Path:
    """``path`` if it verifies; the error otherwise names an older intact checkpoint."""
    problem = verify(path)
    if problem is None:
        return path
    good = next((older for older in _older(path) if verify(older) is None), None)
    remedy = f"use {good} instead" if good else "no older one is intact, start a new run"
    raise CheckpointError(
        f"checkpoint {path} is damaged: {problem}; nothing was loaded from it, {remedy}"
    )


def require_sealed(path: Path) -> None:
    """Refuse a damaged stage model: one in a directory with a manifest that does not verify."""
    folder = path.parent
    if not (folder / MANIFEST).is_file():
        return
    stats = ((name, file.lstat()) for name, file in _files(folder).items())
    stamps = tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    if problem := _verified(folder, stamps):
        raise CheckpointError(
            f"the model {path} is not the one that was saved: in {path.parent}, {problem}; restore "
            "it, or use the model of another stage"
        )


@lru_cache(maxsize=8)
def _verified(folder: Path, stamps: tuple[tuple[str, int, int], ...]) -> str | None:
    """``verify``, once for all loads of the same files: it reads every byte."""
    del stamps
    return verify(folder)


def numbered_after(parent: Path, kind: str, number: int) -> list[Path]:
    """The checkpoints named ``kind`` with a higher number, newest first."""
    ages = ((path, _age(path.name)) for path in _checkpoints(parent))
    return [path for path, age in ages if age[0] == kind and age[1] > number]


def tidy(parent: Path) -> None:
    """Remove or restore leftovers of a killed process; only for the process that writes here.

    Only names that this package makes are touched: those of ``temporary_path``, and the prefixes
    of checkpoints before a checkpoint's name.
    """
    _tidy_checkpoints(parent)
    for path in parent.glob(f"{TEMPORARY}*"):
        if LEFTOVER.fullmatch(path.name):
            _remove(path)


def _tidy_checkpoints(parent: Path, name: str | None = None) -> None:
    """Remove or restore leftovers of checkpoints: numbered ones, and the one called ``name``."""
    for path in sorted(parent.glob(".*")) if parent.is_dir() else ():
        prefix = next((p for p in (TEMPORARY, DELETED, REPLACED) if path.name.startswith(p)), None)
        if prefix is None:
            continue
        saved = path.name.removeprefix(prefix)
        if saved != name and not _is_numbered(saved):
            continue
        if prefix == REPLACED and not (parent / saved).exists():
            path.rename(parent / saved)
        else:
            _remove(path)


def _reuse(folder: Path, replaced: Path) -> None:
    """Hard-link files of the replaced checkpoint that have the same bytes.

    They are on the disk already; the new copies are only in the page cache and need no flush.
    """
    for name, path in _files(folder).items():
        old, spare = replaced / name, path.with_name(f"{TEMPORARY}{path.name}")
        try:
            if _is_regular(path) and _is_regular(old) and filecmp.cmp(path, old, shallow=False):
                spare.hardlink_to(old)
                spare.replace(path)
        except OSError:
            spare.unlink(missing_ok=True)  # the old file cannot be read or linked: keep the copy


def _seal(folder: Path) -> None:
    files = {name: _sealed(path, name) for name, path in sorted(_files(folder).items())}
    assert MANIFEST not in files, f"{MANIFEST} is reserved"
    listed = Manifest(format=FORMAT, files=files)
    for inner in folder.rglob("*"):
        if inner.is_dir():
            sync_folder(inner)
    write_file(folder / MANIFEST, [encode(listed.model_dump(), indent=1)])


def _sealed(path: Path, name: str) -> FileEntry:
    if not _is_regular(path):
        raise CheckpointError(f"{name} is not a regular file; a checkpoint holds copies, not links")
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(size=file.tell(), sha256=digest)


def _problem(path: Path, name: str, entry: FileEntry) -> str | None:
    if not _is_regular(path):
        return f"{name} is not a regular file"
    try:
        size = path.stat().st_size
        if size != entry.size:
            return f"{name} has {size} bytes instead of {entry.size}"
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return None if digest == entry.sha256 else f"{name} fails its checksum"


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _files(folder: Path) -> dict[str, Path]:
    """All files of a directory by relative path, symbolic links included."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def _publish(temporary: Path, target: Path) -> None:
    replaced = target.with_name(f"{REPLACED}{target.name}")
    if target.exists():
        target.rename(replaced)
    temporary.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _delete(path: Path) -> None:
    renamed = path.with_name(f"{DELETED}{path.name}")
    path.rename(renamed)
    _remove(renamed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # a rest keeps a name that is ignored
    else:
        path.unlink(missing_ok=True)


def _checkpoints(parent: Path) -> list[Path]:
    """The numbered directories of ``parent``, newest first.

    One that was being replaced when the process was killed counts, until its successor is there.
    """
    if not parent.is_dir():
        return []
    folders = [path for path in parent.iterdir() if path.is_dir()]
    published = {path.name: path for path in folders if _is_numbered(path.name)}
    replaced = {
        name: path
        for path in folders
        if path.name.startswith(REPLACED) and _is_numbered(name := path.name.removeprefix(REPLACED))
    }
    found = replaced | published
    return [found[name] for name in sorted(found, key=_age, reverse=True)]


def _older(path: Path) -> list[Path]:
    """The checkpoints of the same kind with a lower number, newest first."""
    kind, number = _age(path.name)
    ages = ((other, _age(other.name)) for other in _checkpoints(path.parent))
    return [other for other, age in ages if age[0] == kind and age[1] < number]


def _is_numbered(name: str) -> bool:
    """Whether a checkpoint is called so, and not a copy that somebody made of one."""
    return re.fullmatch(r"(?:step|checkpoint_task)_[0-9]+", name) is not None


def _age(name: str) -> tuple[str, int]:
    name = name.removeprefix(REPLACED)
    digits = re.search(r"[0-9]*$", name)
    assert digits is not None
    return name[: digits.start()], int(digits.group() or 0)
