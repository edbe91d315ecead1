"""Strict JSON encoding: no NaN or infinity, no lone surrogates."""

import json
import logging
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

logger = logging.getLogger(__name__)

_LONE_SURROGATE = re.compile(
    r"""\\ud(?:
        [89ab]..(?!\\ud[c-f])            # a high surrogate without a low one
        |(?<!\\ud[89ab]..\\ud)[c-f]     # a low surrogate without a high one
        |(?<=\\\\ud)                    # after a backslash: possibly an escaped backslash
    )""",
    re.VERBOSE,
)
"""A possible lone surrogate in JSON. It starts with a literal, so that searching is fast."""


def encode(value: Any, *, indent: int | None = None) -> str:
    """``value`` as ASCII JSON; non-finite numbers become null, with a warning.

    A lone surrogate, which strict parsers refuse, becomes U+FFFD.
    """
    try:
        text = json.dumps(value, allow_nan=False, indent=indent)
    except ValueError:  # a number that is not finite
        return json.dumps(_sanitize(value, ""), allow_nan=False, indent=indent)
    if _LONE_SURROGATE.search(text):
        return json.dumps(_sanitize(value, ""), allow_nan=False, indent=indent)
    return text


def _sanitize(value: Any, where: str) -> Any:
    if isinstance(value, float) and not isfinite(value):
        logger.warning("%s is %s; written as null", where or "a number", value)
        return None
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, Mapping):
        return {
            replace_surrogates(name) if isinstance(name, str) else name: _sanitize(
                entry, f"{where}.{name}" if where else str(name)
            )
            for name, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [_sanitize(entry, f"{where}[{index}]") for index, entry in enumerate(value)]
    return value


def replace_surrogates(text: str) -> str:
    """``text`` with lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
