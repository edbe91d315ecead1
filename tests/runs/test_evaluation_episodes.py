import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from grpo_cl.errors import CheckpointError
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.rewards import ScoredTrajectory
from grpo_cl.runs.evaluation_episodes import (
    EvaluationEpisode,
    read_evaluations,
    read_tokens,
    write_evaluation,
)
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import TokenTrace
from toy_runs import toy_config, toy_run

SHORT: dict[str, Any] = {
    "num_steps_per_task": 2,
    "evaluation": {"trials": 2, "max_tasks": 3},
    "logging": {"trackers": (), "save_interval": 1},
}
CELLS = [(row, domain) for row in (0, 1, 2) for domain in ("toy_left", "toy_right")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    root = tmp_path_factory.mktemp("whole")
    toy_run(root, **SHORT)
    return RunDir(root)


def episodes(run: RunDir, row: int, domain: str) -> list[EvaluationEpisode]:
    return [one for one in read_evaluations(run) if (one.row, one.task.domain) == (row, domain)]


def digests(run: RunDir) -> dict[str, str]:
    files = sorted(run.evaluations_dir.iterdir())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_episodes_of_every_cell_have_its_rewards(run: RunDir) -> None:
    matrix = RMatrix.load(run.r_matrix)
    for row, domain in CELLS:
        kept = episodes(run, row, domain)
        cell = matrix.cell(kept[0].after, domain)
        assert cell is not None
        successes: dict[str, Sequence[int]] = {}
        for one in kept:
            won, played = successes.get(one.task.id, (0, 0))
            successes[one.task.id] = (won + int(one.reward.value), played + 1)
        assert successes == cell.tasks
        assert [one.trial for one in kept] == [0, 1] * 3


def test_an_episode_has_its_ticket_calls_results_and_components(run: RunDir) -> None:
    one = episodes(run, 1, "toy_left")[0]
    assert one.task.ticket == "The signal is left-00."
    assert one.task.gold_actions[0].name == "choose"
    call, result, _ = one.trajectory.messages
    assert call.tool_calls is not None and call.tool_calls[0].id == result.id
    assert result.content == "Chosen."
    assert one.reward.components["DB"] == one.reward.value  # pyright: ignore[reportArgumentType]


def test_token_ids_are_in_a_file_of_their_own(run: RunDir) -> None:
    kept, tokens = episodes(run, 0, "toy_left"), read_tokens(run, 0, "toy_left")
    assert len(tokens) == len(kept) == 6
    assert all(one.trajectory.tokens is None for one in kept)
    for trace in tokens:
        start, end = trace.turns[-1]
        assert 0 <= start < end <= len(trace.ids)
    assert read_tokens(run, 7, "toy_left") == []


def test_token_ids_that_episodes_share_are_read_back(run: RunDir, tmp_path: Path) -> None:
    ids = [(1, 2, 3, 4), (1, 2, 3, 5, 6), (1,), (7, 8)]
    scored: list[ScoredTrajectory] = []
    for played, given in zip(episodes(run, 0, "toy_left"), ids, strict=False):
        end = len(given)
        trace = TokenTrace(
            ids=given, mask=(False,) * (end - 1) + (True,), logprobs=(0.0,), turns=((end - 1, end),)
        )
        trajectory = played.trajectory.model_copy(update={"tokens": trace})
        scored.append(ScoredTrajectory(trajectory, played.reward))
    write_evaluation(RunDir(tmp_path), (0, "base", "toy_left"), scored, limit=9)
    assert [one.ids for one in read_tokens(RunDir(tmp_path), 0, "toy_left")] == ids


def write_again(source: RunDir, target: RunDir, *, limit: int) -> None:
    played = episodes(source, 1, "toy_left")
    scored = [ScoredTrajectory(one.trajectory, one.reward) for one in played]
    write_evaluation(target, (1, "toy_left", "toy_left"), scored, limit=limit)


def test_a_limit_keeps_first_trials_of_as_many_tasks_as_possible(
    run: RunDir, tmp_path: Path
) -> None:
    write_again(run, RunDir(tmp_path), limit=4)
    kept = [(one.task.id, one.trial) for one in episodes(RunDir(tmp_path), 1, "toy_left")]
    assert kept == [("test-00", 0), ("test-00", 1), ("test-01", 0), ("test-02", 0)]


def test_a_limit_of_zero_keeps_nothing(run: RunDir, tmp_path: Path) -> None:
    write_again(run, RunDir(tmp_path), limit=0)
    assert not RunDir(tmp_path).evaluations_dir.exists()


class KilledTrainer(GRPOTrainer):
    """Ends like a killed process, after the evaluation number ``last``."""

    last = 0

    @override
    def evaluate_task(self, domain: str) -> Cell:
        self.last -= 1
        if self.last < 0:
            raise KeyboardInterrupt
        return super().evaluate_task(domain)


@pytest.mark.parametrize("evaluations", [1, 5])
def test_a_killed_and_resumed_run_has_the_same_bytes(
    evaluations: int, run: RunDir, tmp_path: Path
) -> None:
    config = toy_config(tmp_path, **SHORT)
    killed = KilledTrainer(config)
    killed.last = evaluations
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    toy_run(tmp_path, **SHORT, resume_from=tmp_path)
    assert digests(RunDir(tmp_path)) == digests(run)


def test_a_resume_from_an_earlier_stage_moves_later_episodes_aside(
    run: RunDir, tmp_path: Path
) -> None:
    toy_run(tmp_path, **SHORT)
    own = RunDir(tmp_path)
    toy_run(tmp_path, **SHORT, resume_from=tmp_path / "checkpoint_task_0")
    (folder,) = own.cut_off_dir.iterdir()
    moved = {path.name for path in (folder / "evaluations").iterdir()}
    assert moved == {name for name in digests(run) if name.startswith("2_")}
    assert digests(own) == digests(run)


def test_a_fork_has_the_episodes_of_the_stages_before_it(run: RunDir, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    source = run.root / "checkpoint_task_0"
    toy_run(fork, **SHORT, resume_from=source, fork=fork)
    before = {name: digest for name, digest in digests(run).items() if name[0] in "01"}
    assert before.items() <= digests(RunDir(fork)).items()
    assert len(list(read_evaluations(RunDir(fork)))) == 6 * 6


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    path = run.evaluation_episodes(0, "toy_left")
    path.parent.mkdir()
    path.write_bytes(b"\x1f\x8b damaged")
    with pytest.raises(CheckpointError, match=re.escape(f"{path} is damaged")):
        list(read_evaluations(run))


def test_rows_are_read_in_order_and_names_of_any_domain_are_file_names(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.evaluations_dir.mkdir()
    for row in (10, 2):
        run.evaluation_episodes(row, "a/../b").write_bytes(b"")
    found = run.evaluations_after(1)
    assert [path.name.partition("-")[0] for path in found] == ["2", "10"]
    assert all(path.parent == run.evaluations_dir for path in found)
