"""Chat templates, known by what they render and not by their names.

A conversation only ever grows, while templates render whole conversations and may rewrite what came
before. So what follows a reply is taken from a small conversation with a placeholder in the reply's
place: the text after the placeholder.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from grpo_cl.errors import ConfigError
from grpo_cl.policy.controls import Controls
from grpo_cl.policy.parsing import THOUGHT

Turn = dict[str, Any]
"""A message as templates take it."""

PLACEHOLDER = "placeholder-5a17"
PROBE = "probe_5a17"
RESULT = "result-5a17"
CALL_ID = "probe5a17"
"""Nine letters and digits, because some templates refuse anything else."""

GENERIC = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' }}\n\n{% endfor %}"
    "{{ 'Assistant:' if add_generation_prompt }}"
)
"""For a tokenizer that has no usable template of its own."""

_FIXED_DATE = (
    "{%- macro strftime_now(format) -%}"
    "{{ '2024-07-26' if '-' in format else '26 Jul 2024' }}{%- endmacro -%}"
)
"""Put before a template that asks for today's date, so that a run reads the same every day."""

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


class ToolForm(NamedTuple):
    """How a template wants an assistant's tool calls."""

    empty: str | None
    """The content of a message that has calls only."""
    as_text: bool
    """Whether arguments are passed as JSON text instead of a mapping."""

    def calls(self, calls: Sequence[tuple[str, str, Any]]) -> list[Turn]:
        """Triples of id, name and arguments, as a template takes them."""
        return [
            {
                "id": identity,
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": json.dumps(arguments, ensure_ascii=False)
                    if self.as_text
                    else arguments,
                },
            }
            for identity, name, arguments in calls
        ]


_FORMS = tuple(ToolForm(empty, as_text) for as_text in (False, True) for empty in ("", None))


class Template:
    """One chat template and what was found out about it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str, controls: Controls) -> None:
        self._tokenizer = tokenizer
        self._source = (_FIXED_DATE if "strftime_now" in source else "") + source
        self._later_tools = self._needed_tools()
        self.prompt = self._generation_prompt()
        self._header = self.prompt.partition(THOUGHT)[0].strip()
        self._closing = self._text_after_reply()
        self.end = self._end_of_turn(controls)
        self.form = next((form for form in _FORMS if self._takes(form)), None)
        """How calls are passed; None if the template has no tools."""
        self._later_tools = self._find_later_tools()
        self.after_reply([_USER], form=None)

    def render(
        self, turns: Sequence[Turn], *, tools: Sequence[Turn] | None = None, prompt: bool = True
    ) -> str:
        """The text of a conversation, or a ``ConfigError`` with the template's reason."""
        try:
            text = self._tokenizer.apply_chat_template(
                list(turns),
                tools=list(tools) if tools else None,
                chat_template=self._source,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            roles = ", ".join(turn["role"] for turn in turns) or "no messages"
            raise ConfigError(
                f"the chat template refuses a conversation of {roles}: {error}; give the tokenizer "
                "another chat_template"
            ) from error
        assert isinstance(text, str)
        return text

    def render_faithfully(
        self, turns: Sequence[Turn], *, tools: Sequence[Turn] | None = None
    ) -> str:
        """The text of a conversation that has every message under its role."""
        text = self.render(turns, tools=tools)
        for turn in turns:
            content = (turn["content"] or "").strip()
            # Thoughts of earlier replies may be left out; what others said may not.
            if turn["role"] != "assistant" and not _holds(text, content):
                raise ConfigError(f"the chat template leaves out a message of the {turn['role']}")
        before = turns[: turns[0]["role"] == "system"]
        speaker = turns[len(before)]["role"] if len(before) < len(turns) else None
        if speaker == "assistant" and not self._lets_assistant_begin(before, tools=tools):
            raise ConfigError("the chat template gives the assistant's first message to another")
        return text

    def after_reply(self, turns: Sequence[Turn], *, form: ToolForm | None) -> str:
        """What stands behind a reply's last word when ``turns`` follow it, up to the next reply.

        With a ``form`` the reply was a tool call.
        """
        text = self._render_later([_USER, _placeholder(form), *turns])
        _, found, rest = text.partition(PLACEHOLDER)
        start = rest.find(self.end) if form else 0
        if not found or start < 0:
            raise ConfigError(
                "the chat template does not show where a reply ends, so that nothing can follow "
                "it; give the tokenizer another chat_template"
            )
        return rest[start:]

    def body(self, turn: Turn) -> str | None:
        """A reply as the template writes it, without its end; None if it cannot be told apart."""
        before = self._render_later([_USER])
        whole = self._render_later([_USER, turn], prompt=False)
        if not whole.startswith(before):
            return None
        return whole[len(before) :].removesuffix(self._closing).partition(self.end)[0]

    def sample_call(self) -> str:
        """A reply that calls ``PROBE`` with the ``PLACEHOLDER``, as the template writes it."""
        call = _placeholder(self.form)
        body = self.body(call)
        if body is not None:
            return body
        whole = self._render_later([_USER, call], prompt=False)
        start = whole.rfind(self._header) + len(self._header)
        return whole[start:].partition(self.end)[0]

    def _render_later(self, turns: Sequence[Turn], *, prompt: bool = True) -> str:
        return self.render(turns, tools=self._later_tools, prompt=prompt)

    def _needed_tools(self) -> list[Turn] | None:
        """Nothing, unless the template cannot do without tools."""
        try:
            self.render([_USER])
        except ConfigError:
            return [_TOOL]
        return None

    def _generation_prompt(self) -> str:
        text = self._render_later([_USER])
        without = self._render_later([_USER], prompt=False)
        return text.removeprefix(without) if text.startswith(without) else ""

    def _text_after_reply(self) -> str:
        text = self._render_later([_USER, _placeholder(None)], prompt=False)
        return text.partition(PLACEHOLDER)[2]

    def _end_of_turn(self, controls: Controls) -> str:
        end = controls.first(self._closing) or self._tokenizer.eos_token
        if not isinstance(end, str):
            raise ConfigError(
                "neither the chat template nor the tokenizer has a token that ends a reply; set "
                "tokenizer.eos_token"
            )
        return end

    def _takes(self, form: ToolForm) -> bool:
        result: Turn = {"role": "tool", "content": RESULT, "tool_call_id": CALL_ID}
        try:
            text = self.render([_USER, _placeholder(form), result], tools=[_TOOL])
            self.after_reply([result], form=form)
        except ConfigError as error:
            _LOG.debug("%s: %s", form, error)
            return False
        listing, _, rest = text.partition(PLACEHOLDER)
        return PROBE in listing and RESULT in rest and "'value'" not in text

    def _find_later_tools(self) -> list[Turn] | None:
        """Tools as they are passed after the opening: not at all if they would be listed again."""
        if self.form is None:
            return self._later_tools
        text = self.render([_USER, _placeholder(None), _USER], tools=[_TOOL])
        return None if PROBE in text.partition(PLACEHOLDER)[2] else [_TOOL]

    def _lets_assistant_begin(
        self, before: Sequence[Turn], *, tools: Sequence[Turn] | None
    ) -> bool:
        probe = self.render([*before, _placeholder(None), _USER], tools=[_TOOL] if tools else None)
        return self._header in probe.partition(PLACEHOLDER)[0]


def _placeholder(form: ToolForm | None) -> Turn:
    if form is None:
        return {"role": "assistant", "content": PLACEHOLDER}
    calls = form.calls([(CALL_ID, PROBE, {"value": PLACEHOLDER})])
    return {"role": "assistant", "content": form.empty, "tool_calls": calls}


def _holds(text: str, content: str) -> bool:
    return content in text or json.dumps(content, ensure_ascii=False)[1:-1] in text
