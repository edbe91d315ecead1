"""How the embedded policy reads and writes: few tokens, nothing but the ticket and the calls.

A conversation is ``<|ticket|>…<|call|>reply<|end|><|result|>…<|call|>reply<|end|>…``; a reply is a
tool's name and its arguments as JSON, or several in a row, or text for the user. Every string value
is written after a space, so that an id has the same tokens in a ticket, a result and a call and can
be copied.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_cl.rollout import Scene
from grpo_cl.types import Message, ToolCall

TICKET, USER, RESULT, CALL, END, PAD = (
    "<|ticket|>",
    "<|user|>",
    "<|result|>",
    "<|call|>",
    "<|end|>",
    "<|pad|>",
)
SPECIAL = (PAD, TICKET, USER, RESULT, CALL, END)

LONGEST_RESULT = 384
"""Tokens kept of a tool's answer: a product with all its variants would fill the context."""

_NAME = re.compile(r"\s*(\w+)(?=\{)")
_DECODER = json.JSONDecoder(parse_constant=str)
_PIECES = r" ?[^\s\dA-Z]+|\d|[A-Z]| |\s"
"""Digits and capitals stand alone, so that codes are spelled and never guessed as words."""


class CompactChat:
    """The chat of the embedded policy; see ``Chat`` for the meaning of the methods."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
        self.stop_ids: tuple[int, ...] = (self._special[END],)

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """The ticket, what was said before, and the prompt for a reply."""
        ids = [self._special[TICKET], *self._encode(scene.system)] if scene.system else []
        for message in messages:
            ids += self._render(message)
        return [*ids, self._special[CALL]]

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """What came after a reply, and the prompt for the next."""
        ids = [] if ended else [self._special[END]]
        for message in messages:
            ids += self._render(message)
        return [*ids, self._special[CALL]]

    def reply(self, message: Message) -> list[int]:
        """A message as the policy should write it."""
        calls = message.tool_calls or ()
        text = "".join(map(_written, calls)) if calls else f" {message.content or ''}"
        return [*self._encode(text), self._special[END]]

    def read(self, ids: Sequence[int]) -> Message:
        """A reply as a message; what does not read as calls from end to end is text."""
        kept = [token for token in ids if token != self._special[END]]
        text = self._tokenizer.decode(kept, skip_special_tokens=False)
        calls = _parsed(text)
        if calls:
            return Message(role="assistant", tool_calls=calls)
        return Message(role="assistant", content=text.strip().encode(errors="replace").decode())

    def _render(self, message: Message) -> list[int]:
        if message.role == "tool":
            result = self._encode(_shortened(message.content or ""))
            return [self._special[RESULT], *result[:LONGEST_RESULT]]
        if message.role == "assistant":
            return [self._special[CALL], *self.reply(message)]
        return [self._special[USER], *self._encode(f" {message.content or ''}")]

    def _encode(self, text: str) -> list[int]:
        plain = text.replace("<|", "< |")  # nobody but this class writes a special token
        return self._tokenizer(plain, add_special_tokens=False)["input_ids"]


def _written(call: ToolCall) -> str:
    return f" {call.name}{_dumps(call.arguments)}"


def _shortened(content: str) -> str:
    if not content.startswith(("{", "[")):
        return f" {content}"
    try:
        return _dumps(json.loads(content))
    except ValueError:
        return f" {content}"


def _dumps(value: Any) -> str:
    return json.dumps(_spaced(value), separators=(",", ":"), ensure_ascii=False)


def _spaced(value: Any) -> Any:
    if isinstance(value, str):
        return f" {value}"
    if isinstance(value, dict):
        return {_spaced(key): _spaced(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_spaced(item) for item in value]
    return value


def _parsed(text: str) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    start = 0
    while text[start:].strip():
        match = _NAME.match(text, start)
        if match is None:
            return ()
        try:
            found, start = _DECODER.raw_decode(text, match.end())
            arguments = _unspaced(found)
            json.dumps(arguments, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return ()
        calls.append(ToolCall(name=match[1], arguments=arguments))
    return tuple(calls)


def _unspaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.removeprefix(" ")
    if isinstance(value, dict):
        return {_unspaced(key): _unspaced(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unspaced(item) for item in value]
    return value


def train_tokenizer(texts: Iterable[str], *, size: int) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer whose words are those of ``texts``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[TICKET, USER, RESULT, CALL],
    )


def texts_of(scene: Scene, messages: Sequence[Message]) -> Iterator[str]:
    """What a tokenizer should know of a conversation."""
    yield scene.system
    for message in messages:
        if message.role == "tool":
            yield _shortened(message.content or "")
        elif message.role == "user":
            yield f" {message.content or ''}"
        else:
            yield "".join(map(_written, message.tool_calls or ()))
