import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.play import parse_move
from grpo_cl.cli.world import printable


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["tasks", "--help"], ["tasks", "check", "--help"]]
)
def test_help_appears_at_once(arguments: list[str]) -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        command = [sys.executable, "-m", "grpo_cl", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - start)
        assert "usage: grpo-cl" in done.stdout
    assert min(seconds) < 0.5


def test_a_listing_has_a_line_for_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "tasks", "list", "--domain", "airline", "--json")
    entries = [json.loads(line) for line in out.splitlines()]
    assert (status, len(entries)) == (0, 20)
    assert {entry["split"] for entry in entries} == {"test"}
    status, out, _ = run(capsys, "tasks", "list", "--domain", "mock", "retail")
    assert len(out.splitlines()) == 9 + 40


def test_a_task_is_shown_to_people_and_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "tasks", "show", "create_task_1", "--domain", "mock")
    assert "Gold actions:" in out
    assert "create_task(" in out
    _, out, _ = run(capsys, "tasks", "show", "create_task_1", "--domain", "mock", "--json")
    assert json.loads(out)["id"] == "create_task_1"
    _, out, _ = run(capsys, "tasks", "show", "retail-gen-test-4-mix-2", "--json")
    assert json.loads(out)["domain"] == "retail"


def test_checks_pass_and_show_the_floors(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("tasks", "check", "--domain", "mock", "airline", "--split", "base", "--json")
    status, out, _ = run(capsys, *arguments)
    mock, airline = (json.loads(line) for line in out.splitlines())
    assert status == 0
    assert (airline["tasks"], airline["gold"], airline["idle"]) == (50, 50, 19)
    assert mock["unexpected"] == []


def test_a_task_that_its_gold_does_not_solve_fails_the_check(
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
    assert "create_task_1 is not solved by its gold" in out


def test_generated_tasks_are_written_as_a_task_file_the_loader_reads(
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


def test_recordings_are_scored_line_by_line(
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
        ("not json\n", "line 1 is no recording"),
        ('{"id": "x"}\n', "line 1 is no recording"),
        ("[1]\n", "line 1 is no recording"),
    ],
)
def test_a_file_that_holds_no_recordings_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    status, _, err = run(capsys, "score", str(file))
    assert status == 1
    assert message in err


def test_a_missing_file_and_an_unknown_domain_are_answered_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run(capsys, "score", "nowhere.jsonl")
    assert (status, err.count("\n")) == (1, 1)
    status, _, err = run(capsys, "tasks", "list", "--domain", "airlin")
    assert status == 2
    assert "Did you mean 'airline'" in err


def test_scripted_episodes_are_played_and_scored(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("play", "--scripted", "--count", "3", "--domain", "airline", "telecom", "--json")
    status, out, _ = run(capsys, *arguments)
    entries = [json.loads(line) for line in out.splitlines()]
    assert (status, [entry["reward"]["value"] for entry in entries]) == (0, [1.0] * 6)
    status, out, _ = run(capsys, "play", "--scripted", "--domain", "telecom", "--user", "solo")
    assert "reward 1 by basis tau2" in out


def test_a_task_can_be_played_by_hand() -> None:
    moves = [
        ":tools",
        ":policy",
        "create_task(user_id='user_1', title='Important Meeting')",
        "done()",
    ]
    command = [sys.executable, "-m", "grpo_cl", "play", "--domain", "mock", "--user", "solo"]
    done = subprocess.run(
        [*command, "--task", "create_task_1"],
        input="\n".join(moves),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "update_task_status(task_id, status)" in done.stdout
    assert "Each task must have a title" in done.stdout
    assert "reward 1 by basis tau2" in done.stdout
    assert "ended by agent_stop" in done.stdout


def test_leaving_the_game_ends_the_episode() -> None:
    command = [sys.executable, "-m", "grpo_cl", "play", "--domain", "mock"]
    done = subprocess.run(command, input="Hello\n", capture_output=True, text=True, check=True)
    assert "ended by agent_error" in done.stdout


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("get_users()", "get_users", {}),
        ("pay(amount=3, to=['a'])", "pay", {"amount": 3, "to": ["a"]}),
        ('pay {"amount": 3}', "pay", {"amount": 3}),
    ],
)
def test_a_typed_call_is_a_call(line: str, name: str, arguments: dict[str, object]) -> None:
    calls = parse_move(line, number=1).tool_calls or ()
    assert [(call.name, call.arguments) for call in calls] == [(name, arguments)]


@pytest.mark.parametrize(
    "line", ["Hello there", "pay(3)", "pay(", "f(x=open('y'))", "a.b()", "pay {x"]
)
def test_anything_else_is_said_to_the_user(line: str) -> None:
    message = parse_move(line, number=1)
    assert (message.content, message.tool_calls) == (line, None)


def test_control_characters_never_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\u202ec\nd") == "a�[2Jb�c\nd"
