"""Task files of τ-bench's first release, with the domain's tools and with own ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli import main
from grpo_cl.envs import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import EpisodeContext, Outcome, episode_config
from grpo_cl.integrations.rows import read_table, read_tasks
from grpo_cl.integrations.session import SyncSession
from grpo_cl.runs.episodes import episode_line
from grpo_cl.storage.encoding import encode
from grpo_cl.types import Message, RewardType, Task, ToolCall
from grpo_cl.users.scripted.ticket import ticket

CREATE_KWARGS = {"user_id": "user_1", "title": "Call Ann"}
CREATE = {"name": "create_task", "kwargs": CREATE_KWARGS}
LOUNGE = {"name": "lounge_price", "kwargs": {"airport": "JFK", "guests": 1}}
TOOLS = '''
PRICES = {"JFK": 45}


def lounge_price(airport: str, guests: int = 0) -> int:
    """Price of a lounge visit in dollars.

    Args:
        airport: The airport's code.
        guests: Number of guests.
    """
    return PRICES[airport] * (1 + guests)


def rename_owner(self, user_id: str, name: str) -> str:
    """Rename the owner of tasks.

    Args:
        user_id: The owner.
        name: The new name.
    """
    self.db.users[user_id].name = name
    return "renamed"
'''


def entry(*actions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    task = {"instruction": "You are Mia Li. You want a task to call Ann.", "domain": "mock"}
    return {**task, "actions": list(actions), **fields}


def write(folder: Path, content: Any) -> Path:
    path = folder / "tasks.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS)
    return str(path)


def read(path: Path, tools: str | None = None, domain: str | None = None) -> list[Task]:
    return read_tasks(path, domain, lambda name: load_domain(name, tools=tools))


def played(task: Task, *calls: ToolCall, reply: str = "", tools: str | None = None) -> Outcome:
    """The outcome of an episode in which the agent makes ``calls`` and then stops."""
    context = EpisodeContext(episode_config({"user_strategy": "solo", "tools": tools}))
    try:
        session = SyncSession(context, task)
        session.open()
        for call in calls:
            session.step(Message(role="assistant", content=reply or None, tool_calls=(call,)))
        session.step(Message(role="assistant", tool_calls=(ToolCall(name="done"),)))
        return session.finish()
    finally:
        context.close()


@pytest.mark.parametrize("wrapped", [True, False])
def test_task_has_the_instruction_as_scenario_and_the_actions_as_gold_actions(
    tmp_path: Path, *, wrapped: bool
) -> None:
    tasks = [entry(CREATE, user_id="user_1"), entry(CREATE, outputs=["7"], id=5)]
    first, second = read(write(tmp_path, {"tasks": tasks} if wrapped else tasks))
    assert first.domain == "mock"
    assert ticket(first).startswith("The customer is Mia Li.")
    assert "user_1" in ticket(first)
    assert [action.call.arguments for action in first.gold_actions] == [CREATE["kwargs"]]
    assert first.evaluation_criteria and second.evaluation_criteria
    assert first.evaluation_criteria.reward_basis == (RewardType.DB,)
    assert second.id == "mock-task-5"
    assert second.evaluation_criteria.reward_basis == (RewardType.DB, RewardType.COMMUNICATE)
    assert second.evaluation_criteria.communicate_info == ("7",)


def test_gold_actions_are_rewarded_and_doing_nothing_is_not(tmp_path: Path) -> None:
    (task,) = read(write(tmp_path, [entry(CREATE)]))
    gold = [action.call for action in task.gold_actions]
    assert played(task, *gold).reward.value == 1.0
    assert played(task).reward.value == 0.0


def test_ids_do_not_depend_on_the_order_of_the_file(tmp_path: Path) -> None:
    tasks = [entry(CREATE), entry(CREATE, instruction="Another one.")]
    ids = [task.id for task in read(write(tmp_path, tasks))]
    assert [task.id for task in read(write(tmp_path, tasks[::-1]))] == ids[::-1]
    assert len(set(ids)) == 2


def test_own_tool_that_leaves_no_trace_is_rewarded_by_its_call(tmp_path: Path, tools: str) -> None:
    (task,) = read(write(tmp_path, [entry(LOUNGE)]), tools)
    assert task.evaluation_criteria
    assert RewardType.ACTION in task.evaluation_criteria.reward_basis
    good = ToolCall(name="lounge_price", arguments={"airport": "JFK", "guests": 1})
    outcome = played(task, good, tools=tools)
    assert outcome.reward.value == 1.0
    results = [m.content for m in outcome.trajectory.messages if m.role == "tool"]
    assert results[0] == '"90"'
    assert played(task, tools=tools).reward.value == 0.0
    without_arguments = ToolCall(name="lounge_price")
    assert played(task, without_arguments, tools=tools).reward.value == 0.0


def test_own_tool_that_writes_is_rewarded_by_the_database(tmp_path: Path, tools: str) -> None:
    kwargs = {"user_id": "user_1", "name": "Ann"}
    (task,) = read(write(tmp_path, [entry({"name": "rename_owner", "kwargs": kwargs})]), tools)
    assert task.evaluation_criteria
    assert task.evaluation_criteria.reward_basis == (RewardType.DB,)
    gold = [action.call for action in task.gold_actions]
    assert played(task, *gold, tools=tools).reward.value == 1.0
    other = ToolCall(name="rename_owner", arguments={"user_id": "user_1", "name": "Bob"})
    assert played(task, other, tools=tools).reward.value == 0.0


def test_transfer_counts_whatever_its_summary_is(tmp_path: Path) -> None:
    transfer = {"name": "transfer_to_human_agents", "kwargs": {"summary": "as in the file"}}
    (task,) = read(write(tmp_path, [entry(transfer)]))
    call = ToolCall(name="transfer_to_human_agents", arguments={"summary": "in other words"})
    assert played(task, call).reward.value == 1.0
    assert played(task).reward.value == 0.0


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (entry(CREATE, domain="mok"), r"task 1 .*domain: unknown domain 'mok'.*mean 'mock'"),
        (entry(CREATE, domain=None), r"task 1 .*domain: it is missing.*--domains"),
        (entry(CREATE, domain="memory"), r"task 1 .*domain: 'memory' has no .*gold actions"),
        (
            entry(CREATE, {"name": "create_tasks", "kwargs": {}}),
            r"task 1 .*actions\.1\.name: .*has no tool 'create_tasks'.*'create_task'.*--tools",
        ),
        (
            entry({"name": "create_task", "kwargs": {"user_id": 3, "title": "x"}}),
            r"task 1 .*actions\.0\.kwargs\.user_id: create_task .*3 is not of type 'string'",
        ),
        (
            entry({"name": "create_task", "kwargs": {"user_id": "user_1"}}),
            r"task 1 .*actions\.0\.kwargs: create_task .*'title' is a required property",
        ),
        (
            entry({"name": "create_task", "kwargs": {**CREATE_KWARGS, "due": "today"}}),
            r"task 1 .*actions\.0\.kwargs: create_task .*'due' was unexpected",
        ),
        (
            entry({"name": "create_task", "kwargs": {"user_id": "user_9", "title": "x"}}),
            r"task 1 .*actions\.0: create_task fails: User user_9 not found",
        ),
        (entry({"name": "create_task"}), r"task 1 .*actions\.0\.kwargs: Field required"),
        (entry(), r"task 1 .*actions: there are no gold actions and no outputs"),
        (entry(CREATE, instruction=""), r"task 1 .*instruction: .*at least 1 character"),
        (entry(CREATE, initial_state={}), r"task 1 .*initial_state: unknown field; known: instr"),
        ("x", r"task 1 .*a task is a JSON object, not \"x\""),
    ],
)
def test_task_that_cannot_be_used_is_refused_with_index_field_and_reason(
    tmp_path: Path, task: Any, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        read(write(tmp_path, {"tasks": [entry(CREATE), task]}))


@pytest.mark.parametrize("content", [[], {"tasks": []}, {"tasks": 3}, 3])
def test_file_without_tasks_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot read tasks from .*tasks\.json.*no tasks"):
        read(write(tmp_path, content))


def test_prepare_data_reads_such_a_file_with_own_tools(tmp_path: Path, tools: str) -> None:
    tasks = [entry(LOUNGE, instruction=f"You want the price, {i}.") for i in range(8)]
    path = write(tmp_path, {"tasks": [entry(CREATE), *tasks]})
    out = ["--output_dir", str(tmp_path), "--train_ratio", "0.5"]
    assert main(["prepare-data", "--input_path", str(path), "--tools", tools, *out]) == 0
    parts = [read_table(tmp_path / f"{part}.parquet").tasks for part in ("train", "validation")]
    assert sum(len(part) for part in parts) == 9


def test_domain_of_the_option_is_used_for_tasks_that_name_none(tmp_path: Path) -> None:
    (task,) = read(write(tmp_path, [entry(CREATE, domain=None)]), domain="mock")
    assert task.domain == "mock"


def test_recorded_episode_with_own_tools_is_scored_again_with_them(
    tmp_path: Path, tools: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = {"user_id": "user_1", "name": "Ann"}
    (task,) = read(write(tmp_path, [entry({"name": "rename_owner", "kwargs": kwargs})]), tools)
    outcome = played(task, *(action.call for action in task.gold_actions), tools=tools)
    line = episode_line(outcome.trajectory, outcome.reward)
    episodes = tmp_path / "episodes.jsonl"
    episodes.write_text(encode({**line, "task": task.model_dump(mode="json")}))
    assert main(["score", str(episodes), "--tools", tools]) == 0
    assert json.loads(capsys.readouterr().out)["reward"] == 1.0
