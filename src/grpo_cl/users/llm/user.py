"""User simulator driven by a model: a strategy writes each message, guards reject bad ones."""

from collections.abc import Callable, Sequence

from typing_extensions import override

from grpo_cl.config import UserConfig
from grpo_cl.llm import ChatModel, ChatSession
from grpo_cl.types import Message, ModelCall, Task, ToolSchema, number_calls
from grpo_cl.users.base import USER_CALL_PREFIX, User
from grpo_cl.users.llm.guards import EARLY_STOP, first_violation, without_stop
from grpo_cl.users.llm.prompts import user_system_prompt
from grpo_cl.users.llm.strategies import REPLY, REWRITE, Strategy, UserTurn


class LLMUser(User):
    """The user of one episode, driven by a model."""

    def __init__(
        self,
        task: Task,
        user_tools: Sequence[ToolSchema],
        strategy: Strategy,
        session: ChatSession,
        config: UserConfig,
    ) -> None:
        self._write = strategy
        self._guard_retries = config.guard_retries
        self._session = session
        self._num_calls = 0
        self._turn = UserTurn(
            system=user_system_prompt(task, user_tools),
            tools=user_tools,
            messages=(),
            session=session,
            checks=config.checks,
        )

    @property
    @override
    def model_calls(self) -> Sequence[ModelCall]:
        """All model calls so far."""
        return self._session.calls

    @override
    async def respond(self, messages: Sequence[Message]) -> Message:
        """The strategy's message; one that violates a guard is written again."""
        turn = self._turn._replace(messages=messages)
        for attempt in range(self._guard_retries + 1):
            message = await self._write(turn)
            violated = first_violation(message, messages)
            if violated is None:
                return self._with_call_ids(message)
            self._session.reject(violated.name, purposes=(REPLY, REWRITE))
            if attempt == self._guard_retries and violated.name == EARLY_STOP:
                return without_stop(message)  # the consent is valid, only the stop is too early
            turn = turn.with_note(violated.advice)
        raise self._session.failed(
            f"{self._session.model_name} gave {self._guard_retries + 1} replies that no user would "
            "give; another user.model or a higher user.temperature may do better"
        )

    def _with_call_ids(self, message: Message) -> Message:
        if not message.tool_calls:
            return message
        calls = number_calls(message.tool_calls, self._num_calls, USER_CALL_PREFIX)
        self._num_calls += len(calls)
        return message.model_copy(update={"tool_calls": calls})


class LLMUserFactory:
    """Makes the model-driven users of a run."""

    def __init__(self, config: UserConfig, model_for: Callable[[Task], ChatModel]) -> None:
        self._config = config
        self._model_for = model_for

    def make(
        self, strategy: Strategy, task: Task, user_tools: Sequence[ToolSchema], *, seed: int
    ) -> LLMUser:
        """A user for one episode of ``task``."""
        session = ChatSession(self._model_for(task), role="user", seed=seed)
        return LLMUser(task, user_tools, strategy, session, self._config)
