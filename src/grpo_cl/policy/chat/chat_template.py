"""Chat templates, whose features are found by rendering probe conversations, not by model name.

Token ids of a conversation are only ever appended, while templates render whole conversations and
may rewrite earlier turns. So the text after a reply is rendered in a small conversation with a
placeholder as the reply: it is the text after the placeholder.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.special_tokens import SpecialTokens
from grpo_cl.policy.chat.template_limits import limited_work, require_bounded_numbers
from grpo_cl.policy.chat.tool_call_parser import THINK_START

Turn = dict[str, Any]
"""A message in the format of chat templates."""

PLACEHOLDER = "placeholder-5a17"
PROBE = "probe_5a17"
RESULT = "result-5a17"
CALL_ID = "probe5a17"
"""Nine letters and digits: some templates reject other ids."""

FALLBACK_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' }}\n\n{% endfor %}"
    "{{ 'Assistant:' if add_generation_prompt }}"
)
"""For a tokenizer without a usable template."""

_FIXED_DATE = (
    "{%- macro strftime_now(format) -%}"
    "{{ '2024-07-26' if '-' in format else '26 Jul 2024' }}{%- endmacro -%}"
)
"""Put before a template that inserts today's date, so that prompts do not depend on the day."""

_USER: Turn = {"role": "user", "content": "Hello"}
_TOOL: Turn = {
    "type": "function",
    "function": {
        "name": PROBE,
        "description": "Returns its value.",
        "parameters": {
            "type": "object",
            "properties": {"value": {"type": "string", "description": "Any text."}},
            "required": ["value"],
        },
    },
}
_LOG = logging.getLogger(__name__)

_REJECTIONS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError)
"""Errors of a template that does not accept a conversation."""


class ToolCallFormat(NamedTuple):
    """How a template expects an assistant's tool calls."""

    empty_content: str | None
    """The content of a message that has only calls."""
    is_json: bool
    """Whether arguments are passed as a JSON string instead of a mapping."""

    def calls(self, calls: Sequence[tuple[str, str, Any]]) -> list[Turn]:
        """Calls in the format of the template, from triples of id, name and arguments."""
        return [
            {
                "id": call_id,
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": json.dumps(arguments, ensure_ascii=False)
                    if self.is_json
                    else arguments,
                },
            }
            for call_id, name, arguments in calls
        ]


_CALL_FORMATS = tuple(
    ToolCallFormat(empty_content, is_json)
    for is_json in (False, True)
    for empty_content in ("", None)
)


class ChatTemplate:
    """One chat template and its features, found by rendering probes."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, source: str, special_tokens: SpecialTokens
    ) -> None:
        self._tokenizer = tokenizer
        self._source = (_FIXED_DATE if "strftime_now" in source else "") + source
        require_bounded_numbers(self._source)
        with limited_work():
            self._probe(special_tokens)

    def _probe(self, special_tokens: SpecialTokens) -> None:
        self._continuation_tools = self._needed_tools()
        self.generation_prompt = self._find_generation_prompt()
        self._header = self.generation_prompt.partition(THINK_START)[0].strip()
        self._after_last_reply = self._find_after_last_reply()
        self.end_of_turn = self._find_end_of_turn(special_tokens)
        self.call_format = next((each for each in _CALL_FORMATS if self._supports(each)), None)
        """How calls are passed; None if the template does not support tools."""
        self._continuation_tools = self._find_continuation_tools()
        self.after_reply([_USER], call_format=None)

    def render(
        self, turns: Sequence[Turn], *, tools: Sequence[Turn] | None = None, prompt: bool = True
    ) -> str:
        """The text of a conversation; a ``ConfigError`` if the template rejects it."""
        try:
            text = self._tokenizer.apply_chat_template(
                list(turns),
                tools=list(tools) if tools else None,
                chat_template=self._source,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except (*_REJECTIONS, MemoryError, RecursionError) as error:
            roles = ", ".join(turn["role"] for turn in turns) or "no messages"
            raise ConfigError(
                f"the chat template rejects a conversation of {roles}: {error}; give the tokenizer "
                "another chat_template"
            ) from error
        assert isinstance(text, str)
        return text

    def render_complete(self, turns: Sequence[Turn], *, tools: Sequence[Turn] | None) -> str:
        """The text of a conversation; a ``ConfigError`` if it lacks a message or changes a role."""
        text = self.render(turns, tools=tools)
        for turn in turns:
            content = (turn["content"] or "").strip()
            # Reasoning of earlier replies may be omitted; messages of other roles may not.
            if turn["role"] != "assistant" and not _contains(text, content):
                raise ConfigError(f"the chat template omits a message of the {turn['role']}")
        before = turns[: turns[0]["role"] == "system"]
        first_role = turns[len(before)]["role"] if len(before) < len(turns) else None
        if first_role == "assistant" and not self._allows_assistant_first(before, tools=tools):
            raise ConfigError("the chat template gives the assistant's first message another role")
        return text

    def after_reply(self, turns: Sequence[Turn], *, call_format: ToolCallFormat | None) -> str:
        """The text between a reply and the next one when ``turns`` follow it.

        With a ``call_format`` the reply was a tool call.
        """
        text = self._render_continuation([_USER, _placeholder(call_format), *turns])
        _, has_placeholder, rest = text.partition(PLACEHOLDER)
        start = rest.find(self.end_of_turn) if call_format else 0
        if not has_placeholder or start < 0:
            raise ConfigError(
                "the chat template does not mark the end of a reply, so that no message can follow "
                "it; give the tokenizer another chat_template"
            )
        return rest[start:]

    def body(self, turn: Turn) -> str | None:
        """A reply as the template renders it, without its end; None if it cannot be isolated."""
        before = self._render_continuation([_USER])
        whole = self._render_continuation([_USER, turn], prompt=False)
        if not whole.startswith(before):
            return None
        return (
            whole[len(before) :].removesuffix(self._after_last_reply).partition(self.end_of_turn)[0]
        )

    def sample_call(self) -> str:
        """A reply that calls ``PROBE`` with ``PLACEHOLDER``, as the template renders it."""
        call = _placeholder(self.call_format)
        body = self.body(call)
        if body is not None:
            return body
        whole = self._render_continuation([_USER, call], prompt=False)
        start = whole.rfind(self._header) + len(self._header)
        return whole[start:].partition(self.end_of_turn)[0]

    def _render_continuation(self, turns: Sequence[Turn], *, prompt: bool = True) -> str:
        return self.render(turns, tools=self._continuation_tools, prompt=prompt)

    def _needed_tools(self) -> list[Turn] | None:
        """None, unless the template requires tools."""
        try:
            self.render([_USER])
        except ConfigError:
            return [_TOOL]
        return None

    def _find_generation_prompt(self) -> str:
        text = self._render_continuation([_USER])
        without = self._render_continuation([_USER], prompt=False)
        return text.removeprefix(without) if text.startswith(without) else ""

    def _find_after_last_reply(self) -> str:
        text = self._render_continuation([_USER, _placeholder(None)], prompt=False)
        return text.partition(PLACEHOLDER)[2]

    def _find_end_of_turn(self, special_tokens: SpecialTokens) -> str:
        end = special_tokens.leading(self._after_last_reply) or self._tokenizer.eos_token
        if not isinstance(end, str):
            raise ConfigError(
                "neither the chat template nor the tokenizer has a token that ends a reply; set "
                "tokenizer.eos_token"
            )
        return end

    def _supports(self, call_format: ToolCallFormat) -> bool:
        result: Turn = {"role": "tool", "content": RESULT, "tool_call_id": CALL_ID}
        try:
            text = self.render([_USER, _placeholder(call_format), result], tools=[_TOOL])
            self.after_reply([result], call_format=call_format)
        except ConfigError as error:
            _LOG.debug("%s: %s", call_format, error)
            return False
        listing, _, rest = text.partition(PLACEHOLDER)
        return PROBE in listing and RESULT in rest and "'value'" not in text

    def _find_continuation_tools(self) -> list[Turn] | None:
        """Tools to pass in continuations: None if the template would list them again there."""
        if self.call_format is None:
            return self._continuation_tools
        text = self.render([_USER, _placeholder(None), _USER], tools=[_TOOL])
        return None if PROBE in text.partition(PLACEHOLDER)[2] else [_TOOL]

    def _allows_assistant_first(
        self, before: Sequence[Turn], *, tools: Sequence[Turn] | None
    ) -> bool:
        probe = self.render([*before, _placeholder(None), _USER], tools=[_TOOL] if tools else None)
        return self._header in probe.partition(PLACEHOLDER)[0]


def _placeholder(call_format: ToolCallFormat | None) -> Turn:
    if call_format is None:
        return {"role": "assistant", "content": PLACEHOLDER}
    calls = call_format.calls([(CALL_ID, PROBE, {"value": PLACEHOLDER})])
    return {"role": "assistant", "content": call_format.empty_content, "tool_calls": calls}


def _contains(text: str, content: str) -> bool:
    return content in text or json.dumps(content, ensure_ascii=False)[1:-1] in text
