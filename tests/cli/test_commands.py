import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.output import printable
from grpo_cl.cli.play import parse_typed_reply
from grpo_cl.cli.train import _numbers
from grpo_cl.config import GRPOConfig
from grpo_cl.metrics.rmatrix import Cell


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_list_prints_one_line_per_task(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "tasks", "list", "--domain", "airline", "--json")
    entries = [json.loads(line) for line in out.splitlines()]
    assert (status, len(entries)) == (0, 20)
    assert {entry["split"] for entry in entries} == {"test"}
    status, out, _ = run(capsys, "tasks", "list", "--domain", "mock", "retail")
    assert len(out.splitlines()) == 9 + 40


def test_show_prints_a_task_as_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "tasks", "show", "create_task_1", "--domain", "mock")
    assert "Gold actions:" in out
    assert "create_task(" in out
    _, out, _ = run(capsys, "tasks", "show", "create_task_1", "--domain", "mock", "--json")
    assert json.loads(out)["id"] == "create_task_1"
    _, out, _ = run(capsys, "tasks", "show", "retail-gen-test-4-mix-2", "--json")
    assert json.loads(out)["domain"] == "retail"


def test_show_prints_a_generated_task_in_either_wording(capsys: pytest.CaptureFixture[str]) -> None:
    show = ("tasks", "show", "retail-gen-test-4-mix-2", "--domain", "retail", "--json")
    plain, varied = (
        json.loads(run(capsys, *show, "--wording", wording)[1]) for wording in ("plain", "varied")
    )
    assert plain["ticket"] != varied["ticket"]
    assert plain["evaluation_criteria"] == varied["evaluation_criteria"]


def test_show_takes_the_task_before_or_after_its_domain(capsys: pytest.CaptureFixture[str]) -> None:
    first = run(capsys, "tasks", "show", "test-00", "--domain", "toy_left")
    assert first == run(capsys, "tasks", "show", "--domain", "toy_left", "test-00")
    assert first[0] == 0


def test_show_says_which_assertions_count(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "tasks", "show", "0", "--domain", "airline")
    assert "Reward basis: DB × COMMUNICATE" in out
    assert "[NL_ASSERTION: does not count]" in out
    _, out, _ = run(capsys, "tasks", "list", "--domain", "telecom", "--count", "1", "--json")
    _, out, _ = run(capsys, "tasks", "show", json.loads(out)["id"], "--domain", "telecom")
    assert "[ENV_ASSERTION: counts]" in out
    assert "does not count" not in out


def test_check_says_on_standard_error_what_was_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, err = run(capsys, "tasks", "check", "--domain", "mock", "--split", "base")
    assert err == "checked mock/base: 9 tasks\n"
    assert "checked" not in out


def test_check_passes_and_counts_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("tasks", "check", "--domain", "mock", "airline", "--split", "base", "--json")
    status, out, _ = run(capsys, *arguments)
    mock, airline = (json.loads(line) for line in out.splitlines())
    assert status == 0
    assert (airline["tasks"], airline["gold"], airline["idle"]) == (50, 50, 19)
    assert mock["unexpected"] == []


def test_check_fails_for_a_task_that_its_gold_actions_do_not_solve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["tasks", "show", "create_task_1", "--domain", "mock", "--json"])
    task = json.loads(capsys.readouterr().out)
    task["evaluation_criteria"] |= {
        "env_assertions": [
            {
                "env_type": "assistant",
                "func_name": "assert_task_status",
                "arguments": {"task_id": "task_9", "expected_status": "pending"},
            }
        ],
        "reward_basis": ["ENV_ASSERTION"],
    }
    folder = tmp_path / "domains" / "mock"
    folder.mkdir(parents=True)
    (folder / "tasks.json").write_text(json.dumps([task]))
    arguments = ("tasks", "check", "--domain", "mock", "--tau2-data-dir", str(tmp_path))
    status, out, _ = run(capsys, *arguments)
    assert status == 1
    assert "create_task_1 is not solved by its gold actions" in out


def test_generated_tasks_are_written_as_a_loadable_task_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "domains" / "airline" / "tasks.json"
    arguments = ("tasks", "generate", "--domain", "airline", "--count", "4", "--out", str(out))
    status, text, _ = run(capsys, *arguments, "--seed", "2", "--difficulty", "0.5")
    assert (status, text) == (0, f"4 tasks written to {out}\n")
    (out.parent / "policy.md").write_text("Be kind.")
    check = ("tasks", "check", "--domain", "airline", "--tau2_data_dir", str(tmp_path), "--json")
    status, text, _ = run(capsys, *check)
    assert status == 0
    assert json.loads(text)["gold"] == 4


def test_score_prints_one_result_per_recording(
    capsys: pytest.CaptureFixture[str], vectors: Path, tau2_data: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in vectors.read_text().splitlines()[:6]]
    file = tmp_path / "some.jsonl"
    mixed = [line if index % 2 else line["input"] for index, line in enumerate(lines)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in mixed))
    status, out, _ = run(capsys, "score", str(file), "--tau2_data_dir", str(tau2_data))
    results = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [r["reward"] for r in results] == [x["upstream"]["reward_skip_nl"] for x in lines]
    required = {"id", "reward", "components", "not_judged", "action_checks", "tool_outputs"}
    assert required | {"state_hashes"} <= set(results[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json\n", "line 1 is not a recording"),
        ('{"id": "x"}\n', "line 1 is not a recording"),
        ("[1]\n", "line 1 is not a recording"),
    ],
)
def test_score_refuses_a_file_without_recordings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    status, _, err = run(capsys, "score", str(file))
    assert status == 2
    assert message in err


def test_evaluate_prints_the_chance_that_all_of_k_trials_succeed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "evaluation.json"
    toy = "--model_name_or_path tabular --task_order toy_left --max_new_tokens 1"
    assert main(["evaluate", *toy.split(), "--evaluation.trials", "5", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {name for name in printed if "^" in name} == {"pass^2", "pass^4"}
    tasks = json.loads(out.read_text())["cells"]["toy_left"]["tasks"].values()
    # Of the 10 pairs of 5 trials, c successes make c(c − 1)/2.
    assert printed["pass^2"] == pytest.approx(fmean(c * (c - 1) / 20 for c, _ in tasks))


def test_evaluate_prints_no_chance_that_a_lost_trial_makes_unknown() -> None:
    cell = Cell(mean=0.5, tasks={"a": (2, 4), "b": (1, 3)})
    printed = _numbers(GRPOConfig(task_order=("toy_left",)), "toy_left", cell)
    assert {name for name in printed if "^" in name} == {"pass^2"}
    assert printed["pass^2"] == pytest.approx((1 / 6 + 0) / 2)


def test_missing_file_and_unknown_domain_give_a_one_line_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run(capsys, "score", "nowhere.jsonl")
    assert (status, err.count("\n")) == (2, 1)
    status, _, err = run(capsys, "tasks", "list", "--domain", "airlin")
    assert status == 2
    assert "Did you mean 'airline'" in err


def test_play_runs_and_scores_scripted_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("play", "--scripted", "--count", "3", "--domain", "airline", "telecom", "--json")
    status, out, _ = run(capsys, *arguments)
    entries = [json.loads(line) for line in out.splitlines()]
    assert (status, [entry["reward"]["value"] for entry in entries]) == (0, [1.0] * 6)
    status, out, _ = run(capsys, "play", "--scripted", "--domain", "telecom", "--user", "solo")
    assert "reward 1 by basis tau2" in out


def test_play_refuses_a_user_that_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    for strategy in ("llm", "react", "verify", "reflection"):
        status, _, error = run(capsys, "play", "--domain", "mock", "--user", strategy)
        assert status == 2
        assert f"the user '{strategy}' is driven by a model, which play does not have" in error


def test_a_task_can_be_played_in_the_terminal() -> None:
    replies = [
        ":help",
        ":polcy",
        ":tools",
        ":policy",
        "create_task(user_id='user_1', title='Important Meeting')",
        "done()",
    ]
    command = [sys.executable, "-m", "grpo_cl", "play", "--domain", "mock", "--user", "solo"]
    completed = subprocess.run(
        [*command, "--task", "create_task_1"],
        input="\n".join(replies),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "update_task_status(task_id, status)" in completed.stdout
    assert "Each task must have a title" in completed.stdout
    assert completed.stdout.count("Write to the user, or call a tool") == 3
    assert ":polcy is no command" in completed.stdout
    assert "reward 1 by basis tau2" in completed.stdout
    assert "ended by agent_stop" in completed.stdout


def test_end_of_input_ends_the_episode() -> None:
    command = [sys.executable, "-m", "grpo_cl", "play", "--domain", "mock"]
    completed = subprocess.run(command, input="Hello\n", capture_output=True, text=True, check=True)
    assert "ended by agent_error" in completed.stdout


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("get_users()", "get_users", {}),
        ("pay(amount=3, to=['a'])", "pay", {"amount": 3, "to": ["a"]}),
        ('pay {"amount": 3}', "pay", {"amount": 3}),
    ],
)
def test_a_typed_call_is_parsed_as_a_tool_call(
    line: str, name: str, arguments: dict[str, object]
) -> None:
    calls = parse_typed_reply(line, number=1).tool_calls or ()
    assert [(call.name, call.arguments) for call in calls] == [(name, arguments)]


@pytest.mark.parametrize(
    "line", ["Hello there", "pay(3)", "pay(", "f(x=open('y'))", "a.b()", "pay {x"]
)
def test_other_text_is_a_message_to_the_user(line: str) -> None:
    message = parse_typed_reply(line, number=1)
    assert (message.content, message.tool_calls) == (line, None)


def test_control_characters_are_replaced_before_printing() -> None:
    assert printable("a\x1b[2Jb\u202ec\nd") == "a�[2Jb�c\nd"
