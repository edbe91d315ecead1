import asyncio
import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from architectures import built, llama
from grpo_cl.config import RolloutConfig
from grpo_cl.domains import Domain
from grpo_cl.errors import ContextFullError
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.rollout import Scene, run_episodes
from grpo_cl.types import Message, Task, Termination, TokenTrace, ToolCall, Trajectory
from sampling import logits
from word_chat import END, WordChat

GetDomain = Callable[[str], Domain]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return built(llama)


def actor(module: torch.nn.Module, chat: WordChat, **changes: Any) -> PolicyActor:
    size = {name: changes.pop(name, 8 if name == "slots" else 200) for name in ("slots", "context")}
    settings: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 9, "top_p": 1.0}
    engine = TransformersSampler(module, device="cpu", **size)
    return PolicyActor(chat, engine, **settings | changes)


def scene(domain: GetDomain, seed: int = 0) -> Scene:
    task = domain("mock").tasks("base")[0]
    return Scene(task=task, system="task", tools=(), solo=True, seed=seed)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def play(
    player: PolicyActor, domain: GetDomain, count: int = 1, turns: int = 3
) -> list[Trajectory]:
    mock = domain("mock")
    tasks: list[Task] = [mock.tasks("base")[0]] * count
    config = RolloutConfig(user="solo", max_turns=turns, max_errors=100)
    return run_episodes(player, {"mock": mock}, tasks, config, seeds=range(count))


def tokens(trajectory: Trajectory) -> TokenTrace:
    assert trajectory.tokens is not None
    return trajectory.tokens


def engine(player: PolicyActor) -> Any:
    return player.desk.sampler


def test_a_trace_holds_what_was_read_and_written(model: torch.nn.Module, domain: GetDomain) -> None:
    chat = WordChat("get_users")
    (played,) = play(actor(model, chat), domain)
    trace, spans = tokens(played), tokens(played).turns
    assert len(spans) == 3
    read, end = [], 0
    for start, stop in spans:
        read.append(list(trace.ids[end:start]))
        end = stop
    results = [message for message in played.messages if message.role == "tool"]
    cut = [trace.ids[stop - 1] != END for _, stop in spans]
    assert read[1] == chat.continuation(results[:2], ended=not cut[0])
    assert read[2] == chat.continuation(results[2:4], ended=not cut[1])
    inside = {position for span in spans for position in range(*span)}
    assert [position in inside for position in range(len(trace.ids))] == list(trace.mask)
    assert trace.is_truncated == cut[2]


def test_a_trainer_finds_the_same_logprobs(model: torch.nn.Module, domain: GetDomain) -> None:
    for played in play(actor(model, WordChat("get_users"), temperature=0.8), domain, count=6):
        trace = tokens(played)
        plain = (logits(model, trace.ids) / 0.8).log_softmax(-1)
        made = [position for position, is_made in enumerate(trace.mask) if is_made]
        expected = [float(plain[position - 1, trace.ids[position]]) for position in made]
        assert trace.logprobs == pytest.approx(expected, abs=1e-4)


def test_episodes_do_not_depend_on_their_company(model: torch.nn.Module, domain: GetDomain) -> None:
    chat = WordChat("get_users")
    together = [tokens(t).ids for t in play(actor(model, chat, slots=3), domain, count=7)]
    assert together == [tokens(t).ids for t in play(actor(model, chat), domain, count=7)]
    assert tokens(play(actor(model, chat), domain)[0]).ids == together[0]
    assert len(set(together)) > 1  # seeds differ


def test_call_ids_are_unique_in_an_episode(model: torch.nn.Module, domain: GetDomain) -> None:
    (played,) = play(actor(model, WordChat("get_users")), domain)
    assert [call.id for call in played.tool_calls] == [f"call_{n}" for n in range(6)]
    answered = [message.id for message in played.messages if message.role == "tool"]
    assert answered == [call.id for call in played.tool_calls]


def test_each_turn_is_drawn_with_a_seed_of_its_own(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    player = actor(model, WordChat())
    seeds = {player.join(scene(domain, seed))._request([1]).seed for seed in range(50)}
    assert len(seeds) == 50

    async def two_turns() -> None:
        agent = player.join(scene(domain))
        first = agent._request([1]).seed
        await agent.act([user("hello")])
        assert agent._request([1]).seed != first

    asyncio.run(two_turns())


def test_a_reply_is_capped_to_what_fits(model: torch.nn.Module, domain: GetDomain) -> None:
    player = actor(model, WordChat(stop_ids=()), context=13, max_new_tokens=1000)
    agent = player.join(scene(domain))
    asyncio.run(agent.act([user("hello")]))
    trace = agent.trace()
    assert trace.turns == ((5, 13),)  # after <system> task <user> hello <assistant>
    assert trace.is_truncated


def test_a_full_context_is_an_error_of_the_episode(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    agent = actor(model, WordChat(), context=12).join(scene(domain))
    with pytest.raises(ContextFullError, match="5 tokens leave 7 of a context of 12"):
        asyncio.run(agent.act([user("hello")]))
    assert agent.trace() == TokenTrace(ids=(), mask=(), logprobs=(), turns=())


def test_an_episode_whose_context_is_full_keeps_its_whole_turns(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    player = actor(model, WordChat("get_users"), context=80)
    (played,) = play(player, domain, turns=100)
    assert played.termination == Termination.CONTEXT_WINDOW_EXCEEDED
    trace = tokens(played)
    assert len(trace.turns) == sum(message.role == "assistant" for message in played.messages)
    assert len(trace.ids) == trace.turns[-1][1] <= 80


def test_what_the_user_does_on_their_device_is_not_read(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    call = ToolCall(name="check", requestor="user")
    hidden = [
        Message(role="user", tool_calls=(call,)),
        Message(role="tool", content="error", requestor="user"),
    ]

    def read(messages: Sequence[Message]) -> tuple[int, ...]:
        agent = actor(model, WordChat(), temperature=0.0).join(scene(domain))
        greeting = Message(role="assistant", content="hello")
        first = asyncio.run(agent.act([greeting, user("hello")]))
        asyncio.run(agent.act([greeting, user("hello"), first, *messages]))
        return agent.trace().ids

    assert read([*hidden, user("please")]) == read([user("please")])


def test_other_work_goes_on_while_the_policy_writes(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def everything() -> None:
        ticking = asyncio.create_task(tick())
        player = actor(model, WordChat(stop_ids=()), max_new_tokens=100)
        agent = player.join(scene(domain))
        await agent.act([user("hello")])
        ticking.cancel()

    asyncio.run(everything())
    assert ticks >= 100 // 16


def test_a_short_reply_is_answered_before_a_long_one(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    player = actor(model, WordChat(stop_ids=()), max_new_tokens=60)
    order: list[str] = []

    async def speak(name: str, turns: int) -> None:
        agent = player.join(scene(domain))
        heard: list[Message] = []
        for _ in range(turns):
            heard += [user("hello"), await agent.act([*heard, user("hello")])]
            order.append(name)

    async def everything() -> None:
        first = asyncio.create_task(speak("long", 1))
        await asyncio.sleep(0)
        player.max_new_tokens = 9
        await asyncio.gather(first, speak("short", 3))

    asyncio.run(everything())
    assert order == ["short", "short", "short", "long"]


def test_a_failing_policy_reaches_every_episode(domain: GetDomain) -> None:
    broken = built(llama)
    with torch.no_grad():
        next(broken.parameters()).fill_(math.nan)
    player = actor(broken, WordChat())

    async def everything() -> list[Message | BaseException]:
        agents = [player.join(scene(domain)) for _ in range(3)]
        acts = [agent.act([user("hello")]) for agent in agents]
        return await asyncio.gather(*acts, return_exceptions=True)

    assert [type(one) for one in asyncio.run(everything())] == [FloatingPointError] * 3


def test_a_cancelled_episode_holds_nobody_up(model: torch.nn.Module, domain: GetDomain) -> None:
    player = actor(model, WordChat(), slots=1)

    async def everything() -> Message:
        agent = player.join(scene(domain))
        given_up = asyncio.create_task(agent.act([user("hello")]))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        return await player.join(scene(domain)).act([user("hello")])

    assert asyncio.run(everything()).role == "assistant"


def test_the_row_is_free_once_the_trace_is_taken(model: torch.nn.Module, domain: GetDomain) -> None:
    player = actor(model, WordChat("get_users"))
    play(player, domain, count=4)
    assert not engine(player)._conversations
    assert not engine(player)._reader.cache.layers


def test_the_row_is_free_when_an_agent_is_given_up(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    player = actor(model, WordChat())
    agent = player.join(scene(domain))
    asyncio.run(agent.act([user("hello")]))
    assert engine(player)._conversations
    del agent
    gc.collect()
    assert not engine(player)._conversations


def test_two_actors_may_share_a_sampler(model: torch.nn.Module, domain: GetDomain) -> None:
    chat = WordChat("get_users")
    warm = actor(model, chat)
    greedy = PolicyActor(chat, warm.desk.sampler, temperature=0.0, max_new_tokens=9, top_p=1.0)
    expected = [tokens(t).ids for t in play(actor(model, chat), domain, count=3)]
    play(greedy, domain, count=2)
    assert [tokens(t).ids for t in play(warm, domain, count=3)] == expected
