"""Control tokens: the ones a chat template writes, and nobody else.

Text from outside (users, tools, tickets) may spell a control token. ``guard`` puts a mark behind
the first character of each such spelling, and ``encode`` cuts the text there, so that the pieces
become ordinary tokens that still read as the same text.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_cl.policy.parsing import encodable
from grpo_cl.types import Message, ToolCall

MARK = "\U000f5a17"
"""A private character: it belongs to no script, and a text that has it is merely cut there."""


class Controls:
    """The control tokens of one tokenizer.

    They are its special tokens and those added tokens that ``vocabulary`` mentions; added tokens of
    another kind, such as runs of spaces, are ordinary text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: str) -> None:
        self._tokenizer = tokenizer
        self.ids: dict[str, int] = {
            token.content: number
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special or (token.content.strip() and token.content in vocabulary)
        }
        self._spelled = _spelled(self.ids)
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._anchor = _anchor(tokenizer)

    def guard(self, value: Any) -> Any:
        """A text, or every text in lists and mappings, with the control tokens in it marked."""
        if isinstance(value, str):
            return self._spelled.sub(self._mark, encodable(value))
        if isinstance(value, Mapping):
            return {self.guard(key): self.guard(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard(item) for item in value]
        return value

    def guard_message(self, message: Message) -> Message:
        """A message whose content and arguments are guarded."""
        calls = message.tool_calls
        guarded = tuple(self._guard_call(call) for call in calls) if calls else None
        return message.model_copy(
            update={"content": self.guard(message.content), "tool_calls": guarded}
        )

    def first(self, text: str) -> str | None:
        """The control token at the very start of ``text``, spaces aside."""
        match = self._any.match(text.lstrip())
        return match[0] if match else None

    def encode(self, text: str, *, after: str) -> list[int]:
        """The ids of a text ``after`` a control token, or after nothing at the very start."""
        first, *others = text.split(MARK)
        ids = self._encode_after(after, first)
        for piece in others:
            ids += self._encode_after(self._anchor, piece)
        return ids

    def _guard_call(self, call: ToolCall) -> ToolCall:
        return call.model_copy(update={"arguments": self.guard(call.arguments)})

    def _mark(self, match: re.Match[str]) -> str:
        # A token of one character cannot be cut in two.
        return MARK if match[0] in self.ids else match[0] + MARK

    def _encode_after(self, control: str, text: str) -> list[int]:
        # Some tokenizers put a space before a text; a token in front makes it the middle of one.
        ids = list(self._tokenizer(control + text, add_special_tokens=False)["input_ids"])
        return ids[1:] if control else ids


def _anchor(tokenizer: PreTrainedTokenizerBase) -> str:
    """A token that leaves the text behind it alone."""
    tokens = tokenizer.added_tokens_decoder.values()
    return next((t.content for t in tokens if t.special and not t.rstrip), "")


def _spelled(tokens: Iterable[str]) -> re.Pattern[str]:
    """Finds the first character of every spelling, overlapping ones too."""
    rests: dict[str, list[str]] = {}
    for token in tokens:
        rests.setdefault(token[0], []).append(re.escape(token[1:]))
    branches = (f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
    return re.compile("|".join(branches) or "(?!)")
