"""What a text says about an attribute, as far as somebody sees who knows how people put it."""

import re
from functools import cache, lru_cache
from typing import NamedTuple

from grpo_cl.memory.generator.attributes import RELATIONS, Attribute, attributes
from grpo_cl.memory.generator.wording import CORRECTION, RETRACTION
from grpo_cl.memory.lexical import STOP_WORDS

NAME = r"[A-Z][a-z]+(?: [A-Z][a-z]+)?"
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")

_OLD = (
    r"(?:instead of|no longer(?: as)?|not(?: to| as)?|(?:changed|reset) from|used to be|"
    r"before(?: that)?|previously|formerly|earlier|was)"
)
_FILL = r"[:,]?\s+(?:(?:a|an|the|to|as|in|on|by|project)\s+)?"


class Claim(NamedTuple):
    """What a text says is true."""

    person: str
    value: str | None
    """None where it is taken back."""
    before: str | None
    place: int
    """Where in the text it stands; of two claims in one text the later counts."""


@lru_cache(maxsize=65536)  # the episodes of a group write and read many identical texts
def claims(name: str, text: str) -> tuple[Claim, ...]:
    """All that ``text`` says about the attribute called ``name``."""
    attribute = attributes()[name]
    lowered = text.lower()
    if not any(word in lowered for word in (*attribute.cues, attribute.noun)):
        return ()
    found: list[Claim] = []
    covered: list[tuple[int, int]] = []
    for pattern in _patterns(name):
        for match in pattern.finditer(text):
            start, end = match.span()
            if any(start < last and first < end for first, last in covered):
                continue
            covered.append((start, end))
            given = match.groupdict()
            found.append(Claim(given["n"], given.get("v"), given.get("o"), start))
    found = found or _loose(attribute, text)
    return tuple(_with_before(claim, attribute, text) for claim in found)


def _loose(attribute: Attribute, text: str) -> list[Claim]:
    """Sentences in other words: a person, a cue and one value that is not an old one."""
    found: list[Claim] = []
    place = 0
    for sentence in SENTENCE.split(text):
        claim = _claimed(attribute, sentence, place)
        found += [claim] if claim else []
        place += len(sentence) + 1
    return found


def _claimed(attribute: Attribute, sentence: str, place: int) -> Claim | None:
    words = set(re.findall(r"\w+", sentence.lower()))
    if not attribute.values or words.isdisjoint(attribute.cues):
        return None
    value = _value(attribute)
    now = re.sub(rf"\b{_OLD}{_FILL}(?:{value})\b", " ", sentence, flags=re.IGNORECASE)
    values = set(re.findall(rf"\b(?:{value})\b", now))
    subject = re.sub(rf"\b{NAME}'s (?:{'|'.join(RELATIONS)})\b", " ", now)
    other = {*values, *attribute.cues, *attribute.noun.split(), *STOP_WORDS}
    names = [name for name in re.findall(NAME, subject) if other.isdisjoint({name, name.lower()})]
    person = names[0] if names else None
    if person is None or len(values) != 1:
        return None
    return Claim(person, values.pop(), None, place)


def _with_before(claim: Claim, attribute: Attribute, text: str) -> Claim:
    if claim.before is not None or claim.value is None:
        return claim
    rest = text[claim.place :]
    value = _value(attribute)
    old = re.search(rf"\b(?i:before(?: that)?|previously|formerly|earlier){_FILL}({value})\b", rest)
    return claim._replace(before=old[1]) if old else claim


def _value(attribute: Attribute) -> str:
    return "|".join(map(re.escape, attribute.values)) or NAME


@cache
def _patterns(name: str) -> tuple[re.Pattern[str], ...]:
    """Those that tell a change first: they hold a statement too."""
    attribute = attributes()[name]
    templates = (attribute.change, CORRECTION, RETRACTION, *attribute.says)
    return tuple(template_pattern(each, attribute, person=NAME) for each in templates)


def template_pattern(template: str, attribute: Attribute, *, person: str) -> re.Pattern[str]:
    """What recognises a template that was filled in."""
    value = _value(attribute)
    text = re.escape(template.rstrip(".").replace("{noun}", attribute.noun))
    text = text.replace(r"\ a\ ", r"\ an?\ ")
    for letter, pattern in (("n", person), ("v", value), ("o", value)):
        mark = re.escape(f"{{{letter}}}")
        text = text.replace(mark, rf"(?P<{letter}>{pattern})", 1).replace(mark, rf"(?P={letter})")
    return re.compile(rf"(?<!\w){text}(?!\w)")
