"""``grpo-cl score`` on the episodes of runs, buffers, exports and τ²-bench results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli import main
from grpo_cl.config import RolloutConfig
from grpo_cl.envs import Domain
from grpo_cl.integrations.tau2_results import ResultsInfo, to_results
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.runs.layout import RunDir
from grpo_cl.types import Judgement, RewardType
from toy_runs import toy_run

GetDomain = Callable[[str], Domain]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, exports of its buffer in every format, τ² results of it and their import."""
    folder = tmp_path_factory.mktemp("episodes")
    trainer = toy_run(folder / "run", num_steps_per_task=1, num_samples_per_prompt=2)
    for suffix in ("json", "jsonl", "parquet"):
        trainer.trajectory_buffer.export_trajectories(folder / f"export.{suffix}")
    results, lines = str(folder / "results.json"), str(folder / "imported.jsonl")
    run = str(folder / "run")
    assert main(["export-tau2", run, "--domain", "toy_left", "--out", results]) == 0
    assert main(["import-tau2", results, "--out", lines]) == 0
    return folder


def score(capsys: Capture, *arguments: str | Path) -> tuple[int, list[dict[str, Any]], str]:
    capsys.readouterr()
    status = main(["score", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, [json.loads(line) for line in out.splitlines()], err


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("run", 32),
        ("run/trajectories.jsonl", 32),
        ("run/checkpoint_task_0", 16),
        ("run/checkpoint_task_1/trajectories.json", 32),
        ("run/evaluations/1_toy_left.jsonl.gz", 64),
        ("export.json", 32),
        ("export.jsonl", 32),
        ("export.parquet", 32),
        ("results.json", 16),
        ("imported.jsonl", 16),
    ],
)
def test_score_computes_the_recorded_rewards_of_every_source_again(
    folder: Path, capsys: Capture, source: str, count: int
) -> None:
    status, results, err = score(capsys, folder / source)
    assert (status, len(results)) == (0, count)
    assert err == f"0 of {count} episodes differ from their recorded reward\n"
    assert {result["reward"] for result in results} == {0.0, 1.0}
    for result in results:
        assert (result["recorded"], result["differences"]) == (result["reward"], [])
        assert result["recorded_components"] == result["components"] != {}
        assert result["domain"].startswith("toy_")


def test_a_changed_reward_or_component_is_flagged(
    folder: Path, capsys: Capture, tmp_path: Path
) -> None:
    lines = [
        json.loads(line)
        for line in RunDir(folder / "run").trajectories_journal.read_text().splitlines()[:4]
    ]
    (part,) = {*lines[0]["reward"]["basis"]}
    lines[1]["reward"]["value"] = 0.5
    lines[2]["reward"]["components"][part] = 0.25
    del lines[3]["reward"]
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join(map(json.dumps, lines)))
    status, results, err = score(capsys, changed)
    assert status == 1
    assert [result["differences"] for result in results] == [[], ["reward"], [part], []]
    assert (results[1]["recorded"], results[3]["recorded"]) == (0.5, None)
    assert "2 of 4 episodes differ" in err


def judged_results(domain: Domain) -> dict[str, Any]:
    """τ² results of one episode whose assertions a judge found not met."""
    task = domain.task("create_task_1")
    assert task.evaluation_criteria is not None
    basis = (RewardType.DB, RewardType.NL_ASSERTION)
    criteria = task.evaluation_criteria.model_copy(
        update={"nl_assertions": ("The agent was polite.",), "reward_basis": basis}
    )
    task = task.model_copy(update={"evaluation_criteria": criteria})
    actor = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
    (played,) = run_episodes(actor, {"mock": domain}, [task], RolloutConfig(user="scripted"))
    reward = RewardOracle({"mock": domain}).score(played)
    assert reward.value == 1.0
    judged = reward.model_copy(
        update={
            "value": 0.0,
            "components": {**reward.components, RewardType.NL_ASSERTION: 0.0},
            "not_judged": (),
            "judgement": Judgement(model="judge", votes=((False,),)),
        }
    )
    info = ResultsInfo(timestamp="2026-01-01T00:00:00Z")
    return to_results(domain, [ScoredTrajectory(played, judged)], info)


def test_a_verdict_is_not_compared_where_no_judge_is_asked(
    domain: GetDomain, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(judged_results(domain("mock"))))
    status, (result,), _ = score(capsys, path)
    assert (status, result["differences"]) == (0, [])
    assert (result["reward"], result["recorded"]) == (1.0, 0.0)
    assert result["not_judged"] == ["NL_ASSERTION"]
    simulation = json.loads(path.read_text())
    simulation["simulations"][0]["reward_info"]["db_check"]["db_reward"] = 0.0
    path.write_text(json.dumps(simulation))
    status, (result,), _ = score(capsys, path)
    assert (status, result["differences"]) == (1, ["DB"])


def test_episodes_are_scored_with_the_basis_they_were_recorded_with(
    folder: Path, capsys: Capture, tmp_path: Path
) -> None:
    line = json.loads(RunDir(folder / "run").trajectories_journal.read_text().splitlines()[0])
    line["reward"]["basis_name"] = "judge_free"
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(line))
    assert score(capsys, path)[1][0]["basis_name"] == "judge_free"
    assert score(capsys, path, "--basis", "tau2")[1][0]["basis_name"] == "tau2"


def test_an_exported_buffer_can_be_written_as_tau2_results_with_all_checks(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results.json"
    source = str(folder / "export.parquet")
    assert main(["export-tau2", source, "--domain", "toy_left", "--out", str(out)]) == 0
    written, direct = (
        json.loads(path.read_text())["simulations"] for path in (out, folder / "results.json")
    )
    by_seed = {entry["seed"]: entry["reward_info"] for entry in direct}
    assert {entry["seed"]: entry["reward_info"] for entry in written} == by_seed
    assert all(info["reward_basis"] and info["action_checks"] for info in by_seed.values())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.json", '{"simulations": []}', "not a τ²-bench results file"),
        ("bad.json", "1", "holds no episodes"),
        ("bad.json", '{"rng": []}', "holds no episodes"),
        ("bad.json", "[1]", "entry 1 is not a recording or an episode"),
        ("bad.json", "{", "line 1 is not a recording or an episode"),
        ("bad.json", '{"rng": [], "domains": {"a": {"records": [{}]}}}', "entry 1 is not"),
        ("bad.jsonl", '{"domain": "mock"}', "needs domain and task_id; its fields are domain"),
        ("bad.jsonl", '{"trajectory": {}}', "line 1 is not a recording or an episode"),
        ("bad.parquet", "PAR1", "is not a table of export_trajectories"),
    ],
)
def test_a_file_without_episodes_is_refused_with_the_place(
    capsys: Capture, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    status, results, err = score(capsys, tmp_path / name)
    assert (status, results) == (2, [])
    assert message in err


def test_a_directory_without_episodes_is_refused(capsys: Capture, tmp_path: Path) -> None:
    status, _, err = score(capsys, tmp_path)
    assert status == 2
    assert "neither trajectories.jsonl nor trajectories.json" in err
