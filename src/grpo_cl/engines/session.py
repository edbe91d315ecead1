"""One episode that an engine steps: the engine has the policy, we have the rest.

Inside, the episode is played by the same loop as in a local run, with an agent whose replies come
from outside.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from grpo_cl.casting import agent_sees
from grpo_cl.engines.venue import Outcome, Venue
from grpo_cl.errors import ContextFullError
from grpo_cl.policy.dialects import dialect_named
from grpo_cl.policy.parsing import END_OF_THOUGHT, spoken
from grpo_cl.rollout import Scene, play
from grpo_cl.types import Message, Task, TokenTrace, Trajectory

T = TypeVar("T")


class Turn(NamedTuple):
    """What came of a reply, or of the beginning."""

    messages: tuple[Message, ...]
    """What the agent reads next: tool results, or the user's words."""
    done: bool
    """Whether the episode is over and no reply is wanted."""


def read_reply(text: str, dialect: str) -> Message:
    """A reply as text, calls in it as ``dialect`` writes them; never raises for what it says."""
    # A text that closes a thought it never opened began in it: the prompt ended with the mark.
    content, calls = dialect_named(dialect).read(spoken(text, thinking=END_OF_THOUGHT in text))
    return unnamed(Message(role="assistant", content=content or None, tool_calls=calls or None))


def unnamed(reply: Message) -> Message:
    """A reply whose calls have no ids, so that the session gives them its own."""
    calls = tuple(call.model_copy(update={"id": ""}) for call in reply.tool_calls or ())
    return reply.model_copy(update={"tool_calls": calls or None})


class _Seat:
    """The actor and the agent of one episode: it waits where a policy would write."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[None] = asyncio.Queue()
        self.replies: asyncio.Queue[Message | None] = asyncio.Queue()
        self.scene: Scene | None = None
        self.messages: Sequence[Message] = ()

    def join(self, scene: Scene) -> "_Seat":
        self.scene = scene
        return self

    async def act(self, messages: Sequence[Message]) -> Message:
        self.messages = messages
        self.asked.put_nowait(None)
        reply = await self.replies.get()
        if reply is None:
            raise ContextFullError("the engine ended the episode before its own end")
        return reply

    def trace(self) -> None:
        """The tokens are the engine's, which may add them at the end."""


class Session:
    """One episode on the event loop that opened it."""

    def __init__(self, venue: Venue, task: Task, *, seed: int | None = None) -> None:
        self.task = task
        self._venue = venue
        self._seed = venue.next_seed(task) if seed is None else seed
        self._seat = _Seat()
        self._play: asyncio.Task[Trajectory] | None = None
        self._num_read = self._num_calls = 0

    @property
    def scene(self) -> Scene:
        """System prompt and tools, once the episode is open."""
        assert self._seat.scene is not None, "a session is opened before its scene is read"
        return self._seat.scene

    async def open(self) -> Turn:
        """Begin; what the agent reads before its first reply, besides the scene."""
        venue, domain = self._venue, self._venue.domain(self.task.domain)
        self._play = asyncio.create_task(
            play(self._seat, domain, self.task, venue.rollout, seed=self._seed, models=venue.users)
        )
        self._play.add_done_callback(lambda _: self._seat.asked.put_nowait(None))
        return await self._next()

    async def step(self, reply: Message) -> Turn:
        """Take the agent's next message; calls without an id get one."""
        assert self._play is not None and not self._play.done(), "no reply is wanted"
        self._num_read += 1  # the reply comes back as the next message
        self._seat.replies.put_nowait(self._numbered(reply))
        return await self._next()

    async def finish(self, tokens: TokenTrace | None = None) -> Outcome:
        """The episode and its reward; one still going ends as one whose context is full."""
        assert self._play is not None, "a session is opened before it is finished"
        self._seat.replies.put_nowait(None)
        played = (await self._play).model_copy(update={"tokens": tokens})
        if self._venue.has_judge:
            return await asyncio.to_thread(self._venue.score, played)
        return self._venue.score(played)

    async def close(self) -> None:
        """Drop the episode, wherever it is."""
        if self._play is not None:
            self._play.cancel()
            await asyncio.wait({self._play})

    async def _next(self) -> Turn:
        assert self._play is not None
        await self._seat.asked.get()
        done = self._play.done()
        messages = self._play.result().messages if done else self._seat.messages
        new = messages[self._num_read :]
        self._num_read = len(messages)
        return Turn(tuple(message for message in new if agent_sees(message)), done)

    def _numbered(self, message: Message) -> Message:
        calls = message.tool_calls or ()
        first = self._num_calls
        self._num_calls += len(calls)
        named = tuple(
            call if call.id else call.model_copy(update={"id": f"call_{number}"})
            for number, call in enumerate(calls, first)
        )
        return message.model_copy(update={"tool_calls": named or None})


class SyncSession:
    """A session for callers that have no event loop; any thread may step it."""

    def __init__(self, venue: Venue, task: Task, *, seed: int | None = None) -> None:
        self._venue = venue
        self._session = Session(venue, task, seed=seed)

    @property
    def scene(self) -> Scene:
        """System prompt and tools, once the episode is open."""
        return self._session.scene

    def open(self) -> Turn:
        """Begin; what the agent reads before its first reply, besides the scene."""
        return self._wait(self._session.open())

    def step(self, reply: Message) -> Turn:
        """Take the agent's next message; calls without an id get one."""
        return self._wait(self._session.step(reply))

    def finish(self, tokens: TokenTrace | None = None) -> Outcome:
        """The episode and its reward; one still going ends as one whose context is full."""
        return self._wait(self._session.finish(tokens))

    def close(self) -> None:
        """Drop the episode, wherever it is."""
        self._wait(self._session.close())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._venue.line.send(work).result()
