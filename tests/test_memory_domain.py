import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from grpo_cl.algorithms import SequentialCL
from grpo_cl.config import GRPOConfig, RolloutConfig
from grpo_cl.demonstrations import agent_turns, demonstrate
from grpo_cl.domains import Domain, load_domain
from grpo_cl.domains.memory.domain import MemoryDomain
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.memory.answerers import UNKNOWN
from grpo_cl.memory.generator import generate_instances
from grpo_cl.memory.loaders import save_jsonl
from grpo_cl.memory.tasks import instance_of
from grpo_cl.metrics.rmatrix import RMatrix, measure
from grpo_cl.policy.compact import CompactChat, train_tokenizer
from grpo_cl.policy.sft import Lesson, examples, trace
from grpo_cl.policy.tiny_model import Size, new_tiny
from grpo_cl.rewards import RewardOracle
from grpo_cl.rewards.memory import MemoryScorer, replay
from grpo_cl.roles import MemoryConfig
from grpo_cl.rollout import Agent, Scene, run_episodes, system_prompt
from grpo_cl.rundir import RunDir
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import Message, Reward, RewardType, Task, Termination, ToolCall, Trajectory
from small_runs import small_config

GetDomain = Callable[[str], Domain]


class Writer:
    """Writes what a function says about each chunk, as an agent does."""

    def __init__(self, replies: Callable[[Task, int], Message]) -> None:
        self._replies = replies

    def join(self, scene: Scene) -> Agent:
        return _WritingAgent(scene, self._replies)


class _WritingAgent:
    def __init__(self, scene: Scene, replies: Callable[[Task, int], Message]) -> None:
        self._scene = scene
        self._replies = replies
        self._chunk = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        assert messages[-1].role == "user"  # no second turn before the next chunk
        self._chunk += 1
        return self._replies(self._scene.task, self._chunk)

    def trace(self) -> None:
        pass


def gold_reply(task: Task, chunk: int) -> Message:
    calls = tuple(
        action.call for action in task.gold_actions if action.action_id.startswith(f"{chunk}.")
    )
    return Message(role="assistant", tool_calls=calls or None, content=None if calls else "-")


def silent_reply(task: Task, chunk: int) -> Message:
    del task, chunk
    return Message(role="assistant", content="")


def played(domain: Domain, task: Task, reply: Callable[[Task, int], Message]) -> Trajectory:
    return run_episodes(Writer(reply), {"memory": domain}, [task], RolloutConfig())[0]


@pytest.fixture(scope="module")
def task(domain: GetDomain) -> Task:
    return domain("memory").generate(seed=5, count=1, difficulty=0.5)[0]


def scored(domain: Domain, trajectory: Trajectory) -> Reward:
    return RewardOracle({"memory": domain}).score(trajectory)


@pytest.mark.parametrize("user", ["solo", "scripted"])
def test_chunks_come_one_by_one_whoever_the_user_of_the_run_is(
    domain: GetDomain, task: Task, user: str
) -> None:
    limits = RolloutConfig(user=user, max_turns=1, max_steps=2, max_errors=1)
    memory = domain("memory")
    episode = run_episodes(Writer(gold_reply), {"memory": memory}, [task], limits)[0]
    chunks = instance_of(task).chunks
    told = [message.content or "" for message in episode.messages if message.role == "user"]
    assert len(told) == len(chunks) + 1
    assert all(chunk.content in text for chunk, text in zip(chunks, told, strict=False))
    assert episode.termination is Termination.USER_STOP
    assert not episode.solo
    assert scored(memory, episode).value == 1.0


def test_the_numbered_tasks_are_pinned(domain: GetDomain) -> None:
    memory = domain("memory")
    assert memory.release.endswith("memory tasks sha256:13e178d602ba")
    assert {split: len(ids) for split, ids in memory.splits.items()} == {
        "train": 74,
        "test": 40,
        "base": 114,
    }


def test_a_generated_task_is_found_again_by_its_id(domain: GetDomain, task: Task) -> None:
    assert domain("memory").has_task(task.id)
    assert domain("memory").task(task.id) == task


def test_what_a_chunk_speaks_of_is_shown_with_it_however_old(domain: GetDomain) -> None:
    memory = domain("memory")
    task = memory.generate(seed=1, count=1, difficulty=1.0)[0]
    world = memory.environment(task)
    shown: list[str] = []
    for chunk in range(1, len(instance_of(task).chunks) + 1):
        shown.append(world.tell() or "")
        for call in gold_reply(task, chunk).tool_calls or ():
            if call.name in {"memory_update", "memory_delete"}:
                assert f"[{call.arguments['memory_id']}]" in shown[-1]
            assert not world.call(call).error
    assert world.tell() is None
    assert shown[0].startswith("Memory: empty.")
    assert "semantic" in shown[-1]


def test_no_questions_and_no_labels_are_shown(domain: GetDomain, task: Task) -> None:
    memory = domain("memory")
    text = json.dumps([m.model_dump() for m in played(memory, task, gold_reply).messages])
    assert all(question.question not in text for question in instance_of(task).questions)
    assert "stale" not in text


def test_failing_calls_end_no_episode_and_change_nothing(domain: GetDomain, task: Task) -> None:
    def wrong(task: Task, chunk: int) -> Message:
        del task
        calls = (
            ToolCall(id=f"{chunk}a", name="memory_delete", arguments={"memory_id": 99}),
            ToolCall(id=f"{chunk}b", name="drop_table"),
        )
        return Message(role="assistant", tool_calls=calls)

    episode = played(domain("memory"), task, wrong)
    reward = scored(domain("memory"), episode)
    assert episode.termination is Termination.USER_STOP
    assert reward.components[RewardType.CALLS] == 0.0
    assert not replay(task, episode.messages).memory.entries
    answers = [m.content or "" for m in episode.messages if m.role == "tool"]
    assert "there is no memory with id 99" in answers[0]


def test_a_silent_agent_reaches_the_end_and_little_else(domain: GetDomain, task: Task) -> None:
    reward = scored(domain("memory"), played(domain("memory"), task, silent_reply))
    assert reward.value <= 0.17
    assert len(reward.steps) == len(instance_of(task).chunks)
    assert all(check.answer == UNKNOWN for check in reward.answer_checks)


def test_components_are_reported_apart_and_make_the_rewards_of_the_steps(
    domain: GetDomain, task: Task
) -> None:
    reward = scored(domain("memory"), played(domain("memory"), task, gold_reply))
    parts = reward.components
    assert set(parts) == {
        RewardType.ANSWERS,
        RewardType.CALLS,
        RewardType.COMPRESSION,
        RewardType.CONTENT,
    }
    for step in reward.steps:
        r1, r2, r3, r4 = (step.components[part] for part in parts)
        assert step.value == pytest.approx(r1 + r2 + 0.05 * r3 + 0.1 * r4, abs=1e-12)
    assert Reward.model_validate_json(reward.model_dump_json()) == reward
    cell = measure({task.id: [reward]})
    assert cell.mean == 1.0
    assert cell.components["answers_single"] == 1.0
    assert cell.components["COMPRESSION"] == parts[RewardType.COMPRESSION]


def test_a_stored_episode_is_scored_again_to_the_same_reward(domain: GetDomain, task: Task) -> None:
    memory = domain("memory")
    episode = played(memory, task, gold_reply)
    again = Trajectory.model_validate_json(episode.model_dump_json())
    assert scored(memory, again) == scored(memory, episode)
    forged = tuple(
        m.model_copy(update={"content": "memory 77 inserted"}) if m.role == "tool" else m
        for m in episode.messages
    )
    bad = scored(memory, episode.model_copy(update={"messages": forged}))
    assert bad.value == 0.0
    assert "on replay" in (bad.reason or "")


def test_an_episode_that_was_cut_short_is_worth_nothing(domain: GetDomain, task: Task) -> None:
    memory = domain("memory")
    episode = played(memory, task, gold_reply)
    cut = episode.model_copy(update={"termination": Termination.CONTEXT_WINDOW_EXCEEDED})
    reward = scored(memory, cut)
    assert (reward.value, {step.value for step in reward.steps}) == (0.0, {0.0})


def test_weights_and_credit_are_the_configs(domain: GetDomain, task: Task) -> None:
    episode = played(domain("memory"), task, gold_reply)
    config = MemoryConfig(beta=1.0, gamma=0.0, credit="evidence", evidence_share=1.0)
    reward = MemoryScorer(config).score(episode)
    shares = [step.components[RewardType.ANSWERS] for step in reward.steps]
    assert sum(shares) / len(shares) == pytest.approx(reward.value)
    assert len(set(shares)) > 1
    r3 = reward.components[RewardType.COMPRESSION]
    first = reward.steps[0]
    assert first.value == pytest.approx(shares[0] + first.components[RewardType.CALLS] + r3)


def test_two_episodes_never_share_a_memory(domain: GetDomain, task: Task) -> None:
    one, other = (domain("memory").environment(task) for _ in range(2))
    one.tell()
    one.call(ToolCall(id="0", name="memory_insert", arguments={"content": "Ava lives in Oslo."}))
    assert one.state() != other.state()
    assert one.state_hash() != other.state_hash()


def test_dates_of_chunks_are_given_to_entries_if_so_configured(task: Task) -> None:
    stamped = MemoryDomain(settings=MemoryConfig(stamp=True))
    world = stamped.environment(task)
    world.tell()
    world.call(ToolCall(id="0", name="memory_insert", arguments={"content": "Ava lives in Oslo."}))
    day = instance_of(task).chunks[0].timestamp
    assert f"(semantic, {day}) Ava lives" in (world.tell() or "")


def test_dials_of_the_run_reach_the_generator_and_its_name() -> None:
    config = GRPOConfig(
        task_order=("memory",), memory=MemoryConfig(knobs={"chunks": 2, "questions": 3})
    )
    memory = load_domain("memory").configured(config)
    task = memory.generate(seed=0, count=1, difficulty=0.5)[0]
    assert len(instance_of(task).chunks) == 2
    with pytest.raises(ConfigError, match=r"memory\.knobs"):
        MemoryDomain(settings=MemoryConfig(knobs={"chnks": 2})).generate(seed=0, count=1)


def test_instances_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    save_jsonl(path, generate_instances(0, 5, difficulty=0.2))
    config = GRPOConfig(task_order=("memory",), memory=MemoryConfig(path=path))
    loader = TaskDataLoader(config)
    train, test = loader.train_tasks("memory"), loader.evaluation_tasks("memory")
    assert (len(train), len(test)) == (4, 1)
    assert loader.releases["memory"].startswith("mine.jsonl memory tasks sha256:")
    gold = played(loader.domains["memory"], test[0], gold_reply)
    assert scored(loader.domains["memory"], gold).value == 1.0


def test_questions_of_others_need_a_model_to_answer_them(tmp_path: Path) -> None:
    path = tmp_path / "theirs.jsonl"
    instance = generate_instances(0, 1, difficulty=0.2)[0]
    save_jsonl(path, [instance.model_copy(update={"source": "elsewhere"})])
    with pytest.raises(ConfigError, match=r"memory\.answerer\.model"):
        MemoryDomain(settings=MemoryConfig(path=path)).tasks("base")


def test_a_task_of_another_domain_holds_no_instance(domain: GetDomain) -> None:
    with pytest.raises(TaskDataError, match="holds no instance"):
        instance_of(domain("mock").tasks("base")[0])


# Demonstrations.


def test_a_demonstration_is_one_reply_for_each_chunk(domain: GetDomain, task: Task) -> None:
    solved = demonstrate(domain("memory"), task)
    assert solved is not None
    turns = agent_turns(solved)
    replies = [message for message in turns if message.role == "assistant"]
    assert len(replies) == len(instance_of(task).chunks)
    assert all(reply.tool_calls for reply in replies)
    assert scored(domain("memory"), solved).value == 1.0


def test_a_careless_demonstration_goes_on_with_the_memory_it_has(domain: GetDomain) -> None:
    memory = domain("memory")
    worse = 0
    for task in memory.generate(seed=2, count=8, difficulty=0.0):
        spoiled = demonstrate(memory, task, careless=Random(task.id))
        assert spoiled is not None
        reward = scored(memory, spoiled)
        assert reward.value >= 0.5
        assert all(not message.error for message in spoiled.messages)
        worse += reward.value < 1
    assert worse >= 4


def test_several_calls_stand_in_one_compact_reply_and_are_read_back(domain: GetDomain) -> None:
    lesson = examples(Lesson("memory", 0, 6, 0.2, is_compact=True))
    texts = (str(m.content or "") for each in lesson for m in each.messages)
    chat = CompactChat(train_tokenizer(texts, size=600))
    for example in lesson:
        found = trace(chat, example, context=10_000)
        assert found is not None
        replies = [m for m in example.messages if m.role == "assistant"]
        for (start, end), message in zip(found.turns, replies, strict=True):
            read = chat.read(found.ids[start:end])
            assert [c.name for c in read.tool_calls or ()] == [
                c.name for c in message.tool_calls or ()
            ]
            assert [c.arguments for c in read.tool_calls or ()] == [
                c.arguments for c in message.tool_calls or ()
            ]
    first = lesson[0]
    assert first.scene.system == ""
    assert not first.scene.solo
    assert "You keep a memory" in system_prompt(
        domain("memory"), first.scene.task, solo=False, compact=False
    )


# Training.


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    lesson = examples(Lesson("memory", 0, 20, 0.0, is_compact=True))
    new_tiny(lesson, folder, seed=0, size=Size(width=64, layers=2))
    return folder


class Stopped(Exception):  # noqa: N818
    """A power cut, as far as a process can tell."""


def memory_config(policy: Path, log_dir: Path, *order: str) -> GRPOConfig:
    changes = {
        "task_order": order,
        "tasks": {"own": False, "generated": 4, "difficulty": 0.0},
        "memory": {"knobs": {"chunks": 2, "facts": 1, "questions": 3}},
        "sampling": {"max_context": 1536, "dialect": "compact", "slots": 8},
        "evaluation": {"generated": 2},
    }
    return small_config(policy, log_dir, **changes)


def digests(run: Path) -> list[str]:
    files = RunDir(run)
    kept = [files.metrics_journal, files.trajectories_journal, files.r_matrix]
    kept.append(files.stage_checkpoint(0).model_dir / "model.safetensors")
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in kept]


def test_a_memory_run_records_its_components_and_resumes_exactly(
    policy: Path, tmp_path: Path
) -> None:
    config = memory_config(policy, tmp_path / "whole", "memory")
    GRPOTrainer(config).train()
    lines = RunDir(tmp_path / "whole").trajectories_journal.read_text().splitlines()
    for line in map(json.loads, lines):
        reward, tokens = line["reward"], line["tokens"]
        assert set(reward["components"]) == {"ANSWERS", "CALLS", "COMPRESSION", "CONTENT"}
        assert len(reward["steps"]) == len(tokens["turns"]) == 2
        assert len(tokens["logprobs"]) == sum(tokens["mask"]) > 0
        assert any(tokens["logprobs"])
    steps = json.loads(RunDir(tmp_path / "whole").metrics.read_text())["task_0/train"]
    assert {"memory/answers", "memory/calls", "memory/compression", "memory/content"} <= set(
        steps[0]
    )
    steps_left = 1

    class Failing(SequentialCL):
        def post_step_hook(self, trainer: object, domain: str) -> None:
            nonlocal steps_left
            steps_left -= 1
            if steps_left < 0:
                raise Stopped

    stopped = GRPOTrainer(config.model_copy(update={"log_dir": tmp_path / "cut"}))
    stopped.cl_algorithm = Failing()
    with pytest.raises(Stopped):
        stopped.train()
    resumed = {"log_dir": tmp_path / "cut", "resume_from": tmp_path / "cut"}
    GRPOTrainer(config.model_copy(update=resumed)).train()
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def test_memory_takes_its_place_in_an_order_of_domains(policy: Path, tmp_path: Path) -> None:
    GRPOTrainer(memory_config(policy, tmp_path, "airline", "memory", "telecom")).train()
    matrix = RMatrix.load(RunDir(tmp_path).r_matrix)
    assert [row.after for row in matrix.rows] == ["base", "airline", "memory", "telecom"]
    cells = [row.cells["memory"] for row in matrix.rows]
    assert all(0 <= cell.mean <= 1 for cell in cells)
    assert matrix.facts["memory"].basis == (RewardType.ANSWERS,)
