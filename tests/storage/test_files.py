"""Files are written to new temporary names, and nothing that was there before is touched."""

from pathlib import Path

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.storage.files import LEFTOVER, create_file, temporary_path, write_file, write_json
from grpo_cl.storage.lock import LOCK_FILE, locked


def test_a_file_is_written_beside_links_at_former_temporary_names(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".tmp-metrics.json").symlink_to(victim)
    write_json(tmp_path / "metrics.json", {})
    assert victim.read_text() == "precious"
    assert (tmp_path / "metrics.json").read_text() == "{}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(".tmp-metrics.json", "metrics.json", "victim")
    ]


def test_a_link_at_the_written_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "metrics.json"
    link.symlink_to(victim)
    write_file(link, ["new"])
    assert victim.read_text() == "precious"
    assert link.read_text() == "new" and not link.is_symlink()


def test_a_new_file_is_never_opened_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(victim)
    for path in (dangling, tmp_path):
        with pytest.raises(FileExistsError):
            create_file(path)
    assert not victim.exists()


def test_temporary_names_differ_and_are_recognized(tmp_path: Path) -> None:
    names = {temporary_path(tmp_path / "metrics.json").name for _ in range(100)}
    assert len(names) == 100
    assert all(LEFTOVER.fullmatch(name) for name in names)
    for other in (".tmp-metrics.json", "foo.tmp", ".tmp-a-0123", "x.tmp-a-0123456789abcdef"):
        assert not LEFTOVER.fullmatch(other)


def test_temporary_names_of_long_names_fit_the_file_system(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 120)
    write_file(path, ["text"])
    assert path.read_text() == "text"


def test_the_lock_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / LOCK_FILE).symlink_to(victim)
    message = r"lock cannot be written .*; remove it if it is not a lock file"
    with pytest.raises(ConfigError, match=message), locked(tmp_path, remedy="choose another"):
        pass
    assert victim.read_text() == "precious"
