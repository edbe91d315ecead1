"""A damaged journal ends a resume with a sentence; --accept_damage goes on and records it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError
from grpo_cl.report import write_report
from grpo_cl.runs.damage import damage_remarks, read_accepted
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.checksums import checksums_file
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer
from toy_runs import toy_run


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


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunDir:
    shutil.copytree(finished, tmp_path / "run")
    return RunDir(tmp_path / "run")


def resume(run: RunDir, *, accept_damage: bool = False) -> None:
    GRPOTrainer(GRPOConfig(resume_from=run.root, accept_damage=accept_damage)).train()


def delete_first_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def delete_journal(path: Path) -> None:
    path.unlink()


def delete_journal_and_checksums(path: Path) -> None:
    path.unlink()
    checksums_file(path).unlink()


def test_an_intact_run_has_no_remark_and_resumes_to_the_same_bytes(run: RunDir) -> None:
    before = {path: path.read_bytes() for path in sorted(run.root.glob("*.json*"))}
    assert damage_remarks(run) == []
    resume(run)
    assert {path: path.read_bytes() for path in sorted(run.root.glob("*.json*"))} == before


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (delete_first_line, "is damaged: line 1 is not the one that was written"),
        (delete_journal, "is missing, with 8 lines"),
        (delete_journal_and_checksums, "is missing, with 8 lines"),
    ],
)
def test_damage_is_refused_until_it_is_accepted_and_then_recorded(
    damage: Callable[[Path], None], problem: str, run: RunDir
) -> None:
    journal = run.trajectories_journal
    matrix = run.r_matrix.read_bytes()
    damage(journal)
    with pytest.raises(CheckpointError, match=rf"{problem}; restore .* --accept_damage"):
        resume(run)
    assert [remark for remark in damage_remarks(run) if problem in remark]
    resume(run, accept_damage=True)
    (accepted,) = read_accepted(run)
    assert problem in accepted.problem
    assert len(list(read_journal(journal))) == 8 - accepted.lost
    assert run.r_matrix.read_bytes() == matrix
    assert json.loads(run.config.read_text())["accept_damage"] is False
    resume(run)  # accepted once
    assert problem in write_report(run.root).read_text()


def test_a_run_without_checksums_resumes_and_has_them_from_then_on(run: RunDir) -> None:
    for journal in run.journals.values():
        checksums_file(journal).unlink()
    resume(run)
    assert all(checksums_file(journal).exists() for journal in run.journals.values())


def test_settings_that_no_resume_made_are_refused(run: RunDir) -> None:
    config = json.loads(run.config.read_text())
    run.config.write_text(json.dumps(config | {"learning_rate": 0.5}))
    with pytest.raises(CheckpointError, match=r"learning_rate is 0\.5 in .*config\.json and 0\.1"):
        resume(run)
    assert "config.json was changed or damaged" in damage_remarks(run)[0]


@pytest.mark.parametrize("name", ["r_matrix.json", "metrics.json"])
def test_a_changed_result_is_not_reported_and_is_written_again_by_a_resume(
    name: str, run: RunDir
) -> None:
    path = run.root / name
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0.0", b"0.5", 1))
    with pytest.raises(CheckpointError, match=rf"{name} was changed .* --resume_from"):
        write_report(run.root)
    resume(run)
    assert path.read_bytes() == content
    write_report(run.root)
