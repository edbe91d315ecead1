"""The policy as an actor: messages in, token ids through a sampler, messages out."""

import asyncio
import weakref
from collections.abc import Sequence
from random import Random
from typing import Protocol

from grpo_cl.envs.base import DONE
from grpo_cl.errors import ContextFullError
from grpo_cl.policy.inference.sampler import GenerationRequest, Sampler, TokenCompletion
from grpo_cl.rollout import MIN_REPLY, Scene
from grpo_cl.types import Message, TokenTrace, ToolCall, number_calls


class ChatFormat(Protocol):
    """Converts conversations to token ids and sampled ids to messages."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Any of these ends a reply and is its last token."""
        ...

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """The prompt of the first reply."""
        ...

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """The tokens between two replies.

        They are the end of a truncated reply, ``messages`` and the next generation prompt.
        """
        ...

    def parse_reply(self, ids: Sequence[int]) -> Message:
        """A sampled reply as a message."""
        ...


class RequestQueue:
    """Submits requests of many agents to one sampler and returns each agent its completion.

    While requests are pending, one task of the event loop polls the sampler. Between two polls the
    episodes with a finished completion continue, so that their next requests join the batch.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._pending: dict[int, asyncio.Future[TokenCompletion]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def generate(self, request: GenerationRequest) -> TokenCompletion:
        """The completion of ``request``."""
        loop = asyncio.get_running_loop()
        self.sampler.submit([request])
        future: asyncio.Future[TokenCompletion] = loop.create_future()
        self._pending[request.id] = future
        if self._polling is None or self._polling.done():
            self._polling = loop.create_task(self._poll())
            self._polling.add_done_callback(self._propagate_error)
        try:
            return await future
        finally:
            self._pending.pop(request.id, None)

    async def _poll(self) -> None:
        while any(not future.done() for future in self._pending.values()):
            for completion in self.sampler.poll():
                future = self._pending.get(completion.id)
                if future is not None and not future.done():
                    future.set_result(completion)
            await asyncio.sleep(0)

    def _propagate_error(self, polling: asyncio.Task[None]) -> None:
        """Fail all pending requests with the sampler's error; they would wait forever."""
        error = None if polling.cancelled() else polling.exception()
        for future in self._pending.values():
            if error is not None and not future.done():
                future.set_exception(error)


class PolicyActor:
    """Creates one agent per episode; all agents share one sampler."""

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
        self.queue = RequestQueue(sampler)

    def join(self, scene: Scene) -> "PolicyAgent":
        """An agent for one episode."""
        return PolicyAgent(self, scene)


class PolicyAgent:
    """The policy in one episode: one growing sequence of token ids."""

    def __init__(self, actor: PolicyActor, scene: Scene) -> None:
        self._actor = actor
        self._scene = scene
        # Unique among live agents, also those of other actors on the same sampler, so that the
        # completion of a cancelled request never reaches another agent. A counter is not.
        self._sequence = id(self)
        self._num_read = 0
        self._num_calls = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[tuple[int, int]] = []
        self._has_ended = True
        # An episode that fails never takes its trace; its cache slot must be freed all the same.
        self._release = weakref.finalize(self, actor.queue.sampler.release, self._sequence)
        self._release.atexit = False

    async def act(self, messages: Sequence[Message]) -> Message:
        """The policy's reply to ``messages``, the whole conversation so far.

        Raises ``ContextFullError`` where the prompt leaves no room for a reply.
        """
        assert self._release.alive, "an episode is over once its trace was taken"
        request = self._request(self._new_ids(messages))
        self._num_read = len(messages) + 1  # the reply itself comes back as the next message
        completion = await self._actor.queue.generate(request)
        start = len(self._ids) + len(request.append)
        self._ids += [*request.append, *completion.ids]
        self._logprobs += completion.logprobs
        self._turns.append((start, len(self._ids)))
        self._has_ended = completion.reason == "stop"
        return self._with_call_ids(self._actor.chat.parse_reply(completion.ids))

    def trace(self) -> TokenTrace:
        """The tokens of the episode; taking it ends the episode and frees its cache slot."""
        self._release()
        mask = [False] * len(self._ids)
        for start, end in self._turns:
            mask[start:end] = [True] * (end - start)
        # Without validation, which takes 0.3 ms for the ids and the mask of a full prompt.
        return TokenTrace.model_construct(
            ids=tuple(self._ids),
            mask=tuple(mask),
            logprobs=tuple(self._logprobs),
            turns=tuple(self._turns),
            is_truncated=not self._has_ended,
        )

    def _new_ids(self, messages: Sequence[Message]) -> list[int]:
        new = [message for message in messages[self._num_read :] if message.is_visible_to_agent]
        if not self._turns:
            return self._actor.chat.opening(self._scene, new)
        return self._actor.chat.continuation(new, ended=self._has_ended)

    def _request(self, append: Sequence[int]) -> GenerationRequest:
        actor, context = self._actor, self._actor.queue.sampler.context
        room = context - len(self._ids) - len(append)
        needed = min(MIN_REPLY, actor.max_new_tokens)
        if room < needed:
            raise ContextFullError(
                f"{context - room} tokens leave {room} of a context of {context} for a reply; it "
                f"needs {needed}. Raise sampling.max_context or shorten the episode."
            )
        return GenerationRequest(
            id=self._sequence,
            sequence=self._sequence,
            append=append,
            max_new_tokens=min(actor.max_new_tokens, room),
            temperature=actor.temperature,
            top_p=actor.top_p,
            stop_ids=actor.chat.stop_ids,
            seed=Random(f"{self._scene.seed}/{len(self._turns)}").getrandbits(63),
        )

    def _with_call_ids(self, message: Message) -> Message:
        """The message with call ids that are unique in the episode, whatever the policy wrote."""
        if not message.tool_calls:
            return message
        first = self._num_calls
        self._num_calls += len(message.tool_calls)
        calls = number_calls(message.tool_calls, first)
        return message.model_copy(update={"tool_calls": calls})


class TabularActor:
    """The tabular policy as an actor: each agent samples one option and then ends the episode."""

    def __init__(self, actor: PolicyActor) -> None:
        self._actor = actor

    def join(self, scene: Scene) -> "TabularAgent":
        """An agent for one episode."""
        return TabularAgent(self._actor.join(scene))


class TabularAgent:
    """Samples one option in its first turn and calls the ``done`` tool in its second."""

    def __init__(self, agent: PolicyAgent) -> None:
        self._agent = agent
        self._has_chosen = False

    async def act(self, messages: Sequence[Message]) -> Message:
        """The sampled option, then the end of the episode."""
        if self._has_chosen:
            return Message(role="assistant", tool_calls=(ToolCall(id=DONE, name=DONE),))
        self._has_chosen = True
        return await self._agent.act(messages)

    def trace(self) -> TokenTrace:
        """The tokens of the signal and the option."""
        return self._agent.trace()
