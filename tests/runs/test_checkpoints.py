import json
import os
import resource
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from threading import Event
from time import sleep

import numpy as np
import pytest
from safetensors.numpy import save_file
from typing_extensions import override

from grpo_cl.errors import CheckpointError
from grpo_cl.runs.checkpoints import (
    MANIFEST,
    CheckpointPublisher,
    Damage,
    Draft,
    Latest,
    draft_checkpoint,
    latest_checkpoint,
    numbered_after,
    require_checkpoint,
    require_sealed,
    save_checkpoint,
    tidy,
    verify,
)
from grpo_cl.storage.files import write_file, write_json

WEIGHTS = "model/weights.safetensors"


def write_files(number: int) -> Callable[[Path], None]:
    """Writes two files of equal size and different content, the first in a folder, and a state."""

    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / WEIGHTS).write_bytes(Random(number).randbytes(5000))
        (folder / "optimizer.safetensors").write_bytes(Random(-number - 1).randbytes(5000))
        (folder / "state.json").write_text(json.dumps({"step": number}))

    return fill


def save(parent: Path, number: int, keep: int | None = None) -> Path:
    return save_checkpoint(parent, f"step_{number:08d}", write_files(number), keep=keep)


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


@contextmanager
def file_size_limit(size: int) -> Generator[None]:
    """Files cannot grow beyond ``size``, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_manifest_lists_nested_files_and_verifies(tmp_path: Path) -> None:
    path = save(tmp_path / "deep" / "checkpoints", 7)
    listed = json.loads((path / MANIFEST).read_text())["files"]
    assert sorted(listed) == [WEIGHTS, "optimizer.safetensors", "state.json"]
    assert listed[WEIGHTS]["size"] == 5000
    assert verify(path) is None
    assert names(path.parent) == ["step_00000007"]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda p: flip_a_bit(p / WEIGHTS), f"{WEIGHTS} fails its checksum"),
    "a truncated file": (
        lambda p: os.truncate(p / WEIGHTS, 4999),
        f"{WEIGHTS} has 4999 bytes instead of 5000",
    ),
    "an emptied file": (
        lambda p: os.truncate(p / "optimizer.safetensors", 0),
        "optimizer.safetensors has 0 bytes instead of 5000",
    ),
    "a missing file": (lambda p: (p / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
    "a missing folder": (lambda p: shutil.rmtree(p / "model"), f"{WEIGHTS} is missing"),
    "an extra file": (
        lambda p: (p / "model" / "extra.json").write_text("{}"),
        "model/extra.json was added after the checkpoint was made",
    ),
    "swapped files": (
        lambda p: [
            (p / WEIGHTS).rename(p / "x"),
            (p / "optimizer.safetensors").rename(p / WEIGHTS),
            (p / "x").rename(p / "optimizer.safetensors"),
        ],
        f"{WEIGHTS} fails its checksum",
    ),
    "a link in place of a file": (
        lambda p: [
            (p / WEIGHTS).rename(p.parent / "elsewhere"),
            (p / WEIGHTS).symlink_to(p.parent / "elsewhere"),
        ],
        f"{WEIGHTS} is not a regular file",
    ),
    "no manifest": (
        lambda p: (p / MANIFEST).unlink(),
        f"{MANIFEST} cannot be read: No such file or directory",
    ),
    "a truncated manifest": (lambda p: os.truncate(p / MANIFEST, 60), f"{MANIFEST} is damaged"),
    "a manifest of another format": (
        lambda p: (p / MANIFEST).write_text('{"format": 9, "files": {}}'),
        f"{MANIFEST} has format 9, this release reads 1",
    ),
    "an empty folder": (
        lambda p: [shutil.rmtree(p), p.mkdir()],
        f"{MANIFEST} cannot be read: No such file or directory",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_reported_with_the_previous_intact_checkpoint(kind: str, tmp_path: Path) -> None:
    damage, problem = DAMAGES[kind]
    older, newer = save(tmp_path, 9), save(tmp_path, 10)
    damage(newer)
    assert verify(newer) == problem
    assert latest_checkpoint(tmp_path) == Latest(older, [Damage(newer, problem)])
    with pytest.raises(CheckpointError) as raised:
        require_checkpoint(newer)
    assert problem in str(raised.value)
    assert f"use {older} instead" in str(raised.value)


def test_a_flipped_bit_of_the_manifest_is_detected_unless_it_is_white_space(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    intact = (path / MANIFEST).read_bytes()
    rng = Random(0)
    undetected = 0
    for position in rng.sample(range(len(intact)), 200):
        data = bytearray(intact)
        data[position] ^= 1 << rng.randrange(7)
        (path / MANIFEST).write_bytes(data)
        if verify(path) is None:
            undetected += 1
            assert json.loads(data) == json.loads(intact)  # only white space differs
    assert undetected < 20


def test_a_file_of_another_checkpoint_fails_verification(tmp_path: Path) -> None:
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    shutil.copy(first / WEIGHTS, second / WEIGHTS)
    assert verify(second) == f"{WEIGHTS} fails its checksum"


def test_error_reports_that_no_checkpoint_is_intact(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    flip_a_bit(path / "state.json")
    damage = Damage(path, "state.json fails its checksum")
    assert latest_checkpoint(tmp_path) == Latest(None, [damage])
    with pytest.raises(CheckpointError, match="no older one is intact, start a new run"):
        require_checkpoint(path)
    assert latest_checkpoint(tmp_path / "nowhere") == Latest(None, [])


def test_the_newest_checkpoints_by_number_are_kept(tmp_path: Path) -> None:
    for number in (8, 9, 10, 11):
        save_checkpoint(tmp_path, f"step_{number}", write_files(number), keep=3)
    assert names(tmp_path) == ["step_10", "step_11", "step_9"]
    assert latest_checkpoint(tmp_path).path == tmp_path / "step_11"


def test_pruning_keeps_newer_checkpoints_and_other_names(tmp_path: Path) -> None:
    for number in (1, 2, 30):
        save(tmp_path, number)
    save_checkpoint(tmp_path, "checkpoint_task_1", write_files(1), keep=None)
    (tmp_path / "plots2").mkdir()
    save(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["checkpoint_task_1", "plots2", "step_00000003", "step_00000030"]


def test_pruning_spares_chosen_checkpoints(tmp_path: Path) -> None:
    for number in (1, 2, 3, 4):
        save_checkpoint(
            tmp_path,
            f"step_{number}",
            write_files(number),
            keep=1,
            is_spared=lambda path: path.name == "step_2",
        )
    assert names(tmp_path) == ["step_2", "step_4"]


def test_checkpoints_after_a_step_are_listed_newest_first(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save(tmp_path, number)
    save_checkpoint(tmp_path, "checkpoint_task_7", write_files(1), keep=None)
    found = numbered_after(tmp_path, "step_", 1)
    assert [path.name for path in found] == ["step_00000003", "step_00000002"]


def test_a_model_in_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(b"0123456789")

    model = save_checkpoint(tmp_path, "checkpoint_task_0", fill, keep=None) / "model"
    require_sealed(model)
    require_sealed(tmp_path / "elsewhere")
    (model / "weights").write_bytes(b"0123456788")
    with pytest.raises(CheckpointError, match=r"model/weights fails its checksum; restore it"):
        require_sealed(model)


def test_a_checkpoint_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = save_checkpoint(tmp_path, "step_00000001", write_files(5), keep=1)
    assert json.loads((path / "state.json").read_text()) == {"step": 5}
    assert names(tmp_path) == ["step_00000001"]


def test_unchanged_files_are_reused_by_a_checkpoint_of_the_same_name(
    tmp_path: Path,
) -> None:
    def fill(folder: Path) -> None:
        write_files(1)(folder)
        (folder / "state.json").write_text("{}")

    first = save(tmp_path, 1)
    before = {name: (first / name).stat().st_ino for name in (WEIGHTS, "state.json")}
    path = save_checkpoint(tmp_path, "step_00000001", fill, keep=1)
    assert (path / WEIGHTS).stat().st_ino == before[WEIGHTS]
    assert (path / WEIGHTS).stat().st_nlink == 1
    assert (path / "state.json").stat().st_ino != before["state.json"]
    assert verify(path) is None


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_files_are_not_reused_by_a_checkpoint_of_the_same_name(
    kind: str, tmp_path: Path
) -> None:
    damage, _ = DAMAGES[kind]
    damage(save(tmp_path, 1))
    assert verify(save(tmp_path, 1)) is None


def test_checkpoints_of_different_names_share_no_files(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    second = save_checkpoint(tmp_path, "step_00000002", write_files(1), keep=2)
    flip_a_bit(second / WEIGHTS)
    assert verify(first) is None


def test_an_interrupted_replacement_is_undone(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    path.rename(tmp_path / ".old-step_00000001")
    tidy(tmp_path)
    assert latest_checkpoint(tmp_path) == Latest(path, [])


def test_a_checkpoint_is_found_when_the_process_was_killed_while_replacing_it(
    tmp_path: Path,
) -> None:
    old, path = save(tmp_path, 1), save(tmp_path, 2)
    replaced = path.rename(tmp_path / ".old-step_00000002")
    assert latest_checkpoint(tmp_path) == Latest(replaced, [])
    assert numbered_after(tmp_path, "step_", 1) == [replaced]
    flip_a_bit(replaced / WEIGHTS)
    assert latest_checkpoint(tmp_path).path == old


def test_temporary_files_are_never_loaded_and_removed_by_the_next_save(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    for leftover in (".tmp-step_00000002", ".del-step_00000000", ".old-step_00000001"):
        shutil.copytree(path, tmp_path / leftover)
    assert latest_checkpoint(tmp_path) == Latest(path, [])
    save(tmp_path, 3)
    assert names(tmp_path) == ["step_00000001", "step_00000003"]


def test_files_of_others_survive_saving_and_are_no_checkpoints(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    others = (
        *("foo.tmp", ".tmp-notes", ".tmp-step_1.txt", ".old-step_00000001.bak", ".del-me"),
        *("step_00000001.old-backup", "step_00000001.copy2", "step_copy_9"),
    )
    for name in others:
        shutil.copytree(path, tmp_path / name)
    save(tmp_path, 2, keep=1)
    tidy(tmp_path)
    assert names(tmp_path) == sorted([*others, "step_00000002"])
    assert latest_checkpoint(tmp_path).path == tmp_path / "step_00000002"


def test_a_checkpoint_is_not_written_through_a_link_at_its_temporary_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    parent = tmp_path / "checkpoints"
    parent.mkdir()
    (parent / ".tmp-step_00000001").symlink_to(other)
    save(parent, 1)
    assert names(parent) == ["step_00000001"]
    assert names(other) == []


def test_a_full_disk_raises_an_error_and_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    with file_size_limit(1000), pytest.raises(CheckpointError, match="free some space and resume"):
        save(tmp_path, 2, keep=1)
    assert latest_checkpoint(tmp_path) == Latest(path, [])
    assert names(tmp_path) == ["step_00000001"]


def test_disk_full_while_weights_are_written_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, 1)

    def fill(folder: Path) -> None:
        save_file({"weight": np.zeros(1000)}, folder / "model.safetensors")

    message = "File too large; free some space and resume"
    with file_size_limit(1000), pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path, "step_00000002", fill, keep=None)
    assert latest_checkpoint(tmp_path) == Latest(path, [])
    assert names(tmp_path) == ["step_00000001"]


def test_an_unwritable_path_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*step_00000001: File exists; "):
        save(tmp_path / "file", 1)


def test_an_error_while_writing_leaves_no_files(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyError("the policy has no such tensor")

    with pytest.raises(KeyError):
        save_checkpoint(tmp_path, "step_1", fill, keep=1)
    assert names(tmp_path) == []


@dataclass(frozen=True)
class HeldBack(Draft):
    """A draft that is published when the test says so."""

    may_publish: Event

    @override
    def publish(self) -> Path:
        assert self.may_publish.wait(60)
        return super().publish()


def draft(parent: Path, number: int) -> Draft:
    return draft_checkpoint(parent, f"step_{number:08d}", write_files(number), keep=2)


def test_a_checkpoint_is_published_while_its_run_goes_on(tmp_path: Path) -> None:
    publisher, may_publish = CheckpointPublisher(), Event()
    publisher.save(lambda: HeldBack(**vars(draft(tmp_path, 1)), may_publish=may_publish))
    assert names(tmp_path) == [".tmp-step_00000001"]
    assert latest_checkpoint(tmp_path) == Latest(None, [])
    may_publish.set()
    publisher.wait()
    assert latest_checkpoint(tmp_path) == Latest(tmp_path / "step_00000001", [])


def test_checkpoints_are_published_one_after_another(tmp_path: Path) -> None:
    publisher = CheckpointPublisher()
    before: list[list[str]] = []

    def next_draft() -> Draft:
        before.append(names(tmp_path))
        return draft(tmp_path, len(before))

    for _ in range(3):
        publisher.save(next_draft)
    publisher.wait()
    assert before == [[], ["step_00000001"], ["step_00000001", "step_00000002"]]
    assert names(tmp_path) == ["step_00000002", "step_00000003"]


def test_a_checkpoint_that_cannot_be_published_is_an_error_of_the_next_wait(tmp_path: Path) -> None:
    def link(folder: Path) -> None:
        (folder / "link").symlink_to(tmp_path)

    publisher = CheckpointPublisher()
    publisher.save(lambda: draft_checkpoint(tmp_path, "step_00000001", link, keep=1))
    with pytest.raises(CheckpointError, match="a checkpoint holds copies, not links"):
        publisher.save(lambda: draft(tmp_path, 2))
    assert names(tmp_path) == []
    publisher.save(lambda: draft(tmp_path, 2))
    publisher.wait()
    assert names(tmp_path) == ["step_00000002"]


def test_symbolic_links_in_a_checkpoint_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="elsewhere is not a regular file"):
        save_checkpoint(
            tmp_path, "step_1", lambda p: (p / "elsewhere").symlink_to(tmp_path), keep=1
        )
    assert names(tmp_path) == []


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_json(path, {"loss": [1.0]})
    with (
        file_size_limit(1000),
        pytest.raises(CheckpointError, match=r"metrics\.json: File too large"),
    ):
        write_file(path, ["x" * 900, "y" * 900])
    assert json.loads(path.read_text()) == {"loss": [1.0]}
    assert names(tmp_path) == ["metrics.json"]


def _save_forever(parent: Path) -> None:
    number = 0
    while True:
        save(parent, number := number + 1, keep=2)


def test_a_process_killed_at_any_time_leaves_only_intact_checkpoints(tmp_path: Path) -> None:
    rng = Random(0)
    interrupted = 0
    for attempt in range(12):
        parent = tmp_path / str(attempt)
        writer = get_context("fork").Process(target=_save_forever, args=(parent,))
        writer.start()
        sleep(rng.uniform(0.005, 0.06))
        writer.kill()
        writer.join()
        found = names(parent) if parent.is_dir() else []
        interrupted += any(name.startswith(".") for name in found)
        assert all(verify(parent / name) is None for name in found if not name.startswith("."))
        assert latest_checkpoint(parent).damaged == []
        save(parent, 10**6, keep=2)
        assert [name for name in names(parent) if name.startswith(".")] == []
    assert interrupted > 0  # else no save was interrupted
