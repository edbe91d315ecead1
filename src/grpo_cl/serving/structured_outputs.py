"""Structured outputs: replies that follow the JSON schema of a request's ``response_format``.

The schema becomes a regular expression, and each token is sampled from those that continue a text
it can still match (as in Outlines, arXiv:2307.09702).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex

from grpo_cl.serving.requests import RequestError

_CHARACTER = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])'
_DIGITS = r"(?:0|[1-9][0-9]{0,15})"
_SCALARS = {
    "integer": f"-?{_DIGITS}",
    "number": rf"-?{_DIGITS}(?:\.[0-9]{{1,16}})?",
    "boolean": "(?:true|false)",
    "null": "null",
}
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "additionalProperties"})
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    **dict.fromkeys(_SCALARS, frozenset[str]()),
}
"""Types and their keywords; without alternatives of schemas a text has one way to match."""


def schema_pattern(schema: object) -> str:
    """A regular expression of the JSON texts of ``schema``, with at most one space between tokens.

    An object has all its properties in the order of the schema. Raises ``RequestError`` for a
    keyword that is not supported.
    """
    if not isinstance(schema, Mapping):
        raise _refused(f"{schema!r} is no JSON schema, which is an object")
    keywords = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
    kind = keywords.pop("type", None)
    values = [keywords.pop("const")] if "const" in keywords else keywords.pop("enum", None)
    if values is not None and not keywords:
        return _one_of(values)
    if not isinstance(kind, str) or kind not in _KEYWORDS:
        raise _refused(f"type {kind!r}; the types are {', '.join(_KEYWORDS)}")
    if unknown := sorted(keywords.keys() - _KEYWORDS[kind]):
        raise _refused(f"the keyword {unknown[0]!r} with type {kind!r}")
    if kind == "object":
        return _object(keywords.get("properties", {}))
    if kind == "array":
        return _array(keywords)
    if kind == "string":
        return f'"{_CHARACTER}{_counts(keywords, "Length")}"'
    return _SCALARS[kind]


def _one_of(values: object) -> str:
    if not isinstance(values, list) or not values:
        raise _refused(f"enum {values!r}, which has to be a list of values")
    texts = dict.fromkeys(json.dumps(value, ensure_ascii=False) for value in values)
    return f"(?:{'|'.join(map(regex.escape, texts))})"


def _object(properties: object) -> str:
    if not isinstance(properties, Mapping):
        raise _refused(f"properties {properties!r}, which have to be an object")
    entries = [
        f"{regex.escape(json.dumps(name, ensure_ascii=False))} ?: ?{schema_pattern(value)}"
        for name, value in properties.items()
    ]
    return rf"\{{ ?{' ?, ?'.join(entries)} ?\}}"


def _array(keywords: Mapping[str, Any]) -> str:
    item = schema_pattern(keywords.get("items"))
    low, high = _range(keywords, "Items")
    if high == 0:
        return r"\[ ?\]"
    further = f"{{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
    items = f"{item}(?: ?, ?{item}){further}"
    return rf"\[ ?{items if low else f'(?:{items})?'} ?\]"


def _counts(keywords: Mapping[str, Any], what: str) -> str:
    low, high = _range(keywords, what)
    return f"{{{low},{'' if high is None else high}}}"


def _range(keywords: Mapping[str, Any], what: str) -> tuple[int, int | None]:
    low, high = keywords.get(f"min{what}", 0), keywords.get(f"max{what}")
    numbers = [low] if high is None else [low, high]
    if any(type(number) is not int or number < 0 for number in numbers) or numbers[-1] < low:
        raise _refused(f"min{what} {low!r} and max{what} {high!r}")
    return low, high


def _refused(what: str) -> RequestError:
    return RequestError(
        f"response_format: {what} is not served; docs/serving.md lists what a schema may have",
        param="response_format",
    )


class SchemaConstraint:
    """The tokens that may follow in one reply."""

    def __init__(
        self, pattern: str, decode: Callable[[Sequence[int]], str], stop_ids: Sequence[int]
    ) -> None:
        self._pattern = regex.compile(pattern)
        self._decode = decode
        self._stop_ids = frozenset(stop_ids)

    def __call__(self, ids: Sequence[int], candidates: Sequence[int]) -> list[int]:
        """Those of ``candidates`` that may follow ``ids``, the tokens of the reply so far.

        The reply ends when it matches, or after a token that does not fit, which is sampled if no
        token of the vocabulary fits.
        """
        text = self._decode(ids)
        match = self._pattern.fullmatch(text, partial=True)
        if match is None or not match.partial:
            return [token for token in candidates if token in self._stop_ids]
        return [token for token in candidates if self._continues(text, [*ids, token])]

    def _continues(self, text: str, ids: Sequence[int]) -> bool:
        if ids[-1] in self._stop_ids:
            return False
        longer = self._decode(ids)  # a special token adds no text
        return longer != text and self._pattern.fullmatch(longer, partial=True) is not None
