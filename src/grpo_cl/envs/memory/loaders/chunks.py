"""Splitting of conversations and documents into chunks of limited length."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from grpo_cl.envs.memory.instances import Chunk, Metric
from grpo_cl.envs.memory.retrieval.tokenizer import count_tokens

MAX_CONTAINED_TOKENS = 8
"""Longer gold answers need a judge instead of substring match."""
_SENTENCE_END = re.compile(r"(?<=[!?])\s+|(?<=[^\d\s]\.)\s+|\n+")
"""The dot of a list number such as "12." ends no sentence."""


class Turn(NamedTuple):
    """One turn of a dialogue."""

    line: str
    key: str
    """The id that evidence refers to."""


class ChunkedDialogue(NamedTuple):
    """Chunks, and the chunks of each turn."""

    chunks: list[Chunk]
    chunk_ids: dict[str, list[int]]
    """Chunk ids by turn key."""


def add_dialogue(
    dialogue: ChunkedDialogue, turns: Sequence[Turn], *, date: str | None, limit: int
) -> None:
    """Append the turns of one session as chunks of at most ``limit`` tokens; turns stay whole."""
    header = f"[Dialogue on {date}]" if date else "[Dialogue]"
    lines: list[str] = []
    length = 0
    for turn in turns:
        tokens = count_tokens(turn.line)
        if lines and length + tokens > limit:
            _add_chunk(dialogue, header, lines, date)
            lines, length = [], 0
        lines.append(turn.line)
        length += tokens
        chunk_ids = dialogue.chunk_ids.setdefault(turn.key, [])
        if len(dialogue.chunks) not in chunk_ids:
            chunk_ids.append(len(dialogue.chunks))
    if lines:
        _add_chunk(dialogue, header, lines, date)


def _add_chunk(dialogue: ChunkedDialogue, header: str, lines: list[str], date: str | None) -> None:
    content = "\n".join([header, *lines])
    chunk = Chunk(chunk_id=len(dialogue.chunks), content=content, timestamp=date)
    dialogue.chunks.append(chunk)


def split_text(text: str, *, limit: int) -> list[Chunk]:
    """A document as chunks of at most ``limit`` tokens, split between sentences if possible."""
    contents: list[str] = []
    length = limit
    for segment in _segments(text, limit):
        tokens = count_tokens(segment)
        if length + tokens > limit:
            contents.append("")
            length = 0
        contents[-1] += segment
        length += tokens
    return [
        Chunk(chunk_id=index, content=content.strip()) for index, content in enumerate(contents)
    ]


def _segments(text: str, limit: int) -> Iterator[str]:
    """Sentences, and the words of sentences that are too long."""
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        sentence = text[start:end]
        start = end
        if count_tokens(sentence) > limit:
            yield from re.findall(r"\S+\s*", sentence)
        elif sentence.strip():
            yield sentence


def metric_for(answers: Sequence[str]) -> Metric:
    """The metric of free-text answers: substring match for short ones, a judge for long ones."""
    longest = max(map(count_tokens, answers), default=0)
    return "contains" if longest <= MAX_CONTAINED_TOKENS else "judge"
