"""Chats as token ids: one that goes on is continued from its own tokens, never re-tokenised."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.casting import OPENING
from grpo_cl.domains.base import ToolSchema
from grpo_cl.errors import ConfigError
from grpo_cl.policy.actor import ChatFormat
from grpo_cl.rollout import Scene
from grpo_cl.serve.orders import ChatOrder, RequestError
from grpo_cl.types import Message, Task, UserScenario

REMEMBERED = 4096
"""Chats whose tokens are kept."""

_NO_TASK = Task(id="served", domain="served", user_scenario=UserScenario(instructions=""))


class Chat(NamedTuple):
    """A chat as a client sends it."""

    system: str
    tools: tuple[ToolSchema, ...]
    messages: tuple[Message, ...]

    @property
    def key(self) -> str:
        """Equal for chats in which the same was said; ids of calls are the client's own affair."""
        said = [
            (m.role, m.content or "", [(c.name, c.arguments) for c in m.tool_calls or ()])
            for m in self.messages
        ]
        text = json.dumps([self.system, list(self.tools), said], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _Known(NamedTuple):
    ids: tuple[int, ...]
    has_ended: bool


def read_chat(order: ChatOrder) -> Chat:
    """The chat of a request; a system message may only open it."""
    first = next((n for n, m in enumerate(order.messages) if not m.is_system), len(order.messages))
    system = "\n\n".join(message.text for message in order.messages[:first])
    rest = order.messages[first:]
    if any(message.is_system for message in rest):
        raise RequestError("system messages come first; send later instructions as the user's")
    if rest and rest[0].role == "user" and rest[0].text == OPENING:
        del rest[0]  # our own client's word for nobody, where the ticket is all there is
    tools = [] if order.tool_choice == "none" else order.tools or []
    return Chat(
        system=system,
        tools=tuple(tool.model_dump() for tool in tools),
        messages=tuple(message.read() for message in rest),
    )


class Conversations:
    """Remembers the tokens of chats, so that a policy reads what it wrote as it wrote it."""

    def __init__(self, chat: ChatFormat) -> None:
        self._format = chat
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def prompt(self, chat: Chat) -> list[int]:
        """Everything the policy reads before its reply."""
        last = max((n for n, m in enumerate(chat.messages, 1) if m.role == "assistant"), default=0)
        known = self._known.get(chat._replace(messages=chat.messages[:last]).key) if last else None
        if known is not None:
            rest = self._format.continuation(chat.messages[last:], ended=known.has_ended)
            return [*known.ids, *rest]
        scene = Scene(task=_NO_TASK, system=chat.system, tools=chat.tools, solo=False, seed=0)
        try:
            return self._format.opening(scene, chat.messages)
        except ConfigError as error:
            raise RequestError(str(error)) from error

    def remember(self, chat: Chat, reply: Message, ids: Sequence[int], *, has_ended: bool) -> None:
        """Keep the tokens of a chat up to and including ``reply``."""
        key = chat._replace(messages=(*chat.messages, reply)).key
        self._known[key] = _Known(tuple(ids), has_ended)
        self._known.move_to_end(key)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
