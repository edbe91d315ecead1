import json
import os
import resource
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import sleep

import pytest

from grpo_cl.errors import CheckpointError
from grpo_cl.rundir.files import write_file, write_json
from grpo_cl.rundir.store import (
    MANIFEST,
    Damage,
    Latest,
    drop_newer,
    latest_checkpoint,
    require_checkpoint,
    save_checkpoint,
    tidy,
    verify,
)

WEIGHTS = "model/weights.safetensors"


def filled(number: int) -> Callable[[Path], None]:
    """Two files with different bytes and one size, the first in a folder."""

    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / WEIGHTS).write_bytes(Random(number).randbytes(5000))
        (folder / "optimizer.safetensors").write_bytes(Random(-number - 1).randbytes(5000))
        (folder / "state.json").write_text(json.dumps({"step": number}))

    return fill


def save(parent: Path, number: int, keep: int | None = None) -> Path:
    return save_checkpoint(parent, f"step_{number:08d}", filled(number), keep=keep)


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


@contextmanager
def files_end_at(size: int) -> Generator[None]:
    """The system refuses to let files grow beyond ``size``, as a full disk does."""
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


def test_a_saved_checkpoint_verifies_and_lists_nested_files(tmp_path: Path) -> None:
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
        f"{WEIGHTS} is no plain file",
    ),
    "no manifest": (
        lambda p: (p / MANIFEST).unlink(),
        f"{MANIFEST} cannot be read: No such file or directory",
    ),
    "a torn manifest": (lambda p: os.truncate(p / MANIFEST, 60), f"{MANIFEST} is damaged"),
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
def test_damage_is_named_and_the_one_before_is_offered(kind: str, tmp_path: Path) -> None:
    damage, problem = DAMAGES[kind]
    older, newer = save(tmp_path, 9), save(tmp_path, 10)
    damage(newer)
    assert verify(newer) == problem
    assert latest_checkpoint(tmp_path) == Latest(older, [Damage(newer, problem)])
    with pytest.raises(CheckpointError) as raised:
        require_checkpoint(newer)
    assert problem in str(raised.value)
    assert f"use {older} instead" in str(raised.value)


def test_every_bit_of_the_manifest_that_carries_meaning_is_guarded(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    whole = (path / MANIFEST).read_bytes()
    rng = Random(0)
    spared = 0
    for place in rng.sample(range(len(whole)), 200):
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(7)
        (path / MANIFEST).write_bytes(data)
        if verify(path) is None:
            spared += 1
            assert json.loads(data) == json.loads(whole)  # only white space differs
    assert spared < 20


def test_files_of_two_checkpoints_cannot_be_mixed(tmp_path: Path) -> None:
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    shutil.copy(first / WEIGHTS, second / WEIGHTS)
    assert verify(second) == f"{WEIGHTS} fails its checksum"


def test_with_no_good_checkpoint_the_error_says_so(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    flip_a_bit(path / "state.json")
    damage = Damage(path, "state.json fails its checksum")
    assert latest_checkpoint(tmp_path) == Latest(None, [damage])
    with pytest.raises(CheckpointError, match="no older good one, start a new run"):
        require_checkpoint(path)
    assert latest_checkpoint(tmp_path / "nowhere") == Latest(None, [])


def test_the_newest_are_kept_and_counted_by_number(tmp_path: Path) -> None:
    for number in (8, 9, 10, 11):
        save_checkpoint(tmp_path, f"step_{number}", filled(number), keep=3)
    assert names(tmp_path) == ["step_10", "step_11", "step_9"]
    assert latest_checkpoint(tmp_path).path == tmp_path / "step_11"


def test_pruning_spares_newer_ones_and_other_names(tmp_path: Path) -> None:
    for number in (1, 2, 30):
        save(tmp_path, number)
    save_checkpoint(tmp_path, "stage_1", filled(1), keep=None)
    (tmp_path / "plots2").mkdir()
    save(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["plots2", "stage_1", "step_00000003", "step_00000030"]


def test_an_abandoned_future_is_dropped(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save(tmp_path, number)
    save_checkpoint(tmp_path, "stage_7", filled(1), keep=None)
    drop_newer(tmp_path, "step_", than=1)
    assert names(tmp_path) == ["stage_7", "step_00000001"]


def test_a_checkpoint_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = save_checkpoint(tmp_path, "step_00000001", filled(5), keep=1)
    assert json.loads((path / "state.json").read_text()) == {"step": 5}
    assert names(tmp_path) == ["step_00000001"]


def test_what_did_not_change_is_not_written_again_by_a_checkpoint_of_the_same_name(
    tmp_path: Path,
) -> None:
    def fill(folder: Path) -> None:
        filled(1)(folder)
        (folder / "state.json").write_text("{}")

    first = save(tmp_path, 1)
    before = {name: (first / name).stat().st_ino for name in (WEIGHTS, "state.json")}
    path = save_checkpoint(tmp_path, "step_00000001", fill, keep=1)
    assert (path / WEIGHTS).stat().st_ino == before[WEIGHTS]
    assert (path / WEIGHTS).stat().st_nlink == 1
    assert (path / "state.json").stat().st_ino != before["state.json"]
    assert verify(path) is None


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_not_taken_over_by_a_checkpoint_of_the_same_name(
    kind: str, tmp_path: Path
) -> None:
    damage, _ = DAMAGES[kind]
    damage(save(tmp_path, 1))
    assert verify(save(tmp_path, 1)) is None


def test_checkpoints_of_different_names_share_no_file(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    second = save_checkpoint(tmp_path, "step_00000002", filled(1), keep=2)
    flip_a_bit(second / WEIGHTS)
    assert verify(first) is None


def test_a_replacement_that_was_cut_short_is_undone(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    path.rename(tmp_path / ".old-step_00000001")
    tidy(tmp_path)
    assert latest_checkpoint(tmp_path) == Latest(path, [])


def test_leftovers_are_never_loaded_and_go_with_the_next_save(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    for leftover in (".tmp-step_00000002", ".del-step_00000000", ".old-step_00000001"):
        shutil.copytree(path, tmp_path / leftover)
    (tmp_path / ".tmp-metrics.json").write_text("{")
    assert latest_checkpoint(tmp_path) == Latest(path, [])
    save(tmp_path, 3)
    assert names(tmp_path) == ["step_00000001", "step_00000003"]


def test_a_full_disk_is_one_sentence_and_the_previous_checkpoint_stays(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    with files_end_at(1000), pytest.raises(CheckpointError, match="free some space and resume"):
        save(tmp_path, 2, keep=1)
    assert latest_checkpoint(tmp_path) == Latest(path, [])
    assert names(tmp_path) == ["step_00000001"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*step_00000001: File exists; "):
        save(tmp_path / "file", 1)


def test_what_goes_wrong_while_filling_leaves_nothing_behind(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyError("the policy has no such tensor")

    with pytest.raises(KeyError):
        save_checkpoint(tmp_path, "step_1", fill, keep=1)
    assert names(tmp_path) == []


def test_links_are_refused_in_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="elsewhere is no plain file"):
        save_checkpoint(
            tmp_path, "step_1", lambda p: (p / "elsewhere").symlink_to(tmp_path), keep=1
        )
    assert names(tmp_path) == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_json(path, {"loss": [1.0]})
    with files_end_at(1000), pytest.raises(CheckpointError, match=r"metrics\.json: File too large"):
        write_file(path, ["x" * 900, "y" * 900])
    assert json.loads(path.read_text()) == {"loss": [1.0]}
    assert names(tmp_path) == ["metrics.json"]


def _save_for_ever(parent: Path) -> None:
    number = 0
    while True:
        save(parent, number := number + 1, keep=2)


def test_a_writer_killed_at_any_moment_leaves_only_good_checkpoints(tmp_path: Path) -> None:
    rng = Random(0)
    torn = 0
    for attempt in range(12):
        parent = tmp_path / str(attempt)
        writer = get_context("fork").Process(target=_save_for_ever, args=(parent,))
        writer.start()
        sleep(rng.uniform(0.005, 0.06))
        writer.kill()
        writer.join()
        found = names(parent) if parent.is_dir() else []
        torn += any(name.startswith(".") for name in found)
        assert all(verify(parent / name) is None for name in found if not name.startswith("."))
        assert latest_checkpoint(parent).damaged == []
        save(parent, 10**6, keep=2)
        assert [name for name in names(parent) if name.startswith(".")] == []
    assert torn > 0  # otherwise the kills came at harmless moments only
