"""Text lengths in tokens, and the stemmed terms that BM25 indexes.

``count_tokens`` needs no model: a word, a number and a punctuation mark are one token each. A token
has at most twelve letters, so text without blanks cannot evade a limit, and each character of an
unspaced script is one token.
"""

import re
import unicodedata
from collections import Counter
from functools import cache, lru_cache

from snowballstemmer.english_stemmer import EnglishStemmer

UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Japanese, Chinese and Korean characters, as the inside of a character class."""

_TOKEN = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w){{1,12}}|[^\w\s]")
_WORD = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])[^\W_])+")

STOP_WORDS = frozenset(
    _WORD.findall(
        """
        a about am an and any are as at be been but by can could d did do does don for from had has
        have he her hers him his how i if in into is it its just ll m me my not of on or our re s
        she should so some t than that the their them then there these they this those to us ve was
        we were what when where which who whom whose why will with would you your
        """
    )
)


@lru_cache(maxsize=8192)  # the episodes of a group write and read many identical texts
def count_tokens(text: str) -> int:
    """The length of ``text`` in tokens."""
    return sum(1 for _ in _TOKEN.finditer(text))


@lru_cache(maxsize=4096)  # as above
def terms(text: str) -> tuple[tuple[str, int], ...]:
    """The stemmed words of ``text`` without stop words, each with its count."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return tuple(Counter(_stem(word) for word in words if word not in STOP_WORDS).items())


@lru_cache(maxsize=65536)  # the stemmer is pure Python and slow
def _stem(word: str) -> str:
    return _stemmer().stemWord(word)


@cache
def _stemmer() -> EnglishStemmer:
    return EnglishStemmer()
