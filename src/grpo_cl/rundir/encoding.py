"""JSON that every reader accepts, whatever a policy wrote or a loss became."""

import json
import logging
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

logger = logging.getLogger(__name__)

_HALF = re.compile(
    r"""\\ud(?:
        [89ab]..(?!\\ud[c-f])            # the first half without a second
        |(?<!\\ud[89ab]..\\ud)[c-f]     # the second without a first
        |(?<=\\\\ud)                    # after a backslash, which may make it something else
    )""",
    re.VERBOSE,
)
"""Where half of a surrogate pair may stand in JSON; a character beyond the first 65,536 has both.
It begins with what it looks for first, so that searching is fast."""


def encode(value: Any, *, indent: int | None = None) -> str:
    """``value`` as ASCII JSON; what is not finite becomes null and is warned about.

    Half of a surrogate pair, which strict parsers refuse, becomes U+FFFD.
    """
    try:
        text = json.dumps(value, allow_nan=False, indent=indent)
    except ValueError:  # a number that is not finite
        return json.dumps(_plain(value, ""), allow_nan=False, indent=indent)
    if _HALF.search(text):
        return json.dumps(_plain(value, ""), allow_nan=False, indent=indent)
    return text


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, float) and not isfinite(value):
        logger.warning("%s is %s; written as null", where or "a number", value)
        return None
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Mapping):
        return {
            whole_text(name) if isinstance(name, str) else name: _plain(
                entry, f"{where}.{name}" if where else str(name)
            )
            for name, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{where}[{place}]") for place, entry in enumerate(value)]
    return value


def whole_text(text: str) -> str:
    """``text`` with each half of a surrogate pair that stands alone replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
