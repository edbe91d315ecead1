"""Checkpoints: folders that appear whole or not at all, and that can be proved undamaged.

A folder is filled under a temporary name, each file is synced and listed with its size and SHA-256
in MANIFEST.json, and a rename publishes it. A process killed at any moment leaves a checkpoint
that verifies, or a name that nobody takes for one. Where a checkpoint replaces one of its name, the
files that are the same are linked to, so that nothing goes to the disk twice.
"""

import filecmp
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from grpo_cl.errors import CheckpointError
from grpo_cl.rundir.encoding import encode
from grpo_cl.rundir.files import TEMPORARY, sync_folder, write_file, writing
from grpo_cl.types import Record

MANIFEST = "MANIFEST.json"
FORMAT = 1

DELETED = ".del-"
"""Begins the name of a checkpoint that is being deleted."""
REPLACED = ".old-"
"""Begins the name of a checkpoint until its successor of the same name is in place."""


class FileEntry(Record):
    """What one file of a checkpoint must be."""

    size: int
    sha256: str


class Manifest(Record):
    """Every file of a checkpoint, by its path in the folder."""

    format: int
    files: dict[str, FileEntry]


class Damage(NamedTuple):
    """A checkpoint that must not be loaded, and the first thing wrong with it."""

    path: Path
    problem: str


class Latest(NamedTuple):
    """The newest checkpoint that verifies, and the newer ones that do not."""

    path: Path | None
    damaged: list[Damage]


def save_checkpoint(
    parent: Path, name: str, fill: Callable[[Path], None], *, keep: int | None
) -> Path:
    """Publish what ``fill`` writes into the folder it is given as ``parent/name``.

    Of the older checkpoints whose names differ only in their number the newest are left, so that
    ``keep`` remain in all; None leaves every one.
    """
    assert name == Path(name).name and not name.startswith("."), name
    target = parent / name
    temporary = parent / f"{TEMPORARY}{name}"
    with writing(target):
        parent.mkdir(parents=True, exist_ok=True)
        tidy(parent)
        try:
            temporary.mkdir()
            fill(temporary)
            _reuse(temporary, target)
            _seal(temporary)
            _publish(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if keep is not None:
            for old in _older(target)[keep - 1 :]:
                _delete(old)
    return target


def verify(path: Path) -> str | None:
    """The first thing wrong with a checkpoint, or None if it is what was saved."""
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
    """The newest checkpoint of ``parent`` that verifies; changes nothing, so a live run is safe."""
    damaged: list[Damage] = []
    for path in _checkpoints(parent):
        problem = verify(path)
        if problem is None:
            return Latest(path, damaged)
        damaged.append(Damage(path, problem))
    return Latest(None, damaged)


def require_checkpoint(path: Path) -> Path:
    """``path`` if it verifies; otherwise an error that names an older one to use instead."""
    problem = verify(path)
    if problem is None:
        return path
    good = next((older for older in _older(path) if verify(older) is None), None)
    cure = f"use {good} instead" if good else "there is no older good one, start a new run"
    raise CheckpointError(
        f"checkpoint {path} is damaged: {problem}; nothing was loaded from it, {cure}"
    )


def drop_newer(parent: Path, kind: str, *, than: int) -> None:
    """Delete the checkpoints named ``kind`` and a number above ``than``.

    A run that goes on from an older checkpoint must not find its abandoned future later.
    """
    with writing(parent):
        for path in _checkpoints(parent):  # newest first, so that a crash leaves no gap
            found, number = _age(path.name)
            if found == kind and number > than:
                _delete(path)


def tidy(parent: Path) -> None:
    """Remove what a killed process left half done; only for the process that writes here."""
    for path in sorted(parent.glob(".*")) if parent.is_dir() else ():
        replaced = parent / path.name.removeprefix(REPLACED)
        if path.name.startswith(REPLACED) and not replaced.exists():
            path.rename(replaced)
        elif path.name.startswith((TEMPORARY, DELETED, REPLACED)):
            _remove(path)


def _reuse(folder: Path, replaced: Path) -> None:
    """Take the files of the checkpoint that is replaced where they have the same bytes.

    They are on the disk; what was written again is in memory as yet and need not go there.
    """
    for name, path in _files(folder).items():
        old, spare = replaced / name, path.with_name(f"{TEMPORARY}{path.name}")
        try:
            if _is_plain(path) and _is_plain(old) and filecmp.cmp(path, old, shallow=False):
                spare.hardlink_to(old)
                spare.replace(path)
        except OSError:
            continue  # the old one cannot be read or linked to; the new one is as good


def _seal(folder: Path) -> None:
    files = {name: _sealed(path, name) for name, path in sorted(_files(folder).items())}
    assert MANIFEST not in files, f"{MANIFEST} is the store's own file"
    listed = Manifest(format=FORMAT, files=files)
    for inner in folder.rglob("*"):
        if inner.is_dir():
            sync_folder(inner)
    write_file(folder / MANIFEST, [encode(listed.model_dump(), indent=1)])


def _sealed(path: Path, name: str) -> FileEntry:
    if not _is_plain(path):
        raise CheckpointError(f"{name} is no plain file; a checkpoint holds copies, not links")
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(size=file.tell(), sha256=digest)


def _problem(path: Path, name: str, entry: FileEntry) -> str | None:
    if not _is_plain(path):
        return f"{name} is no plain file"
    try:
        size = path.stat().st_size
        if size != entry.size:
            return f"{name} has {size} bytes instead of {entry.size}"
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return None if digest == entry.sha256 else f"{name} fails its checksum"


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _files(folder: Path) -> dict[str, Path]:
    """Everything in a folder that is no folder itself, links to folders too."""
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
    doomed = path.with_name(f"{DELETED}{path.name}")
    path.rename(doomed)
    _remove(doomed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # what is left has a name nobody reads
    else:
        path.unlink(missing_ok=True)


def _checkpoints(parent: Path) -> list[Path]:
    """The numbered folders of ``parent``, newest first."""
    if not parent.is_dir():
        return []
    found = [path for path in parent.iterdir() if path.is_dir() and _is_numbered(path.name)]
    return sorted(found, key=lambda path: _age(path.name), reverse=True)


def _older(path: Path) -> list[Path]:
    """The checkpoints beside ``path`` with its name and a lower number, newest first."""
    kind, number = _age(path.name)
    ages = ((beside, _age(beside.name)) for beside in _checkpoints(path.parent))
    return [beside for beside, age in ages if age[0] == kind and age[1] < number]


def _is_numbered(name: str) -> bool:
    return not name.startswith(".") and name[-1:].isdecimal()


def _age(name: str) -> tuple[str, int]:
    digits = re.search(r"[0-9]*$", name)
    assert digits is not None
    return name[: digits.start()], int(digits.group() or 0)
