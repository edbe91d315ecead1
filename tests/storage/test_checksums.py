"""Damage of a journal is found by its checksums, located, and can be removed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_cl.errors import CheckpointError
from grpo_cl.storage.checksums import checksums_file, find_damage, repair
from grpo_cl.storage.journal import Journal, read_journal

NUM_LINES = 9


def written(path: Path, count: int = NUM_LINES) -> Journal:
    journal = Journal(path, has_checksums=True)
    for number in range(count):
        journal.append({"number": number, "text": "x" * number})
    return journal


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b'"number": 4') + 10] ^= 1  # 4 becomes 5: still valid JSON
    path.write_bytes(content)


def delete_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4] + lines[5:]))


def repeat_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], lines[3], *lines[4:]]))


def swap_two_lines(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], lines[5], lines[4], *lines[6:]]))


def write_garbage(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"\xff\x00{\n", *lines[5:]]))


IN_THE_MIDDLE = (flip_a_bit, delete_a_line, repeat_a_line, swap_two_lines, write_garbage)


def numbers(path: Path) -> list[int]:
    return [record["number"] for record in read_journal(path)]


def test_an_intact_journal_is_read_and_has_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with written(path) as journal:
        seal = journal.seal()
        journal.append({"number": 99})
    assert seal.lines == NUM_LINES
    assert find_damage(path, seal) is None
    assert numbers(path) == [*range(NUM_LINES), 99]


@pytest.mark.parametrize("damage", IN_THE_MIDDLE)
def test_a_damaged_line_is_named(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with written(path) as journal:
        seal = journal.seal()
    damage(path)
    assert find_damage(path, seal) == (f"{path} is damaged: line 5 is not the one that was written")
    with pytest.raises(CheckpointError, match=r"journal\.jsonl, line 5 .*--accept_damage"):
        numbers(path)


def test_a_truncated_a_deleted_and_a_swapped_journal_are_named(tmp_path: Path) -> None:
    path, other = tmp_path / "journal.jsonl", tmp_path / "other.jsonl"
    with written(path) as journal:
        seal = journal.seal()
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'{"number": 6')])
    assert find_damage(path, seal) == f"{path} is damaged: of 9 lines 6 are left"
    with pytest.raises(CheckpointError, match="has 6 of the 9 lines that were written"):
        numbers(path)
    path.unlink()
    assert find_damage(path, seal) == f"{path} is missing, with 9 lines"
    with pytest.raises(CheckpointError, match="has 0 of the 9 lines that were written"):
        numbers(path)
    with written(other, NUM_LINES + 5):
        pass
    other.replace(path)
    checksums_file(other).replace(checksums_file(path))
    path.write_bytes(path.read_bytes().replace(b"text", b"TEXT"))
    damage = find_damage(path, seal)
    assert damage is not None
    assert damage.startswith(f"{path} is damaged")


def test_damage_is_found_without_the_file_of_checksums(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with written(path) as journal:
        seal = journal.seal()
    checksums_file(path).unlink()
    assert find_damage(path, seal) is None
    flip_a_bit(path)
    assert find_damage(path, seal) == f"{path} is not the file that the checkpoint was made with"


@pytest.mark.parametrize("damage", IN_THE_MIDDLE)
def test_repair_keeps_the_intact_lines_and_the_damaged_file(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    path, aside = tmp_path / "journal.jsonl", tmp_path / "aside"
    with written(path) as journal:
        seal = journal.seal()
    damage(path)
    damaged = path.read_bytes()
    repaired = repair(path, seal, aside=aside)
    assert aside.read_bytes() == damaged
    kept = numbers(path)
    assert len(kept) == NUM_LINES - repaired.lost
    assert kept == sorted(kept) and repaired.lost <= 1
    assert find_damage(path, repaired.seal) is None
    with Journal(path, has_checksums=True) as journal:
        assert journal.seal() == repaired.seal


def test_a_deleted_journal_is_repaired_as_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with written(path) as journal:
        seal = journal.seal()
    path.unlink()
    assert repair(path, seal, aside=tmp_path / "aside").lost == NUM_LINES
    assert path.read_bytes() == b""


def test_a_journal_without_checksums_gets_them_when_it_is_opened(tmp_path: Path) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    with written(new) as journal:
        seal = journal.seal()
    old.write_bytes(new.read_bytes())
    with Journal(old, has_checksums=True) as journal:
        assert journal.seal() == seal
    assert checksums_file(old).read_bytes() == checksums_file(new).read_bytes()


@pytest.mark.parametrize("damage", ["missing", "short", "torn", "garbage", "other"])
def test_damaged_checksums_are_computed_anew_from_a_verified_journal(
    damage: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal.jsonl"
    with written(path) as journal:
        seal = journal.seal()
        journal.append({"number": 99})
    held = checksums_file(path)
    content = held.read_bytes()
    damaged = {
        "missing": b"",
        "short": content[:60],
        "torn": content[:-7],
        "garbage": b"\xff" * len(content),
        "other": content.replace(b"a", b"b"),
    }
    held.write_bytes(damaged[damage])
    with Journal(path, has_checksums=True) as journal:
        journal.truncate(seal.size, seal)
        assert journal.seal() == seal
        journal.append({"number": 99})
    assert held.read_bytes() == content


def test_a_line_whose_checksum_was_not_written_yet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with written(path):
        with path.open("ab") as file:
            file.write(b'{"number": 99}\n')
        assert numbers(path) == [*range(NUM_LINES), 99]
