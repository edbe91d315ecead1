"""A model in one part of one episode: its calls are numbered, seeded and written down."""

from collections.abc import Callable, Container
from random import Random
from typing import TypeVar

from grpo_cl.errors import ModelCallError
from grpo_cl.models.prompt import Completion, Prompt, Speaker
from grpo_cl.transcripts import ModelCall

T = TypeVar("T")

SEED_BITS = 31
"""What every provider takes as a seed."""
UNREADABLE = "unreadable"
"""Why an answer is rejected that nobody can make sense of."""


class Voice:
    """Speaks for one part; the same seed and the same conversation give the same questions."""

    def __init__(self, speaker: Speaker, *, role: str, seed: int) -> None:
        self.calls: list[ModelCall] = []
        self._speaker = speaker
        self._role = role
        self._seed = seed

    @property
    def model(self) -> str:
        """Which model speaks."""
        return self._speaker.name

    async def ask(self, prompt: Prompt, *, purpose: str) -> Completion:
        """The model's answer; raises ``ModelCallError`` where none is to be had."""
        # Of random bits: no two calls of a run share a seed, whatever their numbers add up to.
        seed = Random(f"{self._seed}/{self._role}/{len(self.calls)}").getrandbits(SEED_BITS)
        call = ModelCall(
            role=self._role,
            purpose=purpose,
            model=self.model,
            prompt=prompt.digest(),
            seed=seed,
        )
        try:
            reply = await self._speaker.reply(prompt, seed=seed)
        except ModelCallError as error:
            self.calls.append(call.model_copy(update={"error": str(error)}))
            raise
        told = {
            "prompt": reply.digest,
            "reply": reply.completion.text,
            "input_tokens": reply.completion.input_tokens,
            "output_tokens": reply.completion.output_tokens,
            "cost": reply.cost,
            "seconds": reply.seconds,
            "retries": reply.retries,
            "is_cached": reply.is_cached,
        }
        self.calls.append(call.model_copy(update=told))
        return reply.completion

    async def read(self, prompt: Prompt, read: Callable[[str], T], *, purpose: str) -> T:
        """What ``read`` makes of the answer, which is asked for once more where it raises.

        ``ValueError`` is what it raises where it can make nothing of a text.
        """
        problem = ""
        for _ in range(2):
            completion = await self.ask(prompt, purpose=purpose)
            try:
                return read(completion.content)
            except ValueError as error:
                problem = str(error)
                self.reject(UNREADABLE, purposes=(purpose,))
        raise self.give_up(f"the {self._role} {self.model} gave no readable {purpose}: {problem}")

    def give_up(self, reason: str) -> ModelCallError:
        """The error that says no answer was of use; it is in the record of the latest call too."""
        self.calls[-1] = self.calls[-1].model_copy(update={"error": reason})
        return ModelCallError(reason)

    def reject(self, reason: str, *, purposes: Container[str]) -> None:
        """Write down that the latest answer to one of ``purposes`` is not used, and why."""
        place = max(n for n, call in enumerate(self.calls) if call.purpose in purposes)
        self.calls[place] = self.calls[place].model_copy(update={"rejected": reason})
