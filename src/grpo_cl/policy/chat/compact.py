"""The compact chat format of the embedded policy: few tokens, only ticket, results and calls.

A conversation is ``<|ticket|>…<|call|>reply<|end|><|result|>…<|call|>reply<|end|>…``; a reply is a
tool's name and its arguments as JSON, or several in a row, or text for the user. Every string value
follows a space, so that an id has the same tokens in a ticket, a result and a call and the policy
can copy it. In a record inside a result ids follow the other fields: attention is causal, so an id
is found by the name it belongs to only if it stands after that name.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.tool_call_parser import MAX_CALLS, decode_json
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

MAX_RESULT_TOKENS = "max_result_tokens"
"""A setting of the tokenizer: tokens kept of a tool result. Many long results fill the context."""
RESULT_TOKENS = 1024
"""For new tokenizers: most products with all their variants, from which an agent chooses."""

CACHED_TEXTS = 1024
"""Tickets and tool results whose ids are cached: those of a group are often equal."""

_NAME = re.compile(r"\s*(\w{1,64})(?=\{)")
_IDENTIFIER = r"[\w.@#+-]{1,40}\d[\w.@#+-]{0,40}\d"
"""The start of a code such as ``mia_li_3668``: letters and signs up to the second digit."""
SPLIT_PATTERN = rf" ?(?:(?!{_IDENTIFIER})[^\s\dA-Z])+|\d{{1,2}}|\S|\s"
"""Words, pairs of digits, and single characters: capitals and everything before a code's digits.

Merges learned from the codes of training tasks would give other codes pieces that were rarely or
never seen. ``tokenizer.json`` has the pattern: a saved tokenizer keeps the one it was trained with.
"""


class CompactChat:
    """The chat format of the embedded policy; the methods are those of ``Chat``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
        self._max_result = _max_result_tokens(tokenizer)
        self.stop_ids: tuple[int, ...] = (self._special[END],)
        self._cached_ids = lru_cache(maxsize=CACHED_TEXTS)(self._encode)

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        """The ticket, the messages so far and the generation prompt."""
        ids = [self._special[TICKET], *self._cached_ids(scene.system)] if scene.system else []
        for message in messages:
            ids += self._render(message)
        return [*ids, self._special[CALL]]

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """The messages after a reply and the next generation prompt."""
        ids = [] if ended else [self._special[END]]
        for message in messages:
            ids += self._render(message)
        return [*ids, self._special[CALL]]

    def encode_reply(self, message: Message) -> list[int]:
        """The ids of a message as the policy should write it."""
        calls = message.tool_calls or ()
        text = "".join(map(_format_call, calls)) if calls else f" {message.content or ''}"
        return [*self._encode(text), self._special[END]]

    def parse_reply(self, ids: Sequence[int]) -> Message:
        """A reply as a message; text that does not consist of calls only is content."""
        kept = [token for token in ids if token != self._special[END]]
        text = self._tokenizer.decode(kept, skip_special_tokens=False)
        calls = _parse_calls(text)
        if calls:
            return Message(role="assistant", tool_calls=calls)
        return Message(role="assistant", content=text.strip().encode(errors="replace").decode())

    def _render(self, message: Message) -> list[int]:
        if message.role == "tool":
            result = self._cached_ids(_format_result(message.content or ""))
            return [self._special[RESULT], *result[: self._max_result]]
        if message.role == "assistant":
            return [self._special[CALL], *self.encode_reply(message)]
        return [self._special[USER], *self._encode(f" {message.content or ''}")]

    def _encode(self, text: str) -> list[int]:
        plain = text.replace("<|", "< |")  # only this class produces special tokens
        return self._tokenizer(plain, add_special_tokens=False)["input_ids"]


def _format_call(call: ToolCall) -> str:
    return f" {call.name}{_dumps(call.arguments)}"


def _format_result(content: str) -> str:
    if not content.startswith(("{", "[")):
        return f" {content}"
    try:
        decoded = json.loads(content)
        if not isinstance(decoded, dict):
            return _dumps(_ids_last(decoded))
        # A long result is cut at its end, so the id of the whole record keeps its place.
        return _dumps({key: _ids_last(value) for key, value in decoded.items()})
    except (ValueError, RecursionError):
        return f" {content}"


def _ids_last(value: Any) -> Any:
    if isinstance(value, dict):
        ids_after = sorted(value, key=_is_id)
        return {key: _ids_last(value[key]) for key in ids_after}
    if isinstance(value, list):
        return [_ids_last(item) for item in value]
    return value


def _is_id(key: str) -> bool:
    return key == "id" or key.endswith("_id")


def _dumps(value: Any) -> str:
    return json.dumps(_add_spaces(value), separators=(",", ":"), ensure_ascii=False)


def _add_spaces(value: Any) -> Any:
    if isinstance(value, str):
        return f" {value}"
    if isinstance(value, dict):
        return {_add_spaces(key): _add_spaces(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_add_spaces(item) for item in value]
    return value


class _DuplicateKeyError(Exception):
    """Two keys of an object differ only in the space before them."""


def _parse_calls(text: str) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    start = 0
    while text[start:].strip():
        match = _NAME.match(text, start)
        decoded = decode_json(text, match.end()) if match and len(calls) < MAX_CALLS else None
        if match is None or decoded is None:
            return ()
        try:
            arguments = _remove_spaces(decoded.value)
        except _DuplicateKeyError:
            return ()
        calls.append(ToolCall(name=match[1], arguments=arguments))
        start = decoded.end
    return tuple(calls)


def _remove_spaces(value: Any) -> Any:
    if isinstance(value, str):
        return value.removeprefix(" ")
    if isinstance(value, dict):
        without = {_remove_spaces(key): _remove_spaces(item) for key, item in value.items()}
        if len(without) != len(value):
            raise _DuplicateKeyError
        return without
    if isinstance(value, list):
        return [_remove_spaces(item) for item in value]
    return value


def train_tokenizer(
    texts: Iterable[str], *, size: int, pattern: str = SPLIT_PATTERN
) -> PreTrainedTokenizerFast:
    """A small byte-level BPE tokenizer trained on ``texts``; ``pattern`` splits them before."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
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
    tokenizer.train_from_iterator(_with_digit_pairs(texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[TICKET, USER, RESULT, CALL],
        **{MAX_RESULT_TOKENS: RESULT_TOKENS},
    )


def _with_digit_pairs(texts: Iterable[str]) -> Iterator[str]:
    """The texts, with pairs of digits as often as texts, so that every pair becomes a token."""
    pairs = " ".join(f"{number:02}" for number in range(100))
    for text in texts:
        yield text
        yield pairs


def tokenizer_texts(scene: Scene, messages: Sequence[Message]) -> Iterator[str]:
    """The texts of a conversation that a tokenizer is trained on."""
    yield scene.system
    for message in messages:
        if message.role == "tool":
            yield _format_result(message.content or "")
        elif message.role == "user":
            yield f" {message.content or ''}"
        else:
            yield "".join(map(_format_call, message.tool_calls or ()))


def _max_result_tokens(tokenizer: Any) -> int:
    if MAX_RESULT_TOKENS not in tokenizer.init_kwargs:
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} has no {MAX_RESULT_TOKENS}, which the "
            "compact dialect needs: it was made before release 3 of the generated tasks, or for "
            "another dialect; make a policy with grpo-cl sft --new_tiny, or set sampling.dialect"
        )
    return tokenizer.init_kwargs[MAX_RESULT_TOKENS]
