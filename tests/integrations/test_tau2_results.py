import json
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli import main
from grpo_cl.config import RolloutConfig
from grpo_cl.envs import load_domain
from grpo_cl.errors import TaskDataError
from grpo_cl.integrations.tau2_results import ResultsInfo, from_results, to_results
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.rollout.recordings import Recording, execute
from grpo_cl.storage.journal import read_journal
from grpo_cl.types import Judgement, RewardType, Task, ToolCall
from toy_runs import toy_run

INFO = ResultsInfo(timestamp="2026-01-01T00:00:00", agent="a-model", seed=3)


def gold(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def scored_episodes(count: int, **rollout: Any) -> list[ScoredTrajectory]:
    domain = load_domain("mock")
    config = RolloutConfig(**rollout)
    tasks = [task for task in domain.tasks("base") if task.ticket][:count]
    oracle = RewardOracle({"mock": domain})
    episodes = run_episodes(
        ScriptedActor(gold), {"mock": domain}, tasks * 2, config, seeds=range(count * 2)
    )
    return [ScoredTrajectory(trajectory, oracle.score(trajectory)) for trajectory in episodes]


def round_trip(
    episodes: list[ScoredTrajectory], name: str = "mock", **options: Any
) -> list[ScoredTrajectory]:
    domain = load_domain(name, **options)
    written = json.loads(json.dumps(to_results(domain, episodes, INFO)))
    return from_results(written, domain, RewardOracle({name: domain}))


@pytest.mark.parametrize("user", ["solo", "scripted"])
def test_episodes_round_trip_through_a_results_file(user: str):
    episodes = scored_episodes(4, user=user)
    assert {scored.trajectory.solo for scored in episodes} == {user == "solo"}
    assert round_trip(episodes) == episodes


def test_truncated_episode_keeps_its_termination_and_zero_reward():
    episodes = scored_episodes(3, user="solo", max_turns=1)
    assert None in {scored.reward.basis for scored in episodes}
    assert round_trip(episodes) == episodes


def test_judge_votes_round_trip():
    scored = scored_episodes(1, user="solo")[0]
    task = scored.trajectory.task
    assert task.evaluation_criteria is not None
    criteria = task.evaluation_criteria.model_copy(update={"nl_assertions": ("polite", "brief")})
    judged = scored.reward.model_copy(
        update={
            "components": {**scored.reward.components, RewardType.NL_ASSERTION: 0.0},
            "judgement": Judgement(model="judge", votes=((True, False),)),
        }
    )
    trajectory = scored.trajectory.model_copy(
        update={"task": task.model_copy(update={"evaluation_criteria": criteria})}
    )
    results = to_results(load_domain("mock"), [ScoredTrajectory(trajectory, judged)], INFO)
    checks = results["simulations"][0]["reward_info"]["nl_assertions"]
    assert [(check["nl_assertion"], check["met"]) for check in checks] == [
        ("polite", True),
        ("brief", False),
    ]
    assert round_trip([ScoredTrajectory(trajectory, judged)])[0].reward == judged


def test_results_file_has_the_fields_that_tau2_requires():
    results = to_results(load_domain("mock"), scored_episodes(2, user="solo"), INFO)
    assert results["info"]["num_trials"] == 2
    assert results["info"]["agent_info"]["implementation"] == "llm_agent_solo"
    assert results["info"]["environment_info"]["domain_name"] == "mock"
    assert len(results["tasks"]) == 2 and "domain" not in results["tasks"][0]
    simulation = results["simulations"][0]
    required = {"id", "task_id", "start_time", "end_time", "duration", "termination_reason"}
    assert required <= simulation.keys()
    assert [entry["trial"] for entry in results["simulations"]] == [0, 0, 1, 1]
    assert [message["turn_idx"] for message in simulation["messages"]] == list(
        range(len(simulation["messages"]))
    )
    assert len({entry["id"] for entry in results["simulations"]}) == 4


def test_file_in_the_published_tau2_format_is_read():
    """Published files have extra fields, no evaluation, and joined tool results."""
    domain = load_domain("mock")
    scored = scored_episodes(1, user="scripted")[0]
    results = to_results(domain, [scored], INFO)
    entry = results["simulations"][0]
    entry |= {
        "reward_info": None,
        "agent_cost": 0.1,
        "ticks": None,
        "mode": "half_duplex",
        "info": None,
    }
    for index, message in enumerate(entry["messages"]):
        message |= {"timestamp": "2025-10-31T07:16:52", "cost": 0.02, "usage": {"prompt_tokens": 1}}
        if message["role"] == "tool":
            entry["messages"][index] = {"role": "tool", "id": "joined", "tool_messages": [message]}
    back = from_results(results, domain, RewardOracle({"mock": domain}))
    assert back == [scored]


def test_invalid_results_file_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    domain = load_domain("mock")
    with pytest.raises(TaskDataError, match="a file has info, tasks and simulations"):
        from_results({"info": {}}, domain, RewardOracle({"mock": domain}))
    toy = load_domain("toy_left")
    with pytest.raises(TaskDataError, match="name one domain with --domain"):
        to_results(toy, scored_episodes(1, user="solo"), INFO)
    (tmp_path / "x.json").write_text("[]")
    assert main(["import-tau2", str(tmp_path / "x.json"), "--out", str(tmp_path / "y")]) == 2
    assert "is not a τ²-bench results file" in capsys.readouterr().err


def test_export_and_import_commands_round_trip_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    toy_run(tmp_path / "run", num_steps_per_task=1, num_samples_per_prompt=2)
    out = ["--out", str(tmp_path / "results.json")]
    assert main(["export-tau2", str(tmp_path / "run"), *out]) == 2
    assert "has toy_left, toy_right; choose one of its domains" in capsys.readouterr().err
    assert main(["export-tau2", str(tmp_path / "run"), *out, "--domain", "toy_right"]) == 0
    lines = tmp_path / "lines.jsonl"
    assert main(["import-tau2", str(tmp_path / "results.json"), "--out", str(lines)]) == 0
    original = [
        line
        for line in read_journal(tmp_path / "run" / "trajectories.jsonl")
        if line["domain"] == "toy_right"
    ]
    back = list(read_journal(lines))
    assert len(back) == len(original) == 16
    for name in ("task_id", "messages", "termination", "solo", "seed", "reward"):
        assert [line[name] for line in back] == [line[name] for line in original], name
    again = tmp_path / "again.json"
    assert main(["export-tau2", str(lines), "--out", str(again)]) == 0
    first, second = (json.loads(p.read_text()) for p in (tmp_path / "results.json", again))
    assert [s["reward_info"] for s in first["simulations"]] == [
        s["reward_info"] for s in second["simulations"]
    ]


def test_recorded_tau2_conversations_round_trip(vectors: Path, tau2_data: Path):
    domain = load_domain("retail", tau2_data)
    entries = [json.loads(line) for line in vectors.read_text().splitlines()]
    upstream = {entry["input"]["id"]: entry["upstream"] for entry in entries}
    oracle = RewardOracle({"retail": domain})
    inputs = [entry["input"] for entry in entries if entry["input"]["domain"] == "retail"]
    recordings = [Recording.model_validate(recorded) for recorded in inputs[::4]]
    assert len(recordings) > 30
    trajectories = [execute(domain, domain.task(r.task_id), r).trajectory for r in recordings]
    episodes = [
        ScoredTrajectory(trajectory, oracle.score(trajectory)) for trajectory in trajectories
    ]
    results = to_results(domain, episodes, INFO)
    for recording, simulation in zip(recordings, results["simulations"], strict=True):
        expected, exported = upstream[recording.id], simulation["reward_info"]
        assert exported["reward"] == expected["reward_skip_nl"]
        assert [c["action_match"] for c in exported["action_checks"]] == [
            c["match"] for c in expected["action_checks"]
        ]
        types = [
            (c["tool_type"], k["tool_type"])
            for c, k in zip(exported["action_checks"], expected["action_checks"], strict=True)
        ]
        assert all(ours == theirs for ours, theirs in types if theirs)
        assert [m["content"] for m in simulation["messages"] if m["role"] == "tool"] == [
            output["content"] for output in expected["tool_outputs"]
        ]
    back = from_results(json.loads(json.dumps(results)), domain, oracle)
    assert back == episodes
