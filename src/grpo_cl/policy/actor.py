"""A policy that plays: conversations in, token ids through a sampler, messages out."""

import asyncio
import weakref
from collections.abc import Sequence
from random import Random
from typing import Protocol

from grpo_cl.errors import ContextFullError
from grpo_cl.policy.sampler import Completion, Request, Sampler
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, TokenTrace

MIN_REPLY = 8
"""Tokens of context below which a reply is not begun."""


class ChatFormat(Protocol):
    """How a policy's conversations are written as token ids."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Any of these ends a reply and belongs to it."""
        ...

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """Everything the policy reads before its first reply."""
        ...

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """What follows a reply: its end if it has none, ``messages``, the next turn's beginning."""
        ...

    def read(self, ids: Sequence[int]) -> Message:
        """A reply as a message."""
        ...


class Desk:
    """Passes requests to a sampler and brings each agent its reply.

    While anybody waits, one task of the event loop works the sampler; between two rounds it lets
    every episode whose reply is there go on, so that their next requests join the next round.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._work: asyncio.Task[None] | None = None

    async def reply(self, request: Request) -> Completion:
        """Wait for the reply to ``request`` while others are written too."""
        loop = asyncio.get_running_loop()
        self.sampler.submit([request])
        future: asyncio.Future[Completion] = loop.create_future()
        self._waiting[request.id] = future
        if self._work is None or self._work.done():
            self._work = loop.create_task(self._serve())
            self._work.add_done_callback(self._close)
        try:
            return await future
        finally:
            self._waiting.pop(request.id, None)

    async def _serve(self) -> None:
        while any(not future.done() for future in self._waiting.values()):
            for completion in self.sampler.poll():
                future = self._waiting.get(completion.id)
                if future is not None and not future.done():
                    future.set_result(completion)
            await asyncio.sleep(0)

    def _close(self, work: asyncio.Task[None]) -> None:
        """Tell those who still wait what went wrong, instead of letting them wait for ever."""
        error = None if work.cancelled() else work.exception()
        for future in self._waiting.values():
            if error is not None and not future.done():
                future.set_exception(error)


class PolicyActor:
    """Plays many episodes at once with one policy."""

    def __init__(
        self,
        chat: ChatFormat,
        sampler: Sampler,
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float,
    ) -> None:
        self.chat = chat
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.top_p = top_p
        self.desk = Desk(sampler)

    def join(self, scene: Scene) -> "PolicyAgent":
        """An agent for one episode."""
        return PolicyAgent(self, scene)


class PolicyAgent:
    """The policy in one episode: one growing sequence of token ids."""

    def __init__(self, actor: PolicyActor, scene: Scene) -> None:
        self._actor = actor
        self._scene = scene
        # Unlike a counter's, no two living agents have the same, even of several actors that share
        # a sampler: the reply to one that was given up never reaches another.
        self._sequence = id(self)
        self._num_read = 0
        self._num_calls = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[tuple[int, int]] = []
        self._has_ended = True
        # An episode that dies of an error never asks for its trace; its row must not stay taken.
        self._release = weakref.finalize(self, actor.desk.sampler.release, self._sequence)
        self._release.atexit = False

    async def act(self, messages: Sequence[Message]) -> Message:
        """Write the next message after ``messages``, which only ever grow.

        Raises ``ContextFullError`` where the prompt leaves no room for a reply.
        """
        assert self._release.alive, "an episode is over once its trace was taken"
        request = self._request(self._unread(messages))
        self._num_read = len(messages) + 1  # the reply itself comes back as the next message
        completion = await self._actor.desk.reply(request)
        start = len(self._ids) + len(request.append)
        self._ids += [*request.append, *completion.ids]
        self._logprobs += completion.logprobs
        self._turns.append((start, len(self._ids)))
        self._has_ended = completion.reason == "stop"
        return self._numbered(self._actor.chat.read(completion.ids))

    def trace(self) -> TokenTrace:
        """The tokens read and written; the episode is over and its place in the cache free."""
        self._release()
        mask = [False] * len(self._ids)
        for start, end in self._turns:
            mask[start:end] = [True] * (end - start)
        return TokenTrace(
            ids=tuple(self._ids),
            mask=tuple(mask),
            logprobs=tuple(self._logprobs),
            turns=tuple(self._turns),
            is_truncated=not self._has_ended,
        )

    def _unread(self, messages: Sequence[Message]) -> list[int]:
        new = [message for message in messages[self._num_read :] if _agent_sees(message)]
        if not self._turns:
            return self._actor.chat.opening(self._scene, new)
        return self._actor.chat.continuation(new, ended=self._has_ended)

    def _request(self, append: Sequence[int]) -> Request:
        actor, context = self._actor, self._actor.desk.sampler.context
        room = context - len(self._ids) - len(append)
        needed = min(MIN_REPLY, actor.max_new_tokens)
        if room < needed:
            raise ContextFullError(
                f"{context - room} tokens leave {room} of a context of {context} for a reply; it "
                f"needs {needed}. Raise sampling.max_context or shorten the episode."
            )
        return Request(
            id=self._sequence,
            sequence=self._sequence,
            append=append,
            max_new_tokens=min(actor.max_new_tokens, room),
            temperature=actor.temperature,
            top_p=actor.top_p,
            stop_ids=actor.chat.stop_ids,
            seed=Random(f"{self._scene.seed}/{len(self._turns)}").getrandbits(63),
        )

    def _numbered(self, message: Message) -> Message:
        """Call ids that are unique in the episode, whatever the policy wrote."""
        if not message.tool_calls:
            return message
        first = self._num_calls
        self._num_calls += len(message.tool_calls)
        calls = tuple(
            call.model_copy(update={"id": f"call_{number}"})
            for number, call in enumerate(message.tool_calls, first)
        )
        return message.model_copy(update={"tool_calls": calls})


def _agent_sees(message: Message) -> bool:
    """As in the reference, what the user does on their own device stays with the user."""
    if message.role == "tool":
        return message.requestor == "assistant"
    return message.role != "user" or not message.tool_calls
