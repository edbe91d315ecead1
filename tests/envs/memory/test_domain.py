import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from grpo_cl.algorithms import SequentialCL
from grpo_cl.config import GRPOConfig, MemoryConfig, RolloutConfig
from grpo_cl.envs import Domain, load_domain
from grpo_cl.envs.memory.domain import MemoryDomain, task_of
from grpo_cl.envs.memory.generator import generate_instances
from grpo_cl.envs.memory.generator.instance import sample_people
from grpo_cl.envs.memory.instances import instance_of
from grpo_cl.envs.memory.loaders import save_jsonl
from grpo_cl.envs.memory.rewards.answer_grading import UNKNOWN
from grpo_cl.envs.memory.rewards.scorer import MemoryScorer, replay
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.metrics.rmatrix import RMatrix, measure
from grpo_cl.policy.chat.compact import CompactChat, train_tokenizer
from grpo_cl.policy.learner.sft_data import DemonstrationSpec, generate_examples, tokenize_example
from grpo_cl.policy.model.tiny_model import Size, create_tiny_model
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import Agent, Scene, run_episodes, system_prompt
from grpo_cl.rollout.demonstrations import agent_turns, demonstrate
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import Message, Reward, RewardType, Task, Termination, ToolCall, Trajectory
from small_runs import small_config

GetDomain = Callable[[str], Domain]


class ReplyActor:
    """An actor whose reply to each chunk is computed by a function."""

    def __init__(self, replies: Callable[[Task, int], Message]) -> None:
        self._replies = replies

    def join(self, scene: Scene) -> Agent:
        return _ReplyAgent(scene, self._replies)


class _ReplyAgent:
    def __init__(self, scene: Scene, replies: Callable[[Task, int], Message]) -> None:
        self._scene = scene
        self._replies = replies
        self._chunk_id = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        assert messages[-1].role == "user"  # no second turn before the next chunk
        self._chunk_id += 1
        return self._replies(self._scene.task, self._chunk_id)

    def trace(self) -> None:
        pass


FIRST_NAMES = {
    name
    for split in ("train", "test")
    for seed in range(40)
    for name in sample_people(Random(seed), count=9, namesakes=0, split=split)
}


def people_of(task: Task) -> set[str]:
    """The first names that begin a statement of the gold operations."""
    contents = (str(action.arguments.get("content", "")) for action in task.gold_actions)
    return {match[0] for text in contents if (match := re.match(r"[A-Z][a-z]+", text))}


def gold_reply(task: Task, chunk: int) -> Message:
    calls = tuple(
        action.call for action in task.gold_actions if action.action_id.startswith(f"{chunk}.")
    )
    return Message(role="assistant", tool_calls=calls or None, content=None if calls else "-")


def empty_reply(task: Task, chunk: int) -> Message:
    del task, chunk
    return Message(role="assistant", content="")


def played(domain: Domain, task: Task, reply: Callable[[Task, int], Message]) -> Trajectory:
    return run_episodes(ReplyActor(reply), {"memory": domain}, [task], RolloutConfig())[0]


@pytest.fixture(scope="module")
def task(domain: GetDomain) -> Task:
    return domain("memory").generate(seed=5, count=1, difficulty=0.5)[0]


def scored(domain: Domain, trajectory: Trajectory) -> Reward:
    return RewardOracle({"memory": domain}).score(trajectory)


@pytest.mark.parametrize("user", ["solo", "scripted"])
def test_environment_sends_the_chunks_whatever_user_is_configured(
    domain: GetDomain, task: Task, user: str
) -> None:
    limits = RolloutConfig(user=user, max_turns=1, max_steps=2, max_errors=1)
    memory = domain("memory")
    episode = run_episodes(ReplyActor(gold_reply), {"memory": memory}, [task], limits)[0]
    chunks = instance_of(task).chunks
    observations = [message.content or "" for message in episode.messages if message.role == "user"]
    assert len(observations) == len(chunks) + 1
    assert all(chunk.content in text for chunk, text in zip(chunks, observations, strict=False))
    assert episode.termination is Termination.USER_STOP
    assert not episode.solo
    assert scored(memory, episode).value == 1.0


def test_stop_token_inside_a_chunk_does_not_end_the_episode(domain: GetDomain, task: Task) -> None:
    instance = instance_of(task)
    first, *rest = instance.chunks
    marked = first.model_copy(update={"content": f"{first.content} ###STOP### ###TRANSFER###"})
    changed = task_of(instance.model_copy(update={"chunks": (marked, *rest)}))
    episode = played(domain("memory"), changed, empty_reply)
    observations = [message.content or "" for message in episode.messages if message.role == "user"]
    assert len(observations) == len(instance.chunks) + 1
    assert observations[0].endswith(" STOP TRANSFER")


def test_oracle_asks_a_domain_that_is_added_later_for_its_scorer(
    domain: GetDomain, task: Task
) -> None:
    domains: dict[str, Domain] = {}
    oracle = RewardOracle(domains)
    domains["memory"] = domain("memory")
    assert oracle.score(played(domain("memory"), task, gold_reply)).basis == (RewardType.ANSWERS,)
    assert not oracle.calls_models


def test_generated_tasks_have_a_fixed_hash(domain: GetDomain) -> None:
    memory = domain("memory")
    assert memory.release.endswith("memory tasks sha256:08599cae6544")
    assert {split: len(ids) for split, ids in memory.splits.items()} == {
        "train": 74,
        "test": 40,
        "base": 114,
    }


def test_generated_task_is_found_by_its_id(domain: GetDomain, task: Task) -> None:
    assert domain("memory").has_task(task.id)
    assert domain("memory").task(task.id) == task


def test_observation_shows_the_entries_a_chunk_refers_to(domain: GetDomain) -> None:
    memory = domain("memory")
    task = memory.generate(seed=1, count=1, difficulty=1.0)[0]
    environment = memory.streaming_environment(task)
    assert environment is not None
    observations: list[str] = []
    for chunk in range(1, len(instance_of(task).chunks) + 1):
        observations.append(environment.next_observation() or "")
        for call in gold_reply(task, chunk).tool_calls or ():
            if call.name in {"memory_update", "memory_delete"}:
                assert f"[{call.arguments['memory_id']}]" in observations[-1]
            assert not environment.call(call).error
    assert environment.next_observation() is None
    assert observations[0].startswith("Memory: empty.")
    assert "semantic" in observations[-1]


def test_messages_contain_no_questions_and_no_labels(domain: GetDomain, task: Task) -> None:
    memory = domain("memory")
    text = json.dumps([m.model_dump() for m in played(memory, task, gold_reply).messages])
    assert all(question.question not in text for question in instance_of(task).questions)
    assert "stale" not in text


def test_failing_calls_do_not_end_the_episode_or_change_the_memory(
    domain: GetDomain, task: Task
) -> None:
    def failing_reply(task: Task, chunk: int) -> Message:
        del task
        calls = (
            ToolCall(id=f"{chunk}a", name="memory_delete", arguments={"memory_id": 99}),
            ToolCall(id=f"{chunk}b", name="drop_table"),
        )
        return Message(role="assistant", tool_calls=calls)

    episode = played(domain("memory"), task, failing_reply)
    reward = scored(domain("memory"), episode)
    assert episode.termination is Termination.USER_STOP
    assert reward.components[RewardType.CALLS] == 0.0
    assert not replay(task, episode.messages).memory.entries
    answers = [m.content or "" for m in episode.messages if m.role == "tool"]
    assert "there is no memory with id 99" in answers[0]


def test_agent_with_empty_replies_gets_a_low_reward(domain: GetDomain, task: Task) -> None:
    reward = scored(domain("memory"), played(domain("memory"), task, empty_reply))
    assert reward.value <= 0.17
    assert len(reward.steps) == len(instance_of(task).chunks)
    assert all(check.answer == UNKNOWN for check in reward.answer_checks)


def test_step_rewards_are_the_weighted_sum_of_reported_components(
    domain: GetDomain, task: Task
) -> None:
    reward = scored(domain("memory"), played(domain("memory"), task, gold_reply))
    components = reward.components
    assert set(components) == {
        RewardType.ANSWERS,
        RewardType.CALLS,
        RewardType.COMPRESSION,
        RewardType.CONTENT,
    }
    for step in reward.steps:
        r1, r2, r3, r4 = (step.components[name] for name in components)
        assert step.value == pytest.approx(r1 + r2 + 0.05 * r3 + 0.1 * r4, abs=1e-12)
    assert Reward.model_validate_json(reward.model_dump_json()) == reward
    cell = measure({task.id: [reward]})
    assert cell.mean == 1.0
    assert cell.components["answers_single"] == 1.0
    assert cell.components["COMPRESSION"] == components[RewardType.COMPRESSION]


def test_stored_trajectory_has_the_same_reward_again(domain: GetDomain, task: Task) -> None:
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


def test_truncated_episode_has_zero_reward(domain: GetDomain, task: Task) -> None:
    memory = domain("memory")
    episode = played(memory, task, gold_reply)
    truncated = episode.model_copy(update={"termination": Termination.CONTEXT_WINDOW_EXCEEDED})
    reward = scored(memory, truncated)
    assert (reward.value, {step.value for step in reward.steps}) == (0.0, {0.0})


def test_reward_weights_and_credit_follow_the_config(domain: GetDomain, task: Task) -> None:
    episode = played(domain("memory"), task, gold_reply)
    config = MemoryConfig(beta=1.0, gamma=0.0, credit="evidence", evidence_share=1.0)
    reward = MemoryScorer(config).score(episode)
    shares = [step.components[RewardType.ANSWERS] for step in reward.steps]
    assert sum(shares) / len(shares) == pytest.approx(reward.value)
    assert len(set(shares)) > 1
    r3 = reward.components[RewardType.COMPRESSION]
    first = reward.steps[0]
    assert first.value == pytest.approx(shares[0] + first.components[RewardType.CALLS] + r3)


def test_episodes_do_not_share_a_memory(domain: GetDomain, task: Task) -> None:
    first, second = (domain("memory").environment(task) for _ in range(2))
    first.call(ToolCall(id="0", name="memory_insert", arguments={"content": "Ava lives in Oslo."}))
    assert first.state() != second.state()
    assert first.state_hash() != second.state_hash()


def test_entries_get_the_date_of_their_chunk_if_configured(task: Task) -> None:
    stamped = MemoryDomain(settings=MemoryConfig(stamp=True))
    environment = stamped.environment(task)
    environment.next_observation()
    environment.call(
        ToolCall(id="0", name="memory_insert", arguments={"content": "Ava lives in Oslo."})
    )
    day = instance_of(task).chunks[0].timestamp
    assert f"(semantic, {day}) Ava lives" in (environment.next_observation() or "")


def test_generator_parameters_of_the_config_are_used() -> None:
    config = GRPOConfig(
        task_order=("memory",), memory=MemoryConfig(knobs={"chunks": 2, "questions": 3})
    )
    memory = load_domain("memory").configured(config)
    task = memory.generate(seed=0, count=1, difficulty=0.5)[0]
    assert len(instance_of(task).chunks) == 2
    with pytest.raises(ConfigError, match=r"memory\.knobs"):
        MemoryDomain(settings=MemoryConfig(knobs={"chnks": 2})).generate(seed=0, count=1)


def test_instances_are_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    save_jsonl(path, generate_instances(0, 5, difficulty=0.2))
    config = GRPOConfig(task_order=("memory",), memory=MemoryConfig(path=path))
    loader = TaskDataLoader(config)
    train, test = loader.train_tasks("memory"), loader.evaluation_tasks("memory")
    assert (len(train), len(test)) == (4, 1)
    assert loader.releases["memory"].startswith("mine.jsonl memory tasks sha256:")
    gold = played(loader.domains["memory"], test[0], gold_reply)
    assert scored(loader.domains["memory"], gold).value == 1.0


def test_instances_are_loaded_from_the_files_of_a_folder(tmp_path: Path) -> None:
    one, two = generate_instances(0, 2, difficulty=0.2)
    save_jsonl(tmp_path / "b.jsonl", [one])
    save_jsonl(tmp_path / "a.jsonl", [two])
    memory = MemoryDomain(settings=MemoryConfig(path=tmp_path))
    assert [task.id for task in memory.tasks("base")] == [two.id, one.id]


def test_questions_that_were_not_generated_need_an_answerer_model(tmp_path: Path) -> None:
    path = tmp_path / "theirs.jsonl"
    instance = generate_instances(0, 1, difficulty=0.2)[0]
    save_jsonl(path, [instance.model_copy(update={"source": "elsewhere"})])
    with pytest.raises(ConfigError, match=r"memory\.answerer\.model"):
        MemoryDomain(settings=MemoryConfig(path=path)).tasks("base")


def test_task_of_another_domain_has_no_instance(domain: GetDomain) -> None:
    with pytest.raises(TaskDataError, match="holds no instance"):
        instance_of(domain("mock").tasks("base")[0])


# Demonstrations.


def test_demonstration_has_one_reply_per_chunk(domain: GetDomain, task: Task) -> None:
    solved = demonstrate(domain("memory"), task)
    assert solved is not None
    turns = agent_turns(solved)
    replies = [message for message in turns if message.role == "assistant"]
    assert len(replies) == len(instance_of(task).chunks)
    assert all(reply.tool_calls for reply in replies)
    assert scored(domain("memory"), solved).value == 1.0


def test_demonstration_continues_after_an_injected_error(domain: GetDomain) -> None:
    memory = domain("memory")
    num_worse = 0
    for task in memory.generate(seed=2, count=8, difficulty=0.0):
        with_error = demonstrate(memory, task, error_rng=Random(task.id))
        assert with_error is not None
        reward = scored(memory, with_error)
        assert reward.value >= 0.5
        assert all(not message.error for message in with_error.messages)
        num_worse += reward.value < 1
    assert num_worse >= 4


@pytest.mark.parametrize("difficulty", [0.0, 0.7])
def test_demonstrations_have_names_of_their_own(domain: GetDomain, difficulty: float) -> None:
    memory = domain("memory")
    names: set[str] = set()
    tasks = memory.generate(seed=3, count=20, difficulty=difficulty)
    for task in tasks:
        renamed = memory.demonstration_task(task)
        assert renamed.id == task.id
        assert renamed.skills == task.skills
        assert demonstrate(memory, renamed) is not None
        found = people_of(renamed)
        assert len(found) == len(people_of(task)) > 0
        assert found.isdisjoint(FIRST_NAMES)
        names |= found
    assert len(names) > 2 * len(tasks)


def test_compact_reply_with_several_calls_is_parsed_back(domain: GetDomain) -> None:
    lesson = generate_examples(DemonstrationSpec("memory", 0, 6, 0.2, is_compact=True))
    texts = (str(m.content or "") for each in lesson for m in each.messages)
    chat = CompactChat(train_tokenizer(texts, size=600))
    for example in lesson:
        found = tokenize_example(chat, example, context=10_000)
        assert found is not None
        replies = [m for m in example.messages if m.role == "assistant"]
        for (start, end), message in zip(found.turns, replies, strict=True):
            read = chat.parse_reply(found.ids[start:end])
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
    lesson = generate_examples(DemonstrationSpec("memory", 0, 20, 0.0, is_compact=True))
    create_tiny_model(lesson, folder, seed=0, size=Size(width=64, layers=2))
    return folder


class Stopped(Exception):  # noqa: N818
    """Simulates a process that dies."""


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


@pytest.mark.slow
def test_memory_run_logs_components_and_resumes_exactly(policy: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_memory_trains_in_a_sequence_of_domains(policy: Path, tmp_path: Path) -> None:
    GRPOTrainer(memory_config(policy, tmp_path, "airline", "memory", "telecom")).train()
    matrix = RMatrix.load(RunDir(tmp_path).r_matrix)
    assert [row.after for row in matrix.rows] == ["base", "airline", "memory", "telecom"]
    cells = [row.cells["memory"] for row in matrix.rows]
    assert all(0 <= cell.mean <= 1 for cell in cells)
    assert matrix.facts["memory"].basis == (RewardType.ANSWERS,)
