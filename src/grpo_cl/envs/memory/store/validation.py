"""Validation of tool arguments: each check returns the valid value or raises ``ToolError``."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import PositiveInt

from grpo_cl.envs.memory.retrieval.tokenizer import count_tokens
from grpo_cl.envs.memory.store.taxonomy import Taxonomy
from grpo_cl.errors import ToolError
from grpo_cl.types import Record

MAX_TIMESTAMP_LENGTH = 40
T = TypeVar("T")


class Limits(Record):
    """Size limits of a memory."""

    core_tokens: PositiveInt = 512
    entry_tokens: PositiveInt = 256
    entries: PositiveInt = 10_000


def check_text(value: object, *, what: str, limit: int) -> str:
    """A text that is not blank and has at most ``limit`` tokens."""
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"{what} {quoted(value)} is no text; give a sentence to remember")
    if not _is_encodable(value):
        raise ToolError(f"{what} {quoted(value)} is no Unicode text; leave out broken characters")
    length = count_tokens(value)
    if length > limit:
        raise ToolError(f"{what} has {length} tokens, the limit is {limit}; shorten or split it")
    return value.strip()


def check_type(value: object, taxonomy: Taxonomy) -> str:
    """The name of a type that has entries."""
    if isinstance(value, str) and value in taxonomy.entry_types:
        return value
    known = ", ".join(taxonomy.entry_types)
    if value in [kind.name for kind in taxonomy.types]:
        raise ToolError(
            f"memory type {quoted(value)} is one text without entries; rewrite it with "
            f"core_memory_update, or use one of {known}"
        )
    raise ToolError(f"unknown memory type {quoted(value)}; use one of {known}")


def check_category(value: object, taxonomy: Taxonomy) -> str | None:
    """The name of a category, or None for an entry without one."""
    if value is None or (isinstance(value, str) and value in taxonomy.category_positions):
        return value
    known = ", ".join(taxonomy.category_positions)
    raise ToolError(f"unknown category {quoted(value)}; use one of {known}, or leave it out")


def check_timestamp(value: object) -> str | None:
    """A date or time as its source writes it."""
    if value is None:
        return None
    is_time = isinstance(value, str) and any(letter.isdigit() for letter in value)
    if not isinstance(value, str) or not is_time or not _is_encodable(value):
        raise ToolError(f"timestamp {quoted(value)} is no date; write one such as 2024-05-31")
    if len(value.strip()) > MAX_TIMESTAMP_LENGTH:
        raise ToolError(
            f"timestamp {quoted(value)} is longer than {MAX_TIMESTAMP_LENGTH} letters; "
            "give only the date and time"
        )
    return value.strip()


def check_importance(value: object) -> float:
    """A number from 0 to 1."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ToolError(f"importance {quoted(value)} is out of range; give a number from 0 to 1")


def check_id(value: object, entries: Mapping[int, T]) -> T:
    """The entry with the id ``value``."""
    if isinstance(value, int) and not isinstance(value, bool) and value in entries:
        return entries[value]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ToolError(f"memory id {quoted(value)} is no whole number; use an id that was shown")
    raise ToolError(f"there is no memory with id {quoted(value)}; use an id that was shown")


def quoted(value: object) -> str:
    """``value`` as quoted in an error, at most 60 characters long."""
    text = ascii(value) if isinstance(value, str) and not _is_encodable(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
