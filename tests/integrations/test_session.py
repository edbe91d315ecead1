"""Episodes stepped by an engine equal the episodes of a local run."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chat_parts import Customers
from chat_server import ChatServer, Fault
from grpo_cl.config import GRPOConfig
from grpo_cl.envs import DOMAINS, Domain
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import (
    EpisodeContext,
    Outcome,
    episode_config,
    shared_context,
)
from grpo_cl.integrations.session import Session, SyncSession, read_reply
from grpo_cl.rewards import RewardOracle, training_reward
from grpo_cl.rollout import GREETING, Agent, ScriptedActor, run_episodes
from grpo_cl.types import Message, Task, Termination, ToolCall, Trajectory

GetDomain = Callable[[str], Domain]
MakeContext = Callable[..., EpisodeContext]


def communicated(task: Task) -> str:
    return " ".join(task.communicate_info)


GOLD = ScriptedActor(
    lambda task: [action.call for action in task.gold_actions], closing=communicated
)
NOTHING = ScriptedActor(lambda task: [])
FAILING: tuple[Fault, ...] = ("500",) * 100


@pytest.fixture
def context() -> Iterator[MakeContext]:
    contexts: list[EpisodeContext] = []

    def make(**options: Any) -> EpisodeContext:
        contexts.append(EpisodeContext(episode_config(options)))
        return contexts[-1]

    yield make
    for created in contexts:
        created.close()


async def run_session(session: Session, actor: ScriptedActor) -> Outcome:
    turn = await session.open()
    agent: Agent = actor.join(session.scene)
    messages = list(turn.messages)
    while not turn.done:
        turn = await session.step(await agent.act(messages))
        messages += turn.messages
    return await session.finish()


def run_sync_session(session: SyncSession, actor: ScriptedActor) -> Outcome:
    turn = session.open()
    agent = actor.join(session.scene)
    while not turn.done:
        turn = session.step(asyncio.run(agent.act(turn.messages)))
    return session.finish()


def comparable(trajectory: Trajectory) -> dict[str, Any]:
    return trajectory.model_dump(exclude={"duration_s", "model_calls"})


def some_tasks(domain: Domain) -> list[Task]:
    return list(domain.tasks("test" if "test" in domain.splits else "base")[:4])


@pytest.mark.parametrize("user", ["solo", "scripted"])
@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_stepped_episode_equals_the_local_episode_and_its_reward(
    domain: GetDomain, context: MakeContext, name: str, user: str
) -> None:
    episodes = context(user_strategy=user)
    tasks = some_tasks(domain(name))
    oracle = RewardOracle({name: domain(name)})
    for actor in (GOLD, NOTHING):
        local = run_episodes(actor, {name: domain(name)}, tasks, episodes.config.rollout)
        for task, expected in zip(tasks, local, strict=True):
            outcome = asyncio.run(run_session(Session(episodes, task, seed=0), actor))
            assert comparable(outcome.trajectory) == comparable(expected)
            assert outcome.reward == oracle.score(expected)
            assert outcome.training_reward == training_reward(
                outcome.reward, episodes.config.reward
            )


def test_sync_session_can_be_stepped_from_a_thread(domain: GetDomain, context: MakeContext) -> None:
    episodes = context(user_strategy="scripted")
    for task in some_tasks(domain("telecom")):
        expected = asyncio.run(run_session(Session(episodes, task, seed=0), GOLD))
        threaded = run_sync_session(SyncSession(episodes, task, seed=0), GOLD)
        assert comparable(threaded.trajectory) == comparable(expected.trajectory)
        assert threaded.reward == expected.reward


@pytest.mark.parametrize("strategy", ["llm", "verify"])
def test_llm_user_takes_part_in_a_session(
    domain: GetDomain, context: MakeContext, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    retail = domain("retail")
    task = retail.tasks("test")[3]
    scripted = run_sync_session(SyncSession(context(user_strategy="scripted"), task), GOLD)
    with ChatServer(Customers(retail, [task])) as server:
        episodes = context(
            user_strategy=strategy,
            user_model="openai-api/loopback/customer",
            user_base_url=server.url,
            models={"cache_dir": None},
        )
        outcome = run_sync_session(SyncSession(episodes, task), GOLD)
        episodes.close()
    texts = [message.content for message in outcome.trajectory.messages]
    assert texts == [message.content for message in scripted.trajectory.messages]
    assert outcome.reward.value == scripted.reward.value
    assert outcome.trajectory.model_calls


def test_episode_ended_by_an_endpoint_failure_has_no_training_reward(
    domain: GetDomain, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    task = domain("retail").tasks("test")[3]
    with ChatServer(Customers(domain("retail"), [task]), FAILING) as server:
        episodes = context(
            user_strategy="llm",
            user_model="openai-api/loopback/customer",
            user_base_url=server.url,
            models={"cache_dir": None, "retries": 1, "backoff_s": 0.001},
        )
        outcome = run_sync_session(SyncSession(episodes, task), GOLD)
        episodes.close()
    assert outcome.trajectory.termination is Termination.INFRASTRUCTURE_ERROR
    assert outcome.training_reward is None


def test_agent_gets_the_opening_messages_and_then_only_new_ones(
    domain: GetDomain, context: MakeContext
) -> None:
    session = SyncSession(context(user_strategy="scripted"), domain("mock").task("create_task_1"))
    opening = session.open()
    assert [message.role for message in opening.messages] == ["assistant", "user"]
    assert opening.messages[0].content == GREETING
    call = ToolCall(name="create_task", arguments={"user_id": "user_1", "title": "x"})
    turn = session.step(Message(role="assistant", tool_calls=(call, call)))
    assert [message.role for message in turn.messages] == ["tool", "tool"]
    assert [message.id for message in turn.messages] == ["call_0", "call_1"]
    session.close()


def test_unfinished_episode_terminates_with_context_window_exceeded(
    domain: GetDomain, context: MakeContext
) -> None:
    session = SyncSession(context(), domain("mock").task("create_task_1"))
    session.open()
    outcome = session.finish()
    assert outcome.trajectory.termination is Termination.CONTEXT_WINDOW_EXCEEDED
    assert outcome.training_reward == 0.0


def test_training_reward_can_be_shaped(domain: GetDomain, context: MakeContext) -> None:
    task = domain("airline").task("37")  # its gold actions cancel one reservation, change another
    first = ScriptedActor(lambda task: [task.gold_actions[0].call])
    outcome = asyncio.run(
        run_session(Session(context(reward={"shaping": "progress"}), task), first)
    )
    assert outcome.reward.value == 0.0
    assert outcome.training_reward is not None
    assert 0.0 < outcome.training_reward < 1.0


def test_episodes_of_one_task_have_different_seeds(domain: GetDomain, context: MakeContext) -> None:
    episodes, task = context(), domain("mock").task("create_task_1")
    seeds = {episodes.next_seed(task) for _ in range(8)}
    assert len(seeds) == 8
    assert context().next_seed(task) in seeds


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ('<tool_call>\n{"name": "done", "arguments": {}}\n</tool_call>', "hermes"),
        ('<think>\nhm\n</think>\n{"name": "done", "arguments": {}}', "json"),
        ('the prompt opened this</think>{"name": "done", "parameters": {}}', "llama"),
        ('[TOOL_CALLS] [{"name": "done", "arguments": {}, "id": "abcdefghi"}]', "mistral"),
    ],
)
def test_reply_is_parsed_in_the_tool_call_format_of_its_model(text: str, dialect: str) -> None:
    reply = read_reply(text, dialect)
    assert reply == Message(role="assistant", tool_calls=(ToolCall(name="done"),))


def test_engine_options_map_to_the_run_config() -> None:
    config = episode_config({"user_strategy": "solo", "max_turns": 7, "rollout": {"max_errors": 3}})
    assert config.rollout.max_turns == 7
    assert config.rollout.max_errors == 3
    with pytest.raises(ConfigError, match="user_strategy, user_model"):
        episode_config({"user_stratgy": "solo"})


def test_local_policy_as_user_is_rejected() -> None:
    with pytest.raises(ConfigError, match="another engine has it"):
        EpisodeContext(episode_config({"user_strategy": "llm", "user_model": "policy"}))


def test_episodes_of_one_process_share_their_context() -> None:
    assert shared_context(GRPOConfig()) is shared_context(GRPOConfig())
    assert shared_context(GRPOConfig(seed=1)) is not shared_context(GRPOConfig())
