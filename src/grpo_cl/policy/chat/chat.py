"""Conversations as token ids.

An episode's ids are ``opening + reply + continuation + reply + …``. A reply's ids are the
sampler's own and are never tokenized again; everything else is rendered by the model's chat
template, and text of users, tools and tickets never becomes a special token.
"""

import hashlib
import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.chat_template import (
    FALLBACK_TEMPLATE,
    PLACEHOLDER,
    PROBE,
    ChatTemplate,
    Turn,
)
from grpo_cl.policy.chat.compact import SPECIAL, CompactChat
from grpo_cl.policy.chat.dialects import DIALECTS, Dialect, dialect_named
from grpo_cl.policy.chat.special_tokens import SPLIT_MARK, SpecialTokens
from grpo_cl.policy.chat.tool_call_parser import (
    THINK_END,
    THINK_START,
    ParsedReply,
    strip_reasoning,
)
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, ToolCall, ToolSchema

_KNOWN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_text|>",
    "<|endoftext|>",
)
"""End tokens of known models; they stop a reply even if the template does not use them."""

_MARKUP = (
    f"{THINK_START} {THINK_END} <tool_call> </tool_call> <tool_response> </tool_response> "
    "[TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
)
CACHED_OPENINGS = 512
"""Openings whose ids are cached: a group shares one, and every evaluation has the same tasks."""
RECENT_OPENINGS = 16
"""Openings of whose ids a list is cached too: the episodes of a group begin one after another."""
CACHED_CONTINUATIONS = 4096
"""Continuations whose ids are cached: episodes of a group often get the same tool results."""
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)  # compared by identity, as the key of a cache
class _Tools:
    """The tools of the last scene, rendered; the next scene usually has the same."""

    schemas: Sequence[ToolSchema]
    for_template: Any
    """Passed to the template; None if it does not support tools."""
    description: str
    """Put before the system message; empty if the template lists the tools."""


class Chat:
    """Encodes and parses the conversations of a model with a chat template.

    A template that lists tools, renders calls in the dialect and renders results is used for all of
    these. With any other, the system message starts with a description of the tools, so that all
    tasks of a domain share a prefix, and results are user messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, dialect: str = "auto") -> None:
        self._tokenizer = tokenizer
        source = _source(tokenizer)
        self._special_tokens = SpecialTokens(tokenizer, source + _MARKUP)
        self._template = _usable_template(tokenizer, source, self._special_tokens)
        self.dialect: Dialect = (
            self._find_dialect(source) if dialect == "auto" else dialect_named(dialect)
        )
        self.has_tool_template: bool = self._template_uses(self.dialect)
        """Whether the template handles tools; otherwise the system message describes them."""
        self._opens_reasoning = self._template.generation_prompt.rstrip().endswith(THINK_START)
        self.stop_ids: tuple[int, ...] = self._find_stop_ids()
        """Any of these ends a reply and is its last token."""
        self._opening_ids = lru_cache(maxsize=CACHED_OPENINGS)(self._encode)
        self._recent_opening = lru_cache(maxsize=RECENT_OPENINGS)(self._new_opening)
        self._continuation_ids = lru_cache(maxsize=CACHED_CONTINUATIONS)(self._encode)
        self._rendered_continuation = lru_cache(maxsize=CACHED_CONTINUATIONS)(self._after_reply)
        self._tools = self._render_tools(())

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """The prompt of the first reply, generation prompt included."""
        if scene.tools != self._tools.schemas:
            self._tools = self._render_tools(scene.tools)
        encode = self._new_opening if _has_calls(messages) else self._recent_opening
        return encode(self._tools, scene.system, tuple(messages)).copy()

    def _new_opening(self, tools: _Tools, system: str, messages: Sequence[Message]) -> list[int]:
        system = self._special_tokens.escape_special_tokens(system)
        if tools.description:
            system = f"{tools.description}\n\n{system}".strip()
        rejection: ConfigError | None = None
        for turns in self._arrangements(system, self._visible(messages)):
            try:
                text = self._template.render_complete(turns, tools=tools.for_template)
            except ConfigError as error:
                rejection = error
                continue  # the template may accept another arrangement
            return list(self._opening_ids(text, ""))
        assert rejection is not None
        raise rejection

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """The tokens between two replies.

        They are the end of a truncated reply, ``messages`` and the next generation prompt.
        """
        render = self._after_reply if _has_calls(messages) else self._rendered_continuation
        rest, end = render(tuple(messages)), self._template.end_of_turn
        if ended and rest.lstrip().startswith(end):
            rest = rest.lstrip().removeprefix(end)
        return list(self._continuation_ids(rest, end))

    def _after_reply(self, messages: Sequence[Message]) -> str:
        turns = self._turns(self._visible(messages), as_text=False)
        has_results = bool(turns) and turns[0]["role"] == "tool"
        call_format = self._template.call_format if has_results else None
        try:
            return self._template.after_reply(turns, call_format=call_format)
        except ConfigError:
            return self._template.after_reply(_merge_same_role(turns), call_format=call_format)

    def encode_reply(self, message: Message) -> list[int]:
        """The ids of an assistant message as the policy should write it, end included."""
        (escaped,) = self._visible([message])
        (turn,) = self._turns([escaped], as_text=False)
        try:
            body = self._template.body(turn)
        except ConfigError:
            body = None  # some templates reject, for example, several calls in one message
        if body is None or not _is_same(self._parse(body.replace(SPLIT_MARK, "")), message):
            reasoning_end = f"\n{THINK_END}\n\n" if self._opens_reasoning else ""
            body = reasoning_end + self.dialect.format_message(escaped)
        end = self._template.end_of_turn
        return self._special_tokens.encode(body + end, after=end)

    def parse_reply(self, ids: Sequence[int]) -> Message:
        """A sampled reply as a message; never raises.

        Text that does not parse as a tool call is content; reasoning is dropped. A call has the id
        the model wrote, or none: the agent assigns ids.
        """
        stop = next((at for at, token in enumerate(ids) if token in self.stop_ids), len(ids))
        text = self._tokenizer.decode(
            list(ids[:stop]), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        parsed = self._parse(str(text))
        return Message(
            role="assistant", content=parsed.content or None, tool_calls=parsed.calls or None
        )

    def _render_tools(self, tools: Sequence[ToolSchema]) -> _Tools:
        escaped = self._special_tokens.escape_special_tokens(tools)
        if not tools or self.has_tool_template:
            return _Tools(tools, escaped, "")
        return _Tools(tools, None, self.dialect.describe_tools(escaped))

    def _encode(self, text: str, after: str) -> "array[int]":
        return array("q", self._special_tokens.encode(text, after=after))

    def _parse(self, text: str) -> ParsedReply:
        return self.dialect.parse(strip_reasoning(text, is_open=self._opens_reasoning))

    def _find_dialect(self, source: str) -> Dialect:
        """The dialect the template renders, else one it or the tokenizer mentions, else JSON."""
        for dialect in DIALECTS.values():
            if self._template_uses(dialect):
                return dialect
        for dialect in DIALECTS.values():
            ids = self._special_tokens.ids
            if any(marker in source or marker in ids for marker in dialect.markers):
                return dialect
        return dialect_named("json" if self._template.call_format is None else "hermes")

    def _template_uses(self, dialect: Dialect) -> bool:
        if self._template.call_format is None:
            return False
        parsed = dialect.parse(strip_reasoning(self._template.sample_call(), is_open=False))
        call = ToolCall(name=PROBE, arguments={"value": PLACEHOLDER})
        return _is_same(parsed, Message(role="assistant", tool_calls=(call,)))

    def _find_stop_ids(self) -> tuple[int, ...]:
        ids = self._special_tokens.ids
        ends = (self._template.end_of_turn, str(self._tokenizer.eos_token), *_KNOWN_ENDS)
        return tuple(dict.fromkeys(ids[end] for end in ends if end in ids))

    def _visible(self, messages: Sequence[Message]) -> list[Message]:
        """The messages the agent sees, escaped."""
        return [self._escape(message) for message in messages if message.is_visible_to_agent]

    def _escape(self, message: Message) -> Message:
        escaped = self._special_tokens.escape_message(message)
        calls = tuple(
            call.model_copy(update={"id": _call_id(call.id)}) for call in escaped.tool_calls or ()
        )
        message_id = _call_id(message.id or "")
        return escaped.model_copy(update={"id": message_id, "tool_calls": calls or None})

    def _arrangements(self, system: str, messages: Sequence[Message]) -> Iterator[list[Turn]]:
        """The ways to arrange an opening in turns, the most usual first."""
        system_turns = [_turn("system", system)] if system.strip() else []
        for as_text in (False, True):
            turns = self._turns(messages, as_text=as_text)
            if system_turns or turns:
                yield [*system_turns, *turns]
            yield _merge_same_role([_turn("user", system), *turns])

    def _turns(self, messages: Sequence[Message], *, as_text: bool) -> list[Turn]:
        """Messages in the template's format; with ``as_text``, calls are text of the dialect."""
        turns: list[Turn] = []
        results: list[str] = []
        for message in messages:
            if message.role == "tool" and not self.has_tool_template:
                results.append(message.content or "")
                turn = _turn("user", self.dialect.format_results(results))
                turns = [*turns[:-1], turn] if len(results) > 1 else [*turns, turn]
                continue
            results = []
            turns.append(self._message_turn(message, as_text=as_text))
        return turns

    def _message_turn(self, message: Message, *, as_text: bool) -> Turn:
        if message.role == "tool":
            return {**_turn("tool", message.content or ""), "tool_call_id": message.id}
        call_format = self._template.call_format if self.has_tool_template else None
        if message.tool_calls and call_format is not None and not as_text:
            calls = call_format.calls([(c.id, c.name, c.arguments) for c in message.tool_calls])
            content = message.content or call_format.empty_content
            return {**_turn("assistant", content), "tool_calls": calls}
        text = self.dialect.format_message(message) if message.tool_calls else message.content or ""
        return _turn(message.role, text)


def chat_for(tokenizer: PreTrainedTokenizerBase, dialect: str) -> Chat | CompactChat:
    """The chat format of a tokenizer; ``compact`` is the embedded policy's own."""
    has_template = tokenizer.chat_template is not None
    if dialect == "compact" or (dialect == "auto" and not has_template):
        missing = sorted(set(SPECIAL) - tokenizer.get_vocab().keys())
        if not missing:
            return CompactChat(tokenizer)
        if dialect == "compact":
            raise ConfigError(
                f"sampling.dialect=compact needs the token {missing[0]}, which the model's "
                "tokenizer does not have: the dialect belongs to `tiny` and models made by "
                "`grpo-cl sft --new_tiny`; set sampling.dialect=auto"
            )
    return Chat(tokenizer, dialect=dialect)


def _source(tokenizer: PreTrainedTokenizerBase) -> str:
    if tokenizer.chat_template is None:
        _LOG.warning("the tokenizer has no chat template; a plain one is used")
        return FALLBACK_TEMPLATE
    return tokenizer.get_chat_template(tools=[{}])


def _usable_template(
    tokenizer: PreTrainedTokenizerBase, source: str, special_tokens: SpecialTokens
) -> ChatTemplate:
    try:
        return ChatTemplate(tokenizer, source, special_tokens)
    except ConfigError as error:
        _LOG.warning("a plain chat template is used instead: %s", error)
        return ChatTemplate(tokenizer, FALLBACK_TEMPLATE, special_tokens)


def _is_same(parsed: ParsedReply, message: Message) -> bool:
    calls = [(call.name, call.arguments) for call in message.tool_calls or ()]
    content = (message.content or "").strip()
    return parsed.content == content and [(c.name, c.arguments) for c in parsed.calls] == calls


def _has_calls(messages: Sequence[Message]) -> bool:
    """Whether a message has calls, whose arguments cannot be hashed: it is no key of a cache."""
    return any(message.tool_calls for message in messages)


def _call_id(original: str) -> str:
    """The id as nine letters and digits; some templates reject other ids."""
    if _CALL_ID.fullmatch(original):
        return original
    return hashlib.sha256(original.encode()).hexdigest()[:9]


def _turn(role: str, content: str | None) -> Turn:
    return {"role": role, "content": content}


def _merge_same_role(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with neighbours of the same role merged, for templates that need alternation."""
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        is_text = turn["role"] in ("user", "assistant") and "tool_calls" not in turn
        if last and is_text and last["role"] == turn["role"] and "tool_calls" not in last:
            contents = [text for text in (last["content"], turn["content"]) if text]
            merged[-1] = _turn(turn["role"], "\n\n".join(contents))
        else:
            merged.append(turn)
    return merged
