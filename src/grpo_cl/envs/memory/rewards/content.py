"""Content validity of memory calls (r4), decided by rules."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from grpo_cl.envs.memory.instances import Chunk, Instance
from grpo_cl.envs.memory.retrieval.tokenizer import terms
from grpo_cl.envs.memory.rewards.episode import ExecutedCall, Step
from grpo_cl.envs.memory.store.tools import DELETE
from grpo_cl.types import ModelCall

OPERATIONS, FACT_LINES, STALE = "operations", "told", "stale"
"""Labels of a chunk: the gold operations, the lines with facts, and the statements they invalidate.
"""

MIN_SUPPORT = 0.5
"""Fraction of the words of valid content that occur in the chunk or in the replaced text."""
MIN_OVERLAP = 0.5
"""Fraction of words that two texts about the same fact share, of the longer text."""

_PLACEHOLDER = re.compile(
    r"\b(?:core memory|semantic memory|episodic memory|memory (?:entry|content|updated|inserted)|"
    r"placeholder|lorem ipsum|has been (?:updated|stored|saved)|todo|n/a)\b|\.\.\.|<[^>]*>",
    re.IGNORECASE,
)
_YEAR = re.compile(r"\b\d{4}\b")


class Verdicts(NamedTuple):
    """Whether the content of each call of each step is valid; None if undecided."""

    valid: Sequence[Sequence[bool | None]]
    calls: tuple[ModelCall, ...] = ()
    """Model calls made for them."""


class ContentJudge(Protocol):
    """Decides whether the content of calls is valid."""

    def judge(self, steps: Sequence[Step]) -> Verdicts:
        """A verdict for each call of each step."""
        ...


class RuleContentJudge:
    """Valid content is supported by the chunk, well-typed, no placeholder and no duplicate."""

    def judge(self, steps: Sequence[Step]) -> Verdicts:
        """A verdict for each call of each step; None for deletions at unlabelled chunks."""
        return Verdicts([[is_valid(call, step.chunk) for call in step.calls] for step in steps])


def is_valid(call: ExecutedCall, chunk: Chunk) -> bool | None:
    """Whether the content of a call is valid; a failed call is invalid, None is undecided."""
    if not call.outcome.ok:
        return False
    if has_facts(chunk) is False:
        return False  # a chunk without facts needs no change of the memory
    if call.outcome.tool == DELETE:
        return _deletes_stale_entry(call, chunk)
    return _is_well_formed(call) and _is_supported(call, chunk)


def has_facts(chunk: Chunk) -> bool | None:
    """Whether a chunk needs a change of the memory; None for an unlabelled chunk."""
    if chunk.labels is None or OPERATIONS not in chunk.labels:
        return None
    return bool(chunk.labels[OPERATIONS])


def chunks_with_facts(instance: Instance) -> dict[int, bool | None]:
    """``has_facts`` by chunk id; for an unlabelled chunk, whether a question has it as evidence."""
    needed = {chunk_id for question in instance.questions for chunk_id in question.evidence}
    return {
        chunk.chunk_id: chunk.chunk_id in needed
        if (labelled := has_facts(chunk)) is None and needed
        else labelled
        for chunk in instance.chunks
    }


def _deletes_stale_entry(call: ExecutedCall, chunk: Chunk) -> bool | None:
    if chunk.labels is None or call.before is None:
        return None
    deleted = _words(call.before.content)
    return any(_overlaps(deleted, _words(text)) for text in _texts(chunk, STALE))


def _is_well_formed(call: ExecutedCall) -> bool:
    given = _arguments(call)
    content = _content(call)
    kind = str(given.get("memory_type", ""))
    is_dated = bool(given.get("timestamp")) or bool(_YEAR.search(content))
    is_event = kind.startswith("episodic")
    is_valid_date = is_dated or not is_event
    return not _PLACEHOLDER.search(content) and is_valid_date and call.duplicate_of is None


def _is_supported(call: ExecutedCall, chunk: Chunk) -> bool:
    words = _words(_content(call))
    replaced = _words(call.before.content if call.before else call.core_before)
    read = _words(chunk.content)
    if not words or len(words & (read | replaced)) < MIN_SUPPORT * len(words):
        return False
    return not words & _noise_words(chunk) - replaced


def _noise_words(chunk: Chunk) -> set[str]:
    """Words that occur only in lines without facts, such as untrue values."""
    facts = _texts(chunk, FACT_LINES)
    if not facts:
        return set()
    # The gold operations may use words that also occur in noise.
    facts += _texts(chunk, OPERATIONS)
    return _words(chunk.content) - set[str]().union(*map(_words, facts))


def _content(call: ExecutedCall) -> str:
    given = _arguments(call)
    return str(given.get("content", given.get("new_content", "")))


def _arguments(call: ExecutedCall) -> Mapping[str, object]:
    return call.arguments if isinstance(call.arguments, Mapping) else {}


def _texts(chunk: Chunk, label: str) -> list[str]:
    texts = (chunk.labels or {}).get(label)
    return [str(text) for text in texts] if isinstance(texts, list) else []


def _words(text: str) -> set[str]:
    return {term for term, _ in terms(text)}


def _overlaps(left: set[str], right: set[str]) -> bool:
    return len(left & right) >= MIN_OVERLAP * max(len(left), len(right), 1)
