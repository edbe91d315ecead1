"""The base of records that a user sets, and number types that several of them share."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from grpo_cl.types import Record

LARGEST_INTEGER = 2**63 - 1
"""The largest integer that PyTorch takes as a size or a seed."""

Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=365 * 24 * 3600)]
"""A duration of at most a year; timers overflow soon after."""


class ConfigRecord(Record):
    """Base of the records that a user sets: numbers are finite, texts can be written to a file."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _values_are_usable(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if not (isinstance(kind, type) and issubclass(kind, Record)):  # a section checks its own
            for leaf in _leaves(value):
                _check(leaf)
        return value


def _leaves(value: Any) -> Iterator[Any]:
    """The texts and numbers of nested lists and mappings, keys included."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield key
            yield from _leaves(entry)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value


def _check(value: Any) -> None:
    """Raise for a value that no setting can have, also in options whose type is open."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise ValueError(f"an integer must be between {-LARGEST_INTEGER} and {LARGEST_INTEGER}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number must be finite")


def check_text(text: str) -> None:
    """Raise ``ValueError`` for a text that names nothing or that no file can hold."""
    if not text:
        raise ValueError("the text is empty; leave the setting out, or give `none`")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the text has a NUL character or is not valid Unicode")
