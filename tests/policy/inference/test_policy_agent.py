import asyncio
import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from architectures import built, llama
from grpo_cl.config import RolloutConfig
from grpo_cl.envs import Domain
from grpo_cl.errors import ContextFullError, TrainingError
from grpo_cl.policy.inference.policy_agent import PolicyActor
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.rollout import Scene, run_episodes
from grpo_cl.types import Message, Task, Termination, TokenTrace, ToolCall, Trajectory
from sampling import logits
from word_chat import END, WordChat

GetDomain = Callable[[str], Domain]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return built(llama)


def make_actor(module: torch.nn.Module, chat: WordChat, **changes: Any) -> PolicyActor:
    size = {name: changes.pop(name, 8 if name == "slots" else 200) for name in ("slots", "context")}
    settings: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 9, "top_p": 1.0}
    sampler = TransformersSampler(module, device="cpu", **size)
    return PolicyActor(chat, sampler, **settings | changes)


def episode_setup(domain: GetDomain, seed: int = 0) -> Scene:
    task = domain("mock").tasks("base")[0]
    return Scene(task=task, system="task", tools=(), solo=True, seed=seed)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def play(actor: PolicyActor, domain: GetDomain, count: int = 1, turns: int = 3) -> list[Trajectory]:
    mock = domain("mock")
    tasks: list[Task] = [mock.tasks("base")[0]] * count
    config = RolloutConfig(user="solo", max_turns=turns, max_errors=100)
    return run_episodes(actor, {"mock": mock}, tasks, config, seeds=range(count))


def tokens(trajectory: Trajectory) -> TokenTrace:
    assert trajectory.tokens is not None
    return trajectory.tokens


def sampler_of(actor: PolicyActor) -> Any:
    return actor.queue.sampler


def test_trace_holds_prompt_and_completion_tokens(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    chat = WordChat("get_users")
    (played,) = play(make_actor(model, chat), domain)
    trace, spans = tokens(played), tokens(played).turns
    assert len(spans) == 3
    prompts, end = [], 0
    for start, stop in spans:
        prompts.append(list(trace.ids[end:start]))
        end = stop
    results = [message for message in played.messages if message.role == "tool"]
    is_truncated = [trace.ids[stop - 1] != END for _, stop in spans]
    assert prompts[1] == chat.continuation(results[:2], ended=not is_truncated[0])
    assert prompts[2] == chat.continuation(results[2:4], ended=not is_truncated[1])
    inside = {position for span in spans for position in range(*span)}
    assert [position in inside for position in range(len(trace.ids))] == list(trace.mask)
    assert trace.is_truncated == is_truncated[2]


def test_trace_logprobs_equal_those_of_a_full_forward_pass(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    for played in play(make_actor(model, WordChat("get_users"), temperature=0.8), domain, count=6):
        trace = tokens(played)
        plain = (logits(model, trace.ids) / 0.8).log_softmax(-1)
        sampled = [position for position, is_sampled in enumerate(trace.mask) if is_sampled]
        expected = [float(plain[position - 1, trace.ids[position]]) for position in sampled]
        assert trace.logprobs == pytest.approx(expected, abs=1e-4)


def test_episodes_do_not_depend_on_the_batch(model: torch.nn.Module, domain: GetDomain) -> None:
    chat = WordChat("get_users")
    together = [tokens(t).ids for t in play(make_actor(model, chat, slots=3), domain, count=7)]
    assert together == [tokens(t).ids for t in play(make_actor(model, chat), domain, count=7)]
    assert tokens(play(make_actor(model, chat), domain)[0]).ids == together[0]
    assert len(set(together)) > 1  # seeds differ


def test_call_ids_are_unique_in_an_episode(model: torch.nn.Module, domain: GetDomain) -> None:
    (played,) = play(make_actor(model, WordChat("get_users")), domain)
    assert [call.id for call in played.tool_calls] == [f"call_{n}" for n in range(6)]
    answered = [message.id for message in played.messages if message.role == "tool"]
    assert answered == [call.id for call in played.tool_calls]


def test_each_turn_has_its_own_seed(model: torch.nn.Module, domain: GetDomain) -> None:
    actor = make_actor(model, WordChat())
    seeds = {actor.join(episode_setup(domain, seed))._request([1]).seed for seed in range(50)}
    assert len(seeds) == 50

    async def two_turns() -> None:
        agent = actor.join(episode_setup(domain))
        first = agent._request([1]).seed
        await agent.act([user("hello")])
        assert agent._request([1]).seed != first

    asyncio.run(two_turns())


def test_reply_length_is_limited_to_the_free_context(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    actor = make_actor(model, WordChat(stop_ids=()), context=13, max_new_tokens=1000)
    agent = actor.join(episode_setup(domain))
    asyncio.run(agent.act([user("hello")]))
    trace = agent.trace()
    assert trace.turns == ((5, 13),)  # after <system> task <user> hello <assistant>
    assert trace.is_truncated


def test_full_context_raises_an_error_for_the_episode(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    agent = make_actor(model, WordChat(), context=12).join(episode_setup(domain))
    with pytest.raises(ContextFullError, match="5 tokens leave 7 of a context of 12"):
        asyncio.run(agent.act([user("hello")]))
    assert agent.trace() == TokenTrace(ids=(), mask=(), logprobs=(), turns=())


def test_episode_with_a_full_context_keeps_its_complete_turns(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    actor = make_actor(model, WordChat("get_users"), context=80)
    (played,) = play(actor, domain, turns=100)
    assert played.termination == Termination.CONTEXT_WINDOW_EXCEEDED
    trace = tokens(played)
    assert len(trace.turns) == sum(message.role == "assistant" for message in played.messages)
    assert len(trace.ids) == trace.turns[-1][1] <= 80


def test_user_tool_calls_and_results_are_not_in_the_prompt(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    call = ToolCall(name="check", requestor="user")
    hidden = [
        Message(role="user", tool_calls=(call,)),
        Message(role="tool", content="error", requestor="user"),
    ]

    def trace_ids(messages: Sequence[Message]) -> tuple[int, ...]:
        agent = make_actor(model, WordChat(), temperature=0.0).join(episode_setup(domain))
        greeting = Message(role="assistant", content="hello")
        first = asyncio.run(agent.act([greeting, user("hello")]))
        asyncio.run(agent.act([greeting, user("hello"), first, *messages]))
        return agent.trace().ids

    assert trace_ids([*hidden, user("please")]) == trace_ids([user("please")])


def test_other_tasks_run_while_the_policy_generates(
    model: torch.nn.Module, domain: GetDomain
) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def run_all() -> None:
        ticking = asyncio.create_task(tick())
        actor = make_actor(model, WordChat(stop_ids=()), max_new_tokens=100)
        agent = actor.join(episode_setup(domain))
        await agent.act([user("hello")])
        ticking.cancel()

    asyncio.run(run_all())
    assert ticks >= 100 // 16


def test_short_reply_returns_before_a_long_one(model: torch.nn.Module, domain: GetDomain) -> None:
    actor = make_actor(model, WordChat(stop_ids=()), max_new_tokens=60)
    order: list[str] = []

    async def run_turns(name: str, turns: int) -> None:
        agent = actor.join(episode_setup(domain))
        messages: list[Message] = []
        for _ in range(turns):
            messages += [user("hello"), await agent.act([*messages, user("hello")])]
            order.append(name)

    async def run_all() -> None:
        first = asyncio.create_task(run_turns("long", 1))
        await asyncio.sleep(0)
        actor.max_new_tokens = 9
        await asyncio.gather(first, run_turns("short", 3))

    asyncio.run(run_all())
    assert order == ["short", "short", "short", "long"]


def test_sampler_error_reaches_every_episode(domain: GetDomain) -> None:
    broken = built(llama)
    with torch.no_grad():
        next(broken.parameters()).fill_(math.nan)
    actor = make_actor(broken, WordChat())

    async def run_all() -> list[Message | BaseException]:
        agents = [actor.join(episode_setup(domain)) for _ in range(3)]
        acts = [agent.act([user("hello")]) for agent in agents]
        return await asyncio.gather(*acts, return_exceptions=True)

    assert [type(result) for result in asyncio.run(run_all())] == [TrainingError] * 3


def test_cancelled_episode_does_not_block_others(model: torch.nn.Module, domain: GetDomain) -> None:
    actor = make_actor(model, WordChat(), slots=1)

    async def run_all() -> Message:
        agent = actor.join(episode_setup(domain))
        cancelled = asyncio.create_task(agent.act([user("hello")]))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        return await actor.join(episode_setup(domain)).act([user("hello")])

    assert asyncio.run(run_all()).role == "assistant"


def test_taking_the_trace_frees_the_slot(model: torch.nn.Module, domain: GetDomain) -> None:
    actor = make_actor(model, WordChat("get_users"))
    play(actor, domain, count=4)
    assert not sampler_of(actor)._sequences
    assert not sampler_of(actor)._runner.cache.layers


def test_deleting_an_agent_frees_its_slot(model: torch.nn.Module, domain: GetDomain) -> None:
    actor = make_actor(model, WordChat())
    agent = actor.join(episode_setup(domain))
    asyncio.run(agent.act([user("hello")]))
    assert sampler_of(actor)._sequences
    del agent
    gc.collect()
    assert not sampler_of(actor)._sequences


def test_two_actors_can_share_a_sampler(model: torch.nn.Module, domain: GetDomain) -> None:
    chat = WordChat("get_users")
    sampling = make_actor(model, chat)
    greedy = PolicyActor(chat, sampling.queue.sampler, temperature=0.0, max_new_tokens=9, top_p=1.0)
    expected = [tokens(t).ids for t in play(make_actor(model, chat), domain, count=3)]
    play(greedy, domain, count=2)
    assert [tokens(t).ids for t in play(sampling, domain, count=3)] == expected
