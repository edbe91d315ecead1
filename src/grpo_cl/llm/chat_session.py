"""The model calls of one role in one episode: seeded, numbered and recorded."""

from collections.abc import Callable, Container
from functools import partial
from random import Random
from typing import TypeVar

from grpo_cl.errors import ModelCallError
from grpo_cl.llm.prompt import ChatModel, Completion, Prompt
from grpo_cl.types import ModelCall

T = TypeVar("T")

SEED_BITS = 31
"""Every provider accepts seeds of this size."""
UNREADABLE = "unreadable"
"""The recorded reason for a reply that could not be parsed or has a tool call that cannot run."""


class ChatSession:
    """Calls a model for one role; same seed and same prompts give the same requests."""

    def __init__(self, model: ChatModel, *, role: str, seed: int) -> None:
        self.calls: list[ModelCall] = []
        self._model = model
        self._role = role
        self._seed = seed

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self._model.name

    async def ask(self, prompt: Prompt, *, purpose: str) -> Completion:
        """The model's completion, whose tool calls are complete and name tools of the prompt.

        Raises ``ModelCallError`` if the model gives none, or two with a broken tool call: that says
        nothing about the episode's other side.
        """
        return await self._ask_readable(prompt, partial(_require_calls, prompt), purpose=purpose)

    async def ask_parsed(self, prompt: Prompt, parse: Callable[[str], T], *, purpose: str) -> T:
        """The parsed completion; the model is asked once more if ``parse`` raises ``ValueError``.

        Raises ``ModelCallError`` after the second reply that cannot be parsed.
        """
        return await self._ask_readable(prompt, lambda reply: parse(reply.content), purpose=purpose)

    async def _ask_readable(
        self, prompt: Prompt, read: Callable[[Completion], T], *, purpose: str
    ) -> T:
        problem = ""
        for _ in range(2):
            completion = await self._call(prompt, purpose=purpose)
            try:
                return read(completion)
            except ValueError as error:
                problem = str(error)
                self.reject(UNREADABLE, purposes=(purpose,))
        raise self.failed(
            f"the {self._role} {self.model_name} gave no readable {purpose}: {problem}"
        )

    async def _call(self, prompt: Prompt, *, purpose: str) -> Completion:
        # Hashed from the call's number, so that two calls of a run do not share a seed.
        seed = Random(f"{self._seed}/{self._role}/{len(self.calls)}").getrandbits(SEED_BITS)
        call = ModelCall(
            role=self._role,
            purpose=purpose,
            model=self.model_name,
            prompt=prompt.digest(),
            seed=seed,
        )
        try:
            reply = await self._model.reply(prompt, seed=seed)
        except ModelCallError as error:
            self.calls.append(call.model_copy(update={"error": str(error)}))
            raise
        result = {
            "prompt": reply.digest,
            "reply": reply.completion.text,
            "input_tokens": reply.completion.input_tokens,
            "output_tokens": reply.completion.output_tokens,
            "cost": reply.cost,
            "seconds": reply.seconds,
            "retries": reply.retries,
            "is_cached": reply.is_cached,
        }
        self.calls.append(call.model_copy(update=result))
        return reply.completion

    def failed(self, reason: str) -> ModelCallError:
        """The error to raise if no reply was usable; ``reason`` is recorded in the last call."""
        self.calls[-1] = self.calls[-1].model_copy(update={"error": reason})
        return ModelCallError(reason)

    def reject(self, reason: str, *, purposes: Container[str]) -> None:
        """Record why the latest reply for one of ``purposes`` is not used.

        It leaves the cache: a later run asks again, when the endpoint may be mended.
        """
        index = max(i for i, call in enumerate(self.calls) if call.purpose in purposes)
        self.calls[index] = self.calls[index].model_copy(update={"rejected": reason})
        self._model.forget(self.calls[index].prompt)


def _require_calls(prompt: Prompt, completion: Completion) -> Completion:
    """The completion; ``ValueError`` if it is broken or calls a tool that was not offered."""
    if completion.broken is not None:
        raise ValueError(completion.broken)
    known = [schema["function"]["name"] for schema in prompt.tools]
    for call in completion.tool_calls:
        if known and call.name not in known:  # a compact prompt offers none, and the policy calls
            offered = ", ".join(known)
            raise ValueError(f"it calls {call.name[:80]!r}; the offered tools are: {offered}")
    return completion
