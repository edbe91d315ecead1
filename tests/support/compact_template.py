"""The compact chat format of the embedded policy as a chat template and response parser for TRL."""

from typing import Any

from grpo_cl.integrations.rows import SOLO_PROMPT
from grpo_cl.policy.model.loading import load_tokenizer, resolve

TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}<|ticket|>{{ message.content }}"
    "{%- elif message.role == 'user' and message.content != '" + SOLO_PROMPT + "' -%}"
    "<|user|> {{ message.content }}"
    "{%- elif message.role == 'tool' -%}<|result|> {{ message.content }}"
    "{%- elif message.role == 'assistant' -%}<|call|>"
    "{%- for call in message.tool_calls or [] %} {{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{%- endfor -%}"
    "{%- if message.content %} {{ message.content }}{%- endif -%}<|end|>"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|call|>{%- endif -%}"
)
PARSER: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|call|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*(?P<name>\w+)(?=\{)",
            "close_pattern": r"<\|end\|>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'" (?P<key>\w+)":" (?P<value>[^"]*)"',
                "value_parser": {"name": "text"},
            },
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}
"""Parses string arguments only, which almost all of the policy's are."""


def templated_tokenizer() -> Any:
    tokenizer: Any = load_tokenizer(resolve("tiny"))
    tokenizer.padding_side = "left"
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = PARSER
    return tokenizer
