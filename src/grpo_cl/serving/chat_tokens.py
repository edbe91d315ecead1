"""Chat requests as token ids: a chat that continues keeps the ids the policy sampled."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.envs.toy.domain import ticket_in
from grpo_cl.policy.inference.policy_agent import ChatFormat
from grpo_cl.policy.model.tabular import TabularChat
from grpo_cl.rollout import Scene
from grpo_cl.rollout.llm_actor import OPENING
from grpo_cl.serving.requests import ChatCompletionRequest, RequestError
from grpo_cl.types import Message, Task, ToolSchema, UserScenario

MAX_CHATS = 4096
"""Chats whose token ids are cached."""

_NO_TASK = Task(id="served", domain="served", user_scenario=UserScenario(instructions=""))


class ChatHistory(NamedTuple):
    """The system prompt, tools and messages of a chat request."""

    system: str
    tools: tuple[ToolSchema, ...]
    messages: tuple[Message, ...]

    @property
    def has_reply(self) -> bool:
        """Whether the assistant has replied."""
        return any(message.role == "assistant" for message in self.messages)

    @property
    def key(self) -> str:
        """Equal for chats with the same content; call ids, which clients choose, are ignored."""
        contents = [
            (m.role, m.content or "", [(c.name, c.arguments) for c in m.tool_calls or ()])
            for m in self.messages
        ]
        text = json.dumps([self.system, list(self.tools), contents], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _CachedTokens(NamedTuple):
    ids: tuple[int, ...]
    has_ended: bool


def read_chat(request: ChatCompletionRequest) -> ChatHistory:
    """The chat of a request; system messages are allowed only at the start."""
    num_system = next(
        (n for n, m in enumerate(request.messages) if not m.is_system), len(request.messages)
    )
    system = "\n\n".join(message.text for message in request.messages[:num_system])
    rest = request.messages[num_system:]
    if any(message.is_system for message in rest):
        raise RequestError("system messages come first; send later instructions as the user's")
    if rest and rest[0].role == "user" and rest[0].text == OPENING:
        del rest[0]  # the placeholder of grpo-cl's own client for an episode without a user message
    tools = [] if request.tool_choice == "none" else request.tools or []
    return ChatHistory(
        system=system,
        tools=tuple(tool.model_dump() for tool in tools),
        messages=tuple(message.to_message() for message in rest),
    )


class ChatTokenCache:
    """Caches the token ids of chats, so that sampled replies are not tokenized again."""

    def __init__(self, chat: ChatFormat) -> None:
        self._format = chat
        self._cached: OrderedDict[str, _CachedTokens] = OrderedDict()

    def prompt(self, chat: ChatHistory) -> list[int]:
        """The token ids of a chat up to the generation prompt."""
        last = max((n for n, m in enumerate(chat.messages, 1) if m.role == "assistant"), default=0)
        key = chat._replace(messages=chat.messages[:last]).key if last else None
        cached = self._cached.get(key) if key else None
        if cached is not None:
            rest = self._format.continuation(chat.messages[last:], ended=cached.has_ended)
            return [*cached.ids, *rest]
        task = self._task(chat)
        scene = Scene(task=task, system=chat.system, tools=chat.tools, solo=False, seed=0)
        return self._format.opening(scene, chat.messages)

    def _task(self, chat: ChatHistory) -> Task:
        """The task of a chat: the tabular policy reads its ticket, the others only messages."""
        if not isinstance(self._format, TabularChat):
            return _NO_TASK
        ticket = ticket_in([chat.system, *(message.content or "" for message in chat.messages)])
        return _NO_TASK.model_copy(update={"ticket": ticket})

    def store(
        self, chat: ChatHistory, reply: Message, ids: Sequence[int], *, has_ended: bool
    ) -> None:
        """Cache the token ids of a chat up to and including ``reply``."""
        key = chat._replace(messages=(*chat.messages, reply)).key
        self._cached[key] = _CachedTokens(tuple(ids), has_ended)
        self._cached.move_to_end(key)
        while len(self._cached) > MAX_CHATS:
            self._cached.popitem(last=False)
