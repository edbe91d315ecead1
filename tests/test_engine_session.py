"""Episodes that an engine steps are the episodes of a local run."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chat_parts import Customers
from chat_server import ChatServer, Fault
from grpo_cl.config import GRPOConfig
from grpo_cl.domains import DOMAINS, Domain
from grpo_cl.engines.session import Session, SyncSession, read_reply
from grpo_cl.engines.venue import Outcome, Venue, episode_config, shared_venue
from grpo_cl.errors import ConfigError
from grpo_cl.rewards import RewardOracle, learned_value
from grpo_cl.rollout import GREETING, Agent, ScriptedActor, run_episodes
from grpo_cl.types import Message, Task, Termination, ToolCall, Trajectory

GetDomain = Callable[[str], Domain]
MakeVenue = Callable[..., Venue]


def told(task: Task) -> str:
    criteria = task.evaluation_criteria
    return " ".join((criteria.communicate_info or ()) if criteria else ())


GOLD = ScriptedActor(lambda task: [action.call for action in task.gold_actions], closing=told)
NOTHING = ScriptedActor(lambda task: [])
FAILING: tuple[Fault, ...] = ("500",) * 100


@pytest.fixture
def venue() -> Iterator[MakeVenue]:
    made: list[Venue] = []

    def make(**options: Any) -> Venue:
        made.append(Venue(episode_config(options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def stepped(session: Session, actor: ScriptedActor) -> Outcome:
    turn = await session.open()
    agent: Agent = actor.join(session.scene)
    seen = list(turn.messages)
    while not turn.done:
        turn = await session.step(await agent.act(seen))
        seen += turn.messages
    return await session.finish()


def stepped_in_threads(session: SyncSession, actor: ScriptedActor) -> Outcome:
    turn = session.open()
    agent = actor.join(session.scene)
    while not turn.done:
        turn = session.step(asyncio.run(agent.act(turn.messages)))
    return session.finish()


def essence(trajectory: Trajectory) -> dict[str, Any]:
    return trajectory.model_dump(exclude={"duration_s", "model_calls"})


def some_tasks(domain: Domain) -> list[Task]:
    return list(domain.tasks("test" if "test" in domain.splits else "base")[:4])


@pytest.mark.parametrize("user", ["solo", "scripted"])
@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_a_stepped_episode_is_the_local_one_with_its_reward(
    domain: GetDomain, venue: MakeVenue, name: str, user: str
) -> None:
    place = venue(user_strategy=user)
    tasks = some_tasks(domain(name))
    oracle = RewardOracle({name: domain(name)})
    for actor in (GOLD, NOTHING):
        local = run_episodes(actor, {name: domain(name)}, tasks, place.config.rollout)
        for task, expected in zip(tasks, local, strict=True):
            outcome = asyncio.run(stepped(Session(place, task, seed=0), actor))
            assert essence(outcome.trajectory) == essence(expected)
            assert outcome.reward == oracle.score(expected)
            assert outcome.learned == learned_value(outcome.reward, place.config.reward)


def test_a_session_can_be_stepped_from_a_thread(domain: GetDomain, venue: MakeVenue) -> None:
    place = venue(user_strategy="scripted")
    for task in some_tasks(domain("telecom")):
        alone = asyncio.run(stepped(Session(place, task, seed=0), GOLD))
        threaded = stepped_in_threads(SyncSession(place, task, seed=0), GOLD)
        assert essence(threaded.trajectory) == essence(alone.trajectory)
        assert threaded.reward == alone.reward


@pytest.mark.parametrize("strategy", ["llm", "verify"])
def test_a_model_plays_the_user_of_a_session(
    domain: GetDomain, venue: MakeVenue, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    retail = domain("retail")
    task = retail.tasks("test")[3]
    scripted = stepped_in_threads(SyncSession(venue(user_strategy="scripted"), task), GOLD)
    with ChatServer(Customers(retail, [task])) as server:
        place = venue(
            user_strategy=strategy,
            user_model="openai-api/loopback/customer",
            user_base_url=server.url,
            models={"cache_dir": None},
        )
        outcome = stepped_in_threads(SyncSession(place, task), GOLD)
        place.close()
    texts = [message.content for message in outcome.trajectory.messages]
    assert texts == [message.content for message in scripted.trajectory.messages]
    assert outcome.reward.value == scripted.reward.value
    assert outcome.trajectory.model_calls


def test_an_episode_that_a_failing_endpoint_ended_teaches_nothing(
    domain: GetDomain, venue: MakeVenue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    task = domain("retail").tasks("test")[3]
    with ChatServer(Customers(domain("retail"), [task]), FAILING) as server:
        place = venue(
            user_strategy="llm",
            user_model="openai-api/loopback/customer",
            user_base_url=server.url,
            models={"cache_dir": None, "retries": 1, "backoff_s": 0.001},
        )
        outcome = stepped_in_threads(SyncSession(place, task), GOLD)
        place.close()
    assert outcome.trajectory.termination is Termination.INFRASTRUCTURE_ERROR
    assert outcome.learned is None


def test_the_agent_reads_the_beginning_and_then_only_what_is_new(
    domain: GetDomain, venue: MakeVenue
) -> None:
    session = SyncSession(venue(user_strategy="scripted"), domain("mock").task("create_task_1"))
    opening = session.open()
    assert [message.role for message in opening.messages] == ["assistant", "user"]
    assert opening.messages[0].content == GREETING
    call = ToolCall(name="create_task", arguments={"user_id": "user_1", "title": "x"})
    turn = session.step(Message(role="assistant", tool_calls=(call, call)))
    assert [message.role for message in turn.messages] == ["tool", "tool"]
    assert [message.id for message in turn.messages] == ["call_0", "call_1"]
    session.close()


def test_an_engine_that_ends_early_gets_the_reward_of_a_full_context(
    domain: GetDomain, venue: MakeVenue
) -> None:
    session = SyncSession(venue(), domain("mock").task("create_task_1"))
    session.open()
    outcome = session.finish()
    assert outcome.trajectory.termination is Termination.CONTEXT_WINDOW_EXCEEDED
    assert outcome.learned == 0.0


def test_what_to_learn_from_can_be_shaped(domain: GetDomain, venue: MakeVenue) -> None:
    task = domain("airline").task("37")  # its gold actions cancel one reservation, change another
    first = ScriptedActor(lambda task: [task.gold_actions[0].call])
    outcome = asyncio.run(stepped(Session(venue(reward={"shaping": "progress"}), task), first))
    assert outcome.reward.value == 0.0
    assert outcome.learned is not None
    assert 0.0 < outcome.learned < 1.0


def test_episodes_of_one_task_differ_in_their_seeds(domain: GetDomain, venue: MakeVenue) -> None:
    place, task = venue(), domain("mock").task("create_task_1")
    seeds = {place.next_seed(task) for _ in range(8)}
    assert len(seeds) == 8
    assert venue().next_seed(task) in seeds


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ('<tool_call>\n{"name": "done", "arguments": {}}\n</tool_call>', "hermes"),
        ('<think>\nhm\n</think>\n{"name": "done", "arguments": {}}', "json"),
        ('the prompt opened this</think>{"name": "done", "parameters": {}}', "llama"),
        ('[TOOL_CALLS] [{"name": "done", "arguments": {}, "id": "abcdefghi"}]', "mistral"),
    ],
)
def test_a_reply_is_read_in_the_dialect_of_its_model(text: str, dialect: str) -> None:
    reply = read_reply(text, dialect)
    assert reply == Message(role="assistant", tool_calls=(ToolCall(name="done"),))


def test_settings_of_an_engine_are_settings_of_a_run() -> None:
    config = episode_config({"user_strategy": "solo", "max_turns": 7, "rollout": {"max_errors": 3}})
    assert config.rollout.max_turns == 7
    assert config.rollout.max_errors == 3
    with pytest.raises(ConfigError, match="user_strategy, user_model"):
        episode_config({"user_stratgy": "solo"})


def test_the_policy_of_a_run_cannot_play_the_user_elsewhere() -> None:
    with pytest.raises(ConfigError, match="another engine has it"):
        Venue(episode_config({"user_strategy": "llm", "user_model": "policy"}))


def test_episodes_of_one_process_share_their_venue() -> None:
    assert shared_venue(GRPOConfig()) is shared_venue(GRPOConfig())
    assert shared_venue(GRPOConfig(seed=1)) is not shared_venue(GRPOConfig())
