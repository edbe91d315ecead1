"""Conversations as token ids, token in and token out.

An episode's ids are ``opening + reply + continuation + reply + …``. A reply's ids are the
sampler's own and are never tokenised again; everything else is rendered by the model's chat
template, and what users, tools and tickets say never becomes a control token.
"""

import hashlib
import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from grpo_cl.domains.base import ToolSchema
from grpo_cl.errors import ConfigError
from grpo_cl.policy.compact import CompactChat
from grpo_cl.policy.controls import MARK, Controls
from grpo_cl.policy.dialects import DIALECTS, Dialect, dialect_named
from grpo_cl.policy.parsing import END_OF_THOUGHT, THOUGHT, Parsed, spoken
from grpo_cl.policy.templates import GENERIC, PLACEHOLDER, PROBE, Template, Turn
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, ToolCall

_OTHER_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_text|>",
    "<|endoftext|>",
)
"""Tokens that mean the end wherever a tokenizer has them, though a template may not show them."""

_MARKUP = (
    f"{THOUGHT} {END_OF_THOUGHT} <tool_call> </tool_call> <tool_response> </tool_response> "
    "[TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
)
OPENINGS = 512
"""Openings whose ids are kept: a group begins alike, and every evaluation has the same tasks."""
CONTINUATIONS = 4096
"""What came between two replies and is kept too: episodes of a group ask tools for the same."""
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
_LOG = logging.getLogger(__name__)


class _Tools(NamedTuple):
    """The tools of the last scene, which mostly are those of the next."""

    given: Sequence[ToolSchema]
    listed: Any
    """For the template; None where it takes none."""
    described: str
    """For the beginning of the system message; empty where the template lists them."""


class Chat:
    """Writes and reads the conversations of a model that has a chat template.

    A template that can list tools, write calls in the dialect and show results is used for all of
    it. With any other, the system message begins with the tools in words, so that all tasks of a
    domain begin alike, and results come as user messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, dialect: str = "auto") -> None:
        self._tokenizer = tokenizer
        source = _source(tokenizer)
        self._controls = Controls(tokenizer, source + _MARKUP)
        self._template = _usable_template(tokenizer, source, self._controls)
        self.dialect: Dialect = (
            self._find_dialect(source) if dialect == "auto" else dialect_named(dialect)
        )
        self.has_tool_template: bool = self._template_speaks(self.dialect)
        """Whether the template handles tools; otherwise they are described in words."""
        self._is_thinking = self._template.prompt.rstrip().endswith(THOUGHT)
        self.stop_ids: tuple[int, ...] = self._stops()
        """Any of these ends a reply and belongs to it."""
        self._opening_ids = lru_cache(maxsize=OPENINGS)(self._encode)
        self._later_ids = lru_cache(maxsize=CONTINUATIONS)(self._encode)
        self._tools = self._listed(())

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """Everything up to and including the prompt for the first reply."""
        if scene.tools != self._tools.given:
            self._tools = self._listed(scene.tools)
        system, tools = self._controls.guard(scene.system), self._tools.listed
        if self._tools.described:
            system = f"{self._tools.described}\n\n{system}".strip()
        reason: ConfigError | None = None
        for turns in self._openings(system, self._seen(messages)):
            try:
                text = self._template.render_faithfully(turns, tools=tools)
            except ConfigError as error:
                reason = error
                continue  # another arrangement may please the template
            return list(self._opening_ids(text, ""))
        assert reason is not None
        raise reason

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """What follows a reply: its end if it did not end itself, ``messages``, the next prompt."""
        turns = self._turns(self._seen(messages), as_text=False)
        called = bool(turns) and turns[0]["role"] == "tool"
        form = self._template.form if called else None
        try:
            rest = self._template.after_reply(turns, form=form)
        except ConfigError:
            rest = self._template.after_reply(_alternating(turns), form=form)
        end = self._template.end
        if ended and rest.lstrip().startswith(end):
            rest = rest.lstrip().removeprefix(end)
        return list(self._later_ids(rest, end))

    def reply(self, message: Message) -> list[int]:
        """An assistant's message as the policy should have written it, end included."""
        (safe,) = self._seen([message])
        (turn,) = self._turns([safe], as_text=False)
        try:
            body = self._template.body(turn)
        except ConfigError:
            body = None  # such as several calls at once, which some templates refuse
        if body is None or not _says(self._parse(body.replace(MARK, "")), message):
            thought = f"\n{END_OF_THOUGHT}\n\n" if self._is_thinking else ""
            body = thought + self.dialect.write(safe)
        end = self._template.end
        return self._controls.encode(body + end, after=end)

    def read(self, ids: Sequence[int]) -> Message:
        """A sampled reply as a message; never raises.

        What cannot be read as a tool call is content. Thoughts are neither said nor done. A call
        has the id the model wrote, or none: the agent gives each its own.
        """
        stop = next((at for at, token in enumerate(ids) if token in self.stop_ids), len(ids))
        text = self._tokenizer.decode(
            list(ids[:stop]), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        parsed = self._parse(str(text))
        return Message(
            role="assistant", content=parsed.content or None, tool_calls=parsed.calls or None
        )

    def _listed(self, tools: Sequence[ToolSchema]) -> _Tools:
        guarded = self._controls.guard(tools)
        if not tools or self.has_tool_template:
            return _Tools(tools, guarded, "")
        return _Tools(tools, None, self.dialect.describe(guarded))

    def _encode(self, text: str, after: str) -> "array[int]":
        return array("q", self._controls.encode(text, after=after))

    def _parse(self, text: str) -> Parsed:
        return self.dialect.read(spoken(text, thinking=self._is_thinking))

    def _find_dialect(self, source: str) -> Dialect:
        """What the template writes; else what it or the tokenizer mentions; else JSON."""
        for dialect in DIALECTS.values():
            if self._template_speaks(dialect):
                return dialect
        for dialect in DIALECTS.values():
            if any(mark in source or mark in self._controls.ids for mark in dialect.marks):
                return dialect
        return dialect_named("json" if self._template.form is None else "hermes")

    def _template_speaks(self, dialect: Dialect) -> bool:
        if self._template.form is None:
            return False
        parsed = dialect.read(spoken(self._template.sample_call(), thinking=False))
        call = ToolCall(name=PROBE, arguments={"value": PLACEHOLDER})
        return _says(parsed, Message(role="assistant", tool_calls=(call,)))

    def _stops(self) -> tuple[int, ...]:
        ids = self._controls.ids
        ends = (self._template.end, str(self._tokenizer.eos_token), *_OTHER_ENDS)
        return tuple(dict.fromkeys(ids[end] for end in ends if end in ids))

    def _seen(self, messages: Sequence[Message]) -> list[Message]:
        """What the agent gets to see, made safe to render."""
        return [self._safe(message) for message in messages if _agent_sees(message)]

    def _safe(self, message: Message) -> Message:
        guarded = self._controls.guard_message(message)
        calls = guarded.tool_calls
        renamed = tuple(c.model_copy(update={"id": _call_id(c.id)}) for c in calls or ())
        identity = _call_id(message.id or "")
        return guarded.model_copy(update={"id": identity, "tool_calls": renamed or None})

    def _openings(self, system: str, messages: Sequence[Message]) -> Iterator[list[Turn]]:
        """The arrangements of an opening, the most usual first."""
        said = [_turn("system", system)] if system.strip() else []
        for as_text in (False, True):
            turns = self._turns(messages, as_text=as_text)
            if said or turns:
                yield [*said, *turns]
            yield _alternating([_turn("user", system), *turns])

    def _turns(self, messages: Sequence[Message], *, as_text: bool) -> list[Turn]:
        """Messages as the template takes them, calls ``as_text`` of the dialect if wanted."""
        turns: list[Turn] = []
        results: list[str] = []
        for message in messages:
            if message.role == "tool" and not self.has_tool_template:
                results.append(message.content or "")
                shown = _turn("user", self.dialect.show(results))
                turns = [*turns[:-1], shown] if len(results) > 1 else [*turns, shown]
                continue
            results = []
            turns.append(self._one_turn(message, as_text=as_text))
        return turns

    def _one_turn(self, message: Message, *, as_text: bool) -> Turn:
        if message.role == "tool":
            return {**_turn("tool", message.content or ""), "tool_call_id": message.id}
        form = self._template.form if self.has_tool_template else None
        if message.tool_calls and form is not None and not as_text:
            calls = form.calls([(c.id, c.name, c.arguments) for c in message.tool_calls])
            return {**_turn("assistant", message.content or form.empty), "tool_calls": calls}
        text = self.dialect.write(message) if message.tool_calls else message.content or ""
        return _turn(message.role, text)


def chat_for(tokenizer: PreTrainedTokenizerBase, dialect: str) -> Chat | CompactChat:
    """The chat of a tokenizer; ``compact`` is the embedded policy's own."""
    return CompactChat(tokenizer) if dialect == "compact" else Chat(tokenizer, dialect=dialect)


def _source(tokenizer: PreTrainedTokenizerBase) -> str:
    if tokenizer.chat_template is None:
        _LOG.warning("the tokenizer has no chat template; a plain one is used")
        return GENERIC
    return tokenizer.get_chat_template(tools=[{}])


def _usable_template(
    tokenizer: PreTrainedTokenizerBase, source: str, controls: Controls
) -> Template:
    try:
        return Template(tokenizer, source, controls)
    except ConfigError as error:
        _LOG.warning("a plain chat template is used instead: %s", error)
        return Template(tokenizer, GENERIC, controls)


def _agent_sees(message: Message) -> bool:
    if message.role == "tool":
        return message.requestor == "assistant"
    return message.role == "assistant" or not message.tool_calls


def _says(parsed: Parsed, message: Message) -> bool:
    calls = [(call.name, call.arguments) for call in message.tool_calls or ()]
    said = (message.content or "").strip()
    return parsed.content == said and [(c.name, c.arguments) for c in parsed.calls] == calls


def _call_id(identity: str) -> str:
    """The id as nine letters and digits, which is all that some templates take."""
    if _CALL_ID.fullmatch(identity):
        return identity
    return hashlib.sha256(identity.encode()).hexdigest()[:9]


def _turn(role: str, content: str | None) -> Turn:
    return {"role": role, "content": content}


def _alternating(turns: Sequence[Turn]) -> list[Turn]:
    """The same words with neighbours of one role joined."""
    joined: list[Turn] = []
    for turn in turns:
        last = joined[-1] if joined else None
        plain = turn["role"] in ("user", "assistant") and "tool_calls" not in turn
        if last and plain and last["role"] == turn["role"] and "tool_calls" not in last:
            contents = [text for text in (last["content"], turn["content"]) if text]
            joined[-1] = _turn(turn["role"], "\n\n".join(contents))
        else:
            joined.append(turn)
    return joined
