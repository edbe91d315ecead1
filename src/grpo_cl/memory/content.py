"""Whether what a call writes is worth having: rules that need no model."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from grpo_cl.memory.instances import Chunk, Instance
from grpo_cl.memory.lexical import terms
from grpo_cl.memory.steps import Call, Step
from grpo_cl.memory.tools import DELETE
from grpo_cl.transcripts import ModelCall

OPERATIONS, TOLD, STALE = "operations", "told", "stale"
"""Labels of a chunk: the calls of a careful writer, the lines that tell something, and what of an
earlier memory they make wrong."""

LEAST_SUPPORT = 0.5
"""Share of the words of a content that must be in what it was written from."""
SAME = 0.5
"""Share of words that two texts about the same thing have in common, both ways."""

_PLACEHOLDER = re.compile(
    r"\b(?:core memory|semantic memory|episodic memory|memory (?:entry|content|updated|inserted)|"
    r"placeholder|lorem ipsum|has been (?:updated|stored|saved)|todo|n/a)\b|\.\.\.|<[^>]*>",
    re.IGNORECASE,
)
_YEAR = re.compile(r"\b\d{4}\b")


class Verdicts(NamedTuple):
    """Whether the content of each call of each step is valid; None where nobody can say."""

    valid: Sequence[Sequence[bool | None]]
    calls: tuple[ModelCall, ...] = ()
    """What models were asked for it."""


class ContentJudge(Protocol):
    """Decides whether the content of calls is valid."""

    def judge(self, steps: Sequence[Step]) -> Verdicts:
        """A verdict for each call of each step."""
        ...


class Rules:
    """Content is supported by the chunk, fits its type, is no placeholder and no double."""

    def judge(self, steps: Sequence[Step]) -> Verdicts:
        """A verdict for each call of each step; None for deletions nobody labelled."""
        return Verdicts([[is_valid(call, step.chunk) for call in step.calls] for step in steps])


def is_valid(call: Call, chunk: Chunk) -> bool | None:
    """Whether a call did something right; one that failed did not."""
    if not call.outcome.ok:
        return False
    if is_telling(chunk) is False:
        return False  # nothing here is worth a change of the memory
    if call.outcome.tool == DELETE:
        return _is_due(call, chunk)
    return _is_sound(call) and _is_supported(call, chunk)


def is_telling(chunk: Chunk) -> bool | None:
    """Whether a chunk holds anything to remember or forget; None where nobody labelled it."""
    if chunk.labels is None or OPERATIONS not in chunk.labels:
        return None
    return bool(chunk.labels[OPERATIONS])


def telling_chunks(instance: Instance) -> dict[int, bool | None]:
    """Whether each chunk holds anything; where nobody labelled it, whether a question needs it."""
    needed = {chunk_id for question in instance.questions for chunk_id in question.evidence}
    return {
        chunk.chunk_id: chunk.chunk_id in needed
        if (known := is_telling(chunk)) is None and needed
        else known
        for chunk in instance.chunks
    }


def _is_due(call: Call, chunk: Chunk) -> bool | None:
    if chunk.labels is None or call.before is None:
        return None
    gone = _words(call.before.content)
    return any(_is_same(gone, _words(text)) for text in _texts(chunk, STALE))


def _is_sound(call: Call) -> bool:
    given = _arguments(call)
    content = _content(call)
    kind = str(given.get("memory_type", ""))
    is_dated = bool(given.get("timestamp")) or bool(_YEAR.search(content))
    is_event = kind.startswith("episodic")
    return not _PLACEHOLDER.search(content) and (is_dated or not is_event) and call.doubles is None


def _is_supported(call: Call, chunk: Chunk) -> bool:
    words = _words(_content(call))
    old = _words(call.before.content if call.before else call.core_before)
    read = _words(chunk.content)
    if not words or len(words & (read | old)) < LEAST_SUPPORT * len(words):
        return False
    return not words & _noise(chunk) - old


def _noise(chunk: Chunk) -> set[str]:
    """Words that only lines use which tell nothing: values that are not true among them."""
    told = _texts(chunk, TOLD)
    if not told:
        return set()
    # A careful writer may put what is told into words that a line of noise uses too.
    told += _texts(chunk, OPERATIONS)
    return _words(chunk.content) - set[str]().union(*map(_words, told))


def _content(call: Call) -> str:
    given = _arguments(call)
    return str(given.get("content", given.get("new_content", "")))


def _arguments(call: Call) -> Mapping[str, object]:
    return call.arguments if isinstance(call.arguments, Mapping) else {}


def _texts(chunk: Chunk, label: str) -> list[str]:
    found = (chunk.labels or {}).get(label)
    return [str(each) for each in found] if isinstance(found, list) else []


def _words(text: str) -> set[str]:
    return {term for term, _ in terms(text)}


def _is_same(one: set[str], other: set[str]) -> bool:
    return len(one & other) >= SAME * max(len(one), len(other), 1)
