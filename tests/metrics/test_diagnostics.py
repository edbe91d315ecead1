import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from grpo_cl.algorithms import CLAlgorithm
from grpo_cl.cli import main
from grpo_cl.envs import load_domain
from grpo_cl.errors import ContextFullError
from grpo_cl.metrics.diagnostics import FLAT_STEPS, evaluation_problem, training_problem
from grpo_cl.metrics.rmatrix import Cell
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.rollout import Scene, ScriptedActor, run_episodes
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.evaluate import evaluate
from grpo_cl.types import Message, Task, TrajectoryGroup
from small_runs import make_policy, small_config
from toy_runs import toy_config, toy_run


def record(*, flat: bool, reward: float = 0.0) -> dict[str, float]:
    return {"groups": 4.0, "zero_variance_groups": 4.0 if flat else 3.0, "reward_mean": reward}


def test_steps_without_a_gradient_are_named_once_when_they_are_several_in_a_row() -> None:
    flats = [True] * (FLAT_STEPS - 1) + [False] + [True] * (FLAT_STEPS + 3)
    records = [record(flat=flat) for flat in flats]
    named = [
        index
        for index in range(len(records))
        if training_problem("airline", records[: index + 1]) is not None
    ]
    assert named == [2 * FLAT_STEPS - 1]


def test_the_advice_depends_on_whether_tasks_are_solved() -> None:
    failed = training_problem("airline", [record(flat=True)] * FLAT_STEPS)
    solved = training_problem("airline", [record(flat=True, reward=1.0)] * FLAT_STEPS)
    assert failed is not None and "easier tasks" in failed
    assert solved is not None and "harder ones" in solved


@pytest.mark.parametrize(
    ("signs", "sentence"),
    [
        ({}, None),
        ({"no_tool_call": 3}, None),
        (
            {"no_tool_call": 4},
            "no reply in 4 episodes was a tool call; check that sampling.dialect",
        ),
        ({"context_window_exceeded": 1}, None),
        ({"context_window_exceeded": 2}, "2 of 4 episodes ended with a full context"),
    ],
)
def test_an_evaluation_that_measures_little_is_named(
    signs: dict[str, int], sentence: str | None
) -> None:
    cell = Cell(mean=0.0, tasks={"a": (0, 2), "b": (0, 2)}, **signs)  # pyright: ignore[reportArgumentType]
    problem = evaluation_problem("airline", cell)
    assert (problem is None) == (sentence is None)
    assert sentence is None or sentence in (problem or "")


class TextActor:
    """Writes text and never calls a tool, or has no room for a reply."""

    def __init__(self, *, is_full: bool = False) -> None:
        self._is_full = is_full

    def join(self, scene: Scene) -> "TextActor":
        del scene
        return self

    def trace(self) -> None:
        """No tokens."""

    async def act(self, messages: Sequence[Message]) -> Message:
        del messages
        if self._is_full:
            raise ContextFullError("full")
        return Message(role="assistant", content="I cannot call tools.")


def cell_of(actor: Any, tmp_path: Path) -> Cell:
    domain, config = load_domain("toy_left"), toy_config(tmp_path)
    oracle = RewardOracle({domain.name: domain})

    def play(tasks: Sequence[Task], seeds: Sequence[int]) -> list[ScoredTrajectory]:
        return oracle.score_all(
            run_episodes(actor, {domain.name: domain}, tasks, config.rollout, seeds=seeds)
        )

    return evaluate(play, domain.tasks("test")[:2], config)


def test_an_evaluation_counts_episodes_without_calls_and_with_a_full_context(
    tmp_path: Path,
) -> None:
    silent, full = cell_of(TextActor(), tmp_path), cell_of(TextActor(is_full=True), tmp_path)
    assert (silent.no_tool_call, silent.context_window_exceeded) == (16, None)
    assert (full.no_tool_call, full.context_window_exceeded) == (16, 16)
    assert full.numbers()["context_window_exceeded"] == 16
    calling = cell_of(ScriptedActor(lambda task: ()), tmp_path)  # calls `done` at once
    assert calling.no_tool_call is None
    assert "no_tool_call" not in calling.numbers()


class EqualRewards(CLAlgorithm):
    """Gives every episode of a group the same reward."""

    @override
    def shape_rewards(self, group: TrajectoryGroup, rewards: Sequence[float]) -> Sequence[float]:
        return [0.0] * len(rewards)


def test_a_run_without_gradients_warns_once_and_the_report_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    config = toy_config(tmp_path, task_order=("toy_left",), num_steps_per_task=FLAT_STEPS + 3)
    trainer = GRPOTrainer(config)
    trainer.cl_algorithm = EqualRewards()
    with caplog.at_level(logging.WARNING):
        trainer.train()
    (warning,) = [r.message for r in caplog.records if "equal rewards" in r.message]
    assert warning.startswith(f"toy_left: in the last {FLAT_STEPS} steps all groups had equal")
    assert main(["report", str(tmp_path)]) == 0
    assert "Problems of this run" in Path(capsys.readouterr().out.split()[-1]).read_text()


def test_a_policy_that_cannot_call_tools_is_named_at_the_first_evaluation_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = make_policy(tmp_path / "policy")  # random weights
    config = small_config(
        policy, tmp_path / "run", task_order=("mock",), num_steps_per_task=1, tasks={"own": True}
    )
    with caplog.at_level(logging.WARNING):
        GRPOTrainer(config).train()
    problems = [r.message for r in caplog.records if "was a tool call" in r.message]
    assert len(problems) == 1
    assert problems[0].startswith("mock: no reply in 2 episodes was a tool call")
    evaluations = RunDir(tmp_path / "run").read_metrics()["task_0/eval"]
    assert [record["no_tool_call"] for record in evaluations] == [2, 2]


def test_a_run_that_learns_has_no_warning_and_logs_the_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        toy_run(tmp_path, num_steps_per_task=FLAT_STEPS + 1)
    assert not caplog.records
    step = RunDir(tmp_path).read_metrics()["task_0/train"][0]
    assert (step["no_tool_call"], step["context_window_exceeded"]) == (0.0, 0.0)
