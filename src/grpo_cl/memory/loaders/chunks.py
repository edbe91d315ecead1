"""Conversations and documents cut into chunks of limited length."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from grpo_cl.memory.instances import Chunk, Metric
from grpo_cl.memory.tokens import count_tokens

SHORT = 8
"""Tokens up to which an answer is looked for word by word; longer ones need a judge."""
_END = re.compile(r"(?<=[!?])\s+|(?<=[^\d\s]\.)\s+|\n+")
"""Where a sentence ends; the point of "12. The pear is green." ends none."""


class Turn(NamedTuple):
    """Something that was said."""

    line: str
    key: str
    """What evidence refers to it by."""


class Cut(NamedTuple):
    """Chunks, and where each turn went."""

    chunks: list[Chunk]
    places: dict[str, list[int]]
    """The chunks that hold a key's turns."""


def add_dialogue(cut: Cut, turns: Sequence[Turn], *, date: str | None, limit: int) -> None:
    """Append turns of one session as chunks of at most ``limit`` tokens, a turn in one piece."""
    header = f"[Dialogue on {date}]" if date else "[Dialogue]"
    lines: list[str] = []
    length = 0
    for turn in turns:
        tokens = count_tokens(turn.line)
        if lines and length + tokens > limit:
            _close(cut, header, lines, date)
            lines, length = [], 0
        lines.append(turn.line)
        length += tokens
        known = cut.places.setdefault(turn.key, [])
        if len(cut.chunks) not in known:
            known.append(len(cut.chunks))
    if lines:
        _close(cut, header, lines, date)


def _close(cut: Cut, header: str, lines: list[str], date: str | None) -> None:
    content = "\n".join([header, *lines])
    cut.chunks.append(Chunk(chunk_id=len(cut.chunks), content=content, timestamp=date))


def cut_text(text: str, *, limit: int) -> list[Chunk]:
    """A document as chunks of at most ``limit`` tokens, cut between sentences where it can be."""
    contents: list[str] = []
    length = limit
    for piece in _pieces(text, limit):
        tokens = count_tokens(piece)
        if length + tokens > limit:
            contents.append("")
            length = 0
        contents[-1] += piece
        length += tokens
    return [
        Chunk(chunk_id=place, content=content.strip()) for place, content in enumerate(contents)
    ]


def _pieces(text: str, limit: int) -> Iterator[str]:
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        sentence = text[start:end]
        start = end
        if count_tokens(sentence) > limit:
            yield from re.findall(r"\S+\s*", sentence)
        elif sentence.strip():
            yield sentence


def metric_for(answers: Sequence[str]) -> Metric:
    """How free answers are scored: short ones by their words, long ones by a judge."""
    return "contains" if max(map(count_tokens, answers), default=0) <= SHORT else "judge"
