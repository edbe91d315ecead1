"""An episode stepped by another engine: the engine samples replies, the session does the rest.

The episode runs in the same loop as in a local run, with an agent that waits for external replies.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from grpo_cl.errors import ContextFullError
from grpo_cl.integrations.episode_context import EpisodeContext, Outcome, require_tools
from grpo_cl.policy.chat.dialects import dialect_named
from grpo_cl.policy.chat.tool_call_parser import THINK_END, strip_reasoning
from grpo_cl.rollout import Scene, play
from grpo_cl.types import Message, Task, TokenTrace, Trajectory, number_calls

T = TypeVar("T")


class Turn(NamedTuple):
    """The new messages after a reply, or at the start of an episode."""

    messages: tuple[Message, ...]
    """Messages the agent reads next: tool results or user messages."""
    done: bool
    """Whether the episode is over; if so, no further reply is accepted."""


def read_reply(text: str, dialect: str) -> Message:
    """Parse a reply with tool calls in the format ``dialect``; malformed replies do not raise."""
    # A closing tag without an opening one: the prompt ended with the opening tag.
    content, calls = dialect_named(dialect).parse(strip_reasoning(text, is_open=THINK_END in text))
    return without_call_ids(
        Message(role="assistant", content=content or None, tool_calls=calls or None)
    )


def without_call_ids(reply: Message) -> Message:
    """The reply with empty call ids, which the session replaces by its own numbering."""
    calls = tuple(call.model_copy(update={"id": ""}) for call in reply.tool_calls or ())
    return reply.model_copy(update={"tool_calls": calls or None})


class _ExternalAgent:
    """Actor and agent of one episode; ``act`` waits for a reply from the engine."""

    def __init__(self) -> None:
        self.reply_requested: asyncio.Queue[None] = asyncio.Queue()
        self.replies: asyncio.Queue[Message | None] = asyncio.Queue()
        self.scene: Scene | None = None
        self.messages: Sequence[Message] = ()

    def join(self, scene: Scene) -> "_ExternalAgent":
        self.scene = scene
        return self

    async def act(self, messages: Sequence[Message]) -> Message:
        self.messages = messages
        self.reply_requested.put_nowait(None)
        reply = await self.replies.get()
        if reply is None:
            raise ContextFullError("the engine stopped the episode early")
        return reply

    def trace(self) -> None:
        """None: the engine has the tokens and may pass them to ``Session.finish``."""


class Session:
    """One episode; all methods run on the event loop that called ``open``."""

    def __init__(self, context: EpisodeContext, task: Task, *, seed: int | None = None) -> None:
        self.task = task
        self._context = context
        self._seed = context.next_seed(task) if seed is None else seed
        self._agent = _ExternalAgent()
        self._episode: asyncio.Task[Trajectory] | None = None
        self._num_seen = self._num_calls = 0

    @property
    def scene(self) -> Scene:
        """System prompt and tools; available after ``open``."""
        assert self._agent.scene is not None, "open() must be called before scene"
        return self._agent.scene

    async def open(self) -> Turn:
        """Start the episode; returns the messages before the agent's first reply."""
        context, domain = self._context, self._context.domain(self.task.domain)
        require_tools(domain, self.task)
        self._episode = asyncio.create_task(
            play(
                self._agent,
                domain,
                self.task,
                context.rollout,
                seed=self._seed,
                models=context.users,
            )
        )
        self._episode.add_done_callback(lambda _: self._agent.reply_requested.put_nowait(None))
        return await self._next()

    async def step(self, reply: Message) -> Turn:
        """Continue with the agent's reply; calls without an id get one."""
        assert self._episode is not None and not self._episode.done(), (
            "the episode is over or not open"
        )
        self._num_seen += 1  # the reply itself is the next message of the episode
        self._agent.replies.put_nowait(self._with_call_ids(reply))
        return await self._next()

    async def finish(self, tokens: TokenTrace | None = None) -> Outcome:
        """End and score the episode; an unfinished one terminates as if the context were full."""
        assert self._episode is not None, "open() must be called before finish()"
        self._agent.replies.put_nowait(None)
        trajectory = (await self._episode).model_copy(update={"tokens": tokens})
        if self._context.has_judge:
            return await asyncio.to_thread(self._context.score, trajectory)
        return self._context.score(trajectory)

    async def close(self) -> None:
        """Cancel the episode."""
        if self._episode is not None:
            self._episode.cancel()
            await asyncio.wait({self._episode})

    async def _next(self) -> Turn:
        assert self._episode is not None
        await self._agent.reply_requested.get()
        done = self._episode.done()
        messages = self._episode.result().messages if done else self._agent.messages
        new = messages[self._num_seen :]
        self._num_seen = len(messages)
        return Turn(tuple(message for message in new if message.is_visible_to_agent), done)

    def _with_call_ids(self, message: Message) -> Message:
        calls = message.tool_calls or ()
        first = self._num_calls
        self._num_calls += len(calls)
        with_ids = tuple(
            call if call.id else numbered
            for call, numbered in zip(calls, number_calls(calls, first), strict=True)
        )
        return message.model_copy(update={"tool_calls": with_ids or None})


class SyncSession:
    """A session for callers without an event loop; any thread may step it."""

    def __init__(self, context: EpisodeContext, task: Task, *, seed: int | None = None) -> None:
        self._context = context
        self._session = Session(context, task, seed=seed)

    @property
    def scene(self) -> Scene:
        """System prompt and tools; available after ``open``."""
        return self._session.scene

    def open(self) -> Turn:
        """Start the episode; returns the messages before the agent's first reply."""
        return self._wait(self._session.open())

    def step(self, reply: Message) -> Turn:
        """Continue with the agent's reply; calls without an id get one."""
        return self._wait(self._session.step(reply))

    def finish(self, tokens: TokenTrace | None = None) -> Outcome:
        """End and score the episode; an unfinished one terminates as if the context were full."""
        return self._wait(self._session.finish(tokens))

    def close(self) -> None:
        """Cancel the episode."""
        self._wait(self._session.close())

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._context.background_loop.submit(coroutine).result()
