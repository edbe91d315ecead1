"""How long a text is, by a count that needs no model and is the same everywhere.

A word, a number and a punctuation mark are one token each. Twelve letters are the most one token
holds, so that a limit cannot be escaped by leaving out the blanks, and a sign of a script that is
written without blanks is a token by itself.
"""

import re
from functools import lru_cache

UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Japanese, Chinese and Korean signs, as the inside of a character class."""

_TOKEN = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w){{1,12}}|[^\w\s]")


@lru_cache(maxsize=8192)  # the episodes of a group write and read many identical texts
def count_tokens(text: str) -> int:
    """The length of ``text`` in tokens."""
    return sum(1 for _ in _TOKEN.finditer(text))
