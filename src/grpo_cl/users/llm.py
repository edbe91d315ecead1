"""A user played by a model: a strategy writes each message, and guards look at it."""

from collections.abc import Awaitable, Callable, Sequence

from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.models import Speaker, Voice
from grpo_cl.roles import UserConfig
from grpo_cl.transcripts import ModelCall
from grpo_cl.types import Message, Task
from grpo_cl.users.base import User
from grpo_cl.users.guards import EARLY_STOP, find_fault, without_stop
from grpo_cl.users.guidelines import system_text
from grpo_cl.users.part import REPLY, REWRITE, Part
from grpo_cl.users.plain import write_plainly
from grpo_cl.users.react import think_first
from grpo_cl.users.reflection import write_reflected
from grpo_cl.users.verify import write_verified

Strategy = Callable[[Part], Awaitable[Message]]

STRATEGIES: dict[str, Strategy] = {
    "llm": write_plainly,
    "react": think_first,
    "reflection": write_reflected,
    "verify": write_verified,
}
"""How a model comes to the user's next message."""


class ModelUser(User):
    """The user of one episode, played by a model."""

    def __init__(
        self,
        task: Task,
        user_tools: Sequence[ToolSchema],
        write: Strategy,
        voice: Voice,
        config: UserConfig,
    ) -> None:
        self._write = write
        self._guard_retries = config.guard_retries
        self._voice = voice
        self._num_calls = 0
        self._part = Part(
            system=system_text(task, user_tools),
            tools=user_tools,
            messages=(),
            voice=voice,
            checks=config.checks,
        )

    @property
    @override
    def model_calls(self) -> Sequence[ModelCall]:
        """What the model was asked and said."""
        return self._voice.calls

    @override
    async def respond(self, messages: Sequence[Message]) -> Message:
        """The strategy's message; one that no customer would give is written again."""
        part = self._part._replace(messages=messages)
        for attempt in range(self._guard_retries + 1):
            message = await self._write(part)
            fault = find_fault(message, messages)
            if fault is None:
                return self._numbered(message)
            self._voice.reject(fault.name, purposes=(REPLY, REWRITE))
            if attempt == self._guard_retries and fault.name == EARLY_STOP:
                return without_stop(message)  # the yes is meant; only the end comes too soon
            part = part.with_note(fault.advice)
        raise self._voice.give_up(
            f"{self._voice.model} gave {self._guard_retries + 1} replies that no user would give; "
            "another user.model or a higher user.temperature may do better"
        )

    def _numbered(self, message: Message) -> Message:
        """Call ids that are unique in the episode, whatever the model wrote."""
        if not message.tool_calls:
            return message
        first = self._num_calls
        self._num_calls += len(message.tool_calls)
        calls = tuple(
            call.model_copy(update={"id": f"user_call_{number}"})
            for number, call in enumerate(message.tool_calls, first)
        )
        return message.model_copy(update={"tool_calls": calls})


class ModelUsers:
    """Makes the users of a run that models play."""

    def __init__(self, config: UserConfig, speaker: Callable[[Task], Speaker]) -> None:
        self._config = config
        self._speaker = speaker

    def make(
        self, write: Strategy, task: Task, user_tools: Sequence[ToolSchema], *, seed: int
    ) -> ModelUser:
        """A user for one episode of ``task``."""
        voice = Voice(self._speaker(task), role="user", seed=seed)
        return ModelUser(task, user_tools, write, voice, self._config)
