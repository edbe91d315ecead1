import json
from pathlib import Path
from typing import Any

from toy_runs import toy_run

TIMES = {"environment.json", "times.jsonl"}
"""The files of a run directory that hold times of the clock."""
BUFFER = "trajectories.json"
"""A checkpoint's replay buffer; each record says when it was added and how long it took."""
SUMS = "MANIFEST.json"


def run_files(folder: Path, place: Path) -> dict[str, bytes]:
    toy_run(place, num_steps_per_task=2)
    place.rename(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_runs_at_different_times_differ_only_in_the_files_of_times(tmp_path: Path):
    first = run_files(tmp_path / "first", tmp_path / "run")
    second = run_files(tmp_path / "second", tmp_path / "run")
    assert first.keys() == second.keys()
    different = {name for name in first if first[name] != second[name]}
    assert {Path(name).name for name in different} <= TIMES | {BUFFER, SUMS}
    assert "times.jsonl" in different
    buffers = [name for name in first if Path(name).name == BUFFER]
    assert buffers
    for name in buffers:
        assert timeless(json.loads(first[name])) == timeless(json.loads(second[name]))


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in ("timestamp", "duration_s")}
        return {key: timeless(item) for key, item in kept.items()}
    return [timeless(item) for item in value] if isinstance(value, list) else value
