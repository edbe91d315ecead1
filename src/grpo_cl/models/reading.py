"""JSON in the text of models, which like to wrap it."""

import json
from typing import Any


def read_object(text: str) -> dict[str, Any]:
    """The first JSON object in a text, whatever stands around it; ``ValueError`` if none does."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            found, _ = decoder.raw_decode(text, start)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        start = text.find("{", start + 1)
    raise ValueError(f"no JSON object in {text[:80]!r}")
