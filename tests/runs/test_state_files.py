"""Damaged state files of a run are named in one sentence, or change nothing."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli.train import evaluation_config
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, GRPOCLError
from grpo_cl.report.run import read_run
from grpo_cl.runs.checkpoint_state import read_checkpoint_state
from grpo_cl.runs.checkpoints import MANIFEST, _seal
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.resume import resume_point
from grpo_cl.runs.state_files import StateKind, read_state, write_state
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import Record
from toy_runs import toy_run

STEP = "checkpoints/step_00000002"
ROOT_FILES = ("config.json", "environment.json", "r_matrix.json", "metrics.json", "checksums.json")
CHECKPOINT_FILES = (
    *(f"{STEP}/{name}" for name in ("state.json", "trajectories.json", "config.json")),
    f"{STEP}/policy/optimizer.json",
    "checkpoint_task_1/config.json",
)
WRONG: tuple[Any, ...] = (None, "text", -1, [[]], {"a": 1})


class Count(Record):
    count: int


COUNT = StateKind(
    "a count",
    Count,
    "count again",
    {
        1: lambda contents, path: {"count": contents["number"]},
        2: lambda contents, path: {"count": int(contents["count"])},
    },
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished") / "run"
    toy_run(
        root,
        num_steps_per_task=1,
        num_samples_per_prompt=2,
        batch_size_per_gpu=2,
        evaluation={"trials": 1, "max_tasks": 2},
    )
    return root


def resume(root: Path) -> Any:
    GRPOTrainer(GRPOConfig(resume_from=root)).train()
    run = RunDir(root)
    return run.r_matrix.read_bytes(), run.metrics.read_bytes()


def report(root: Path) -> Any:
    run = read_run(root)
    # A file that is not as it was written is not silently wrong if the page says so.
    return run if not run.damage else replace(run, config={}, damage=())


def evaluate(root: Path) -> Any:
    trainer = GRPOTrainer(evaluation_config(str(root), []))
    return [trainer.evaluate_task(domain) for domain in trainer.config.task_order]


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    yield "truncated", content[: len(content) // 2]
    yield "empty", b""
    yield "a list", b"[]"
    yield "an empty object", b"{}"
    yield "null", b"null"
    yield "binary", bytes(range(256))
    yield "nested too deeply", b"[" * 100_000
    value = json.loads(content)
    for name, changed in changes(value):
        yield name, json.dumps(changed).encode()


def changes(value: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "a newer format", value | {"format": 99}
    yield "a format that is no number", value | {"format": "new"}
    yield "an unknown key", value | {"surprise": 1}
    for number, key in enumerate(value):
        yield f"without {key}", {name: entry for name, entry in value.items() if name != key}
        wrong = WRONG[number % len(WRONG)]
        if wrong != value[key]:
            yield f"{key} = {wrong}", value | {key: wrong}


def seal_again(path: Path, root: Path) -> None:
    """Make the checkpoint that holds ``path`` one that another version could have written."""
    folder = next((each for each in path.parents if (each / MANIFEST).exists()), root)
    if folder != root:
        (folder / MANIFEST).unlink()
        _seal(folder)


def outcome(command: Callable[[Path], Any], root: Path) -> Any:
    try:
        return command(root)
    except GRPOCLError as error:
        assert "\n" not in str(error), error
        return error


CASES = (
    *((resume, name) for name in (*ROOT_FILES, *CHECKPOINT_FILES)),
    *((report, name) for name in ROOT_FILES),
    (evaluate, "checkpoint_task_1/config.json"),
)


@pytest.mark.slow  # several hundred resumes
@pytest.mark.parametrize(("command", "name"), CASES)
def test_a_damaged_state_file_is_named_or_changes_nothing(
    command: Callable[[Path], Any], name: str, finished: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    shutil.copytree(finished, root)
    expected = outcome(command, root)
    for what, content in damages((finished / name).read_bytes()):
        shutil.rmtree(root)
        shutil.copytree(finished, root)
        (root / name).write_bytes(content)
        if command is not evaluate:
            seal_again(root / name, root)
        result = outcome(command, root)
        if isinstance(result, GRPOCLError):
            setting = what.removeprefix("without ").partition(" =")[0]
            assert str(root) in str(result) or setting in str(result), f"{what}: {result}"
        else:
            assert result == expected or (command is report and result.config == {}), what


def test_state_of_a_newer_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_state(path, COUNT, {"count": 3})
    assert read_state(path, COUNT) == {"count": 3}
    path.write_text('{"format": 4, "count": 3}')
    message = (
        r"state\.json has format 4, and this version of grpo-cl reads formats up to 3; continue"
    )
    with pytest.raises(CheckpointError, match=message):
        read_state(path, COUNT)


def test_state_of_each_earlier_version_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in (
        '{"number": "3"}',
        '{"format": 1, "number": "3"}',
        '{"format": 2, "count": "3"}',
    ):
        path.write_text(content)
        assert read_state(path, COUNT) == {"count": 3}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"format": 3, "count": 3, "more": 1}', "unknown key 'more'"),
        ('{"format": 3}', "key 'count' is missing"),
        ('{"format": 3, "count": "3"}', "count: Input should be a valid integer"),
        ('{"format": 2}', "no key 'count'"),
        ('{"format": "3", "count": 3}', "must be a whole number"),
        ("[]", "must be a JSON object"),
        ("", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_state_with_wrong_contents_is_refused_with_file_key_and_way_out(
    content: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_state(path, COUNT)
    assert str(path) in str(caught.value)
    assert ";" in str(caught.value) and "\n" not in str(caught.value)


def test_the_state_of_a_checkpoint_has_the_present_format(finished: Path) -> None:
    checkpoint = resume_point(finished).checkpoint
    assert checkpoint is not None
    assert json.loads(checkpoint.state.read_text())["format"] == 2
    assert set(read_checkpoint_state(checkpoint)["checksums"]) == set(RunDir(finished).journals)


def test_a_run_whose_checksums_are_damaged_is_refused_before_it_goes_on(
    finished: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    shutil.copytree(finished, root)
    (root / "checksums.json").write_bytes(b"")
    metrics = RunDir(root).metrics_journal.read_bytes()
    with pytest.raises(CheckpointError, match=r"checksums\.json"):
        GRPOTrainer(GRPOConfig(resume_from=root, num_steps_per_task=2)).train()
    assert RunDir(root).metrics_journal.read_bytes() == metrics
