"""Special tokens: only the chat template may produce them.

Text from outside (users, tools, tickets) may contain the spelling of a special token.
``escape_special_tokens`` inserts a split mark after the first character of each such spelling, and
``encode`` tokenizes the pieces around the marks separately, so that they become ordinary tokens
with the same text.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_cl.policy.chat.tool_call_parser import replace_surrogates
from grpo_cl.types import Message, ToolCall

SPLIT_MARK = "\U000f5a17"
"""A private-use character; in a text that already contains it, it only adds a token boundary."""


class SpecialTokens:
    """The special tokens of one tokenizer.

    These are the tokens marked as special and the added tokens that ``vocabulary`` mentions. Other
    added tokens, such as runs of spaces, are ordinary text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: str) -> None:
        self._tokenizer = tokenizer
        self.ids: dict[str, int] = {
            token.content: number
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special or (token.content.strip() and token.content in vocabulary)
        }
        self._first_characters = _first_characters(self.ids)
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._anchor = _anchor(tokenizer)

    def escape_special_tokens(self, value: Any) -> Any:
        """A text, or every text in lists and mappings, with a mark in each special token."""
        if isinstance(value, str):
            return self._first_characters.sub(self._split, replace_surrogates(value))
        if isinstance(value, Mapping):
            return {
                self.escape_special_tokens(key): self.escape_special_tokens(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.escape_special_tokens(item) for item in value]
        return value

    def escape_message(self, message: Message) -> Message:
        """The message with escaped content and tool-call arguments."""
        calls = message.tool_calls
        escaped = tuple(self._escape_call(call) for call in calls) if calls else None
        return message.model_copy(
            update={"content": self.escape_special_tokens(message.content), "tool_calls": escaped}
        )

    def leading(self, text: str) -> str | None:
        """The special token that ``text`` starts with, leading whitespace ignored."""
        match = self._any.match(text.lstrip())
        return match[0] if match else None

    def encode(self, text: str, *, after: str) -> list[int]:
        """The ids of an escaped text after the special token ``after``, or after nothing ("")."""
        first, *others = text.split(SPLIT_MARK)
        ids = self._encode_after(after, first)
        for piece in others:
            ids += self._encode_after(self._anchor, piece)
        return ids

    def _escape_call(self, call: ToolCall) -> ToolCall:
        return call.model_copy(update={"arguments": self.escape_special_tokens(call.arguments)})

    def _split(self, match: re.Match[str]) -> str:
        # A token of one character cannot be split, so it is removed.
        return SPLIT_MARK if match[0] in self.ids else match[0] + SPLIT_MARK

    def _encode_after(self, special: str, text: str) -> list[int]:
        # Some tokenizers put a space before a text; a token in front prevents that.
        ids = list(self._tokenizer(special + text, add_special_tokens=False)["input_ids"])
        return ids[1:] if special else ids


def _anchor(tokenizer: PreTrainedTokenizerBase) -> str:
    """A special token that does not strip the text after it."""
    tokens = tokenizer.added_tokens_decoder.values()
    return next((t.content for t in tokens if t.special and not t.rstrip), "")


def _first_characters(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of every spelling of a token, overlapping ones too."""
    rests: dict[str, list[str]] = {}
    for token in tokens:
        rests.setdefault(token[0], []).append(re.escape(token[1:]))
    branches = (f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
    return re.compile("|".join(branches) or "(?!)")
