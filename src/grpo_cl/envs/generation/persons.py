"""One sentence template in the first, second and third person."""

import re
from collections.abc import Mapping

Person = Mapping[str, str]
"""Words by placeholder; ``{You}`` begins a sentence, ``{me}`` is an object."""

_SINGULAR = {"s": "s", "es": "es", "are": "is", "have": "has", "do": "does", "was": "was"}
_PLURAL = {"s": "", "es": "", "are": "are", "have": "have", "do": "do", "was": "were"}

FIRST: Person = {
    "You": "I", "you": "I", "Your": "My", "your": "my", "me": "me",
    **_PLURAL, "are": "am", "was": "was",
}  # fmt: skip
SECOND: Person = {
    "You": "You", "you": "you", "Your": "Your", "your": "your", "me": "you", **_PLURAL,
}  # fmt: skip
THIRD: Person = {
    "You": "They", "you": "they", "Your": "Their", "your": "their", "me": "them", **_PLURAL,
}  # fmt: skip
CUSTOMER: Person = {**THIRD, "You": "The customer", "Your": "The customer's", **_SINGULAR}
"""The third person in a sentence that names the customer."""

KEEP: Person = {placeholder: f"{{{placeholder}}}" for placeholder in FIRST}
"""Leaves the placeholders of persons in place."""

_OBJECT = re.compile(r"\b(told|tell|at|for) (I|they)\b(?= (?:not|to)\b|[.,;]|$)")
_OBJECTS = {"I": "me", "they": "them"}
_I_ARE = re.compile(r"\bI (are|were)\b")
_BE = {"are": "am", "were": "was"}

_CONTRACTIONS = tuple(
    (re.compile(rf"\b{long}\b"), short)
    for long, short in (
        ("([Dd]o|[Dd]oes|[Dd]id|[Ii]s|[Aa]re|[Ww]ould) not", r"\1n't"),
        ("cannot", "can't"),
        ("([Tt]hey|[Yy]ou) are", r"\1're"),
        ("([Tt]hey|[Yy]ou|I) have(?= (?:been|decided|confirmed|agreed|said|not)\\b)", r"\1've"),
        ("([Tt]hey|[Yy]ou|I) would(?= (?:like|also|rather)\\b)", r"\1'd"),
        ("I am", "I'm"),
        ("([Ii]t|[Tt]hat) is(?= (?:not|no|okay|fine)\\b)", r"\1's"),
    )
)


def in_person(template: str, words: Mapping[str, object]) -> str:
    """The sentence with the words of a person, with a capital first letter and a full stop."""
    text = template.format(**words).strip()
    text = _OBJECT.sub(lambda match: f"{match[1]} {_OBJECTS[match[2]]}", text)
    text = _I_ARE.sub(lambda match: f"I {_BE[match[1]]}", text)
    ended = text if text[-1] in ".!?:|" else f"{text}."
    return capitalized(ended)


def contracted(text: str) -> str:
    """``text`` with the short forms of speech: don't, they're."""
    for pattern, short in _CONTRACTIONS:
        text = pattern.sub(short, text)
    return text


def capitalized(text: str) -> str:
    """``text`` with a capital first letter."""
    return text[:1].upper() + text[1:]
