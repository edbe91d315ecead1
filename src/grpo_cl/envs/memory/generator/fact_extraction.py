"""Fact extraction: the values a text states for an attribute, by template and by cue words."""

import re
from functools import cache, lru_cache
from typing import NamedTuple

from grpo_cl.envs.memory.generator.attributes import RELATIONS, Attribute, attributes
from grpo_cl.envs.memory.generator.templates import CORRECTION, RETRACTION
from grpo_cl.envs.memory.retrieval.tokenizer import STOP_WORDS

NAME = r"[A-Z][a-z]+(?: [A-Z][a-z]+)?"
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")

_PREVIOUS_MARKERS = (
    r"(?:instead of|no longer(?: as)?|not(?: to| as)?|(?:changed|reset) from|used to be|"
    r"before(?: that)?|previously|formerly|earlier|was)"
)
_FILLER = r"[:,]?\s+(?:(?:a|an|the|to|as|in|on|by|project)\s+)?"


class ExtractedFact(NamedTuple):
    """A value that a text states for a person."""

    person: str
    value: str | None
    """None for a retraction."""
    before: str | None
    """The previous value, if stated."""
    offset: int
    """The position in the text; later facts override earlier ones."""


@lru_cache(maxsize=65536)  # the episodes of a group write and read many identical texts
def extract_facts(name: str, text: str) -> tuple[ExtractedFact, ...]:
    """The facts in ``text`` about the attribute called ``name``."""
    attribute = attributes()[name]
    lowered = text.lower()
    if not any(word in lowered for word in (*attribute.cues, attribute.noun)):
        return ()
    facts: list[ExtractedFact] = []
    covered: list[tuple[int, int]] = []
    for pattern in _patterns(name):
        for match in pattern.finditer(text):
            start, end = match.span()
            if any(start < last and first < end for first, last in covered):
                continue
            covered.append((start, end))
            groups = match.groupdict()
            facts.append(ExtractedFact(groups["n"], groups.get("v"), groups.get("o"), start))
    facts = facts or _facts_by_cue(attribute, text)
    return tuple(_with_before(fact, attribute, text) for fact in facts)


def _facts_by_cue(attribute: Attribute, text: str) -> list[ExtractedFact]:
    """Facts in sentences that match no template: a person, a cue word and one current value."""
    facts: list[ExtractedFact] = []
    offset = 0
    for sentence in SENTENCE.split(text):
        fact = _fact_by_cue(attribute, sentence, offset)
        facts += [fact] if fact else []
        offset += len(sentence) + 1
    return facts


def _fact_by_cue(attribute: Attribute, sentence: str, offset: int) -> ExtractedFact | None:
    words = set(re.findall(r"\w+", sentence.lower()))
    if not attribute.values or words.isdisjoint(attribute.cues):
        return None
    value = _value_pattern(attribute)
    previous = rf"\b{_PREVIOUS_MARKERS}{_FILLER}(?:{value})\b"
    current = re.sub(previous, " ", sentence, flags=re.IGNORECASE)
    values = set(re.findall(rf"\b(?:{value})\b", current))
    subject = re.sub(rf"\b{NAME}'s (?:{'|'.join(RELATIONS)})\b", " ", current)
    other = {*values, *attribute.cues, *attribute.noun.split(), *STOP_WORDS}
    names = [name for name in re.findall(NAME, subject) if other.isdisjoint({name, name.lower()})]
    person = names[0] if names else None
    if person is None or len(values) != 1:
        return None
    return ExtractedFact(person, values.pop(), None, offset)


def _with_before(fact: ExtractedFact, attribute: Attribute, text: str) -> ExtractedFact:
    if fact.before is not None or fact.value is None:
        return fact
    rest = text[fact.offset :]
    value = _value_pattern(attribute)
    marker = r"(?i:before(?: that)?|previously|formerly|earlier)"
    previous = re.search(rf"\b{marker}{_FILLER}({value})\b", rest)
    return fact._replace(before=previous[1]) if previous else fact


def _value_pattern(attribute: Attribute) -> str:
    return "|".join(map(re.escape, attribute.values)) or NAME


@cache
def _patterns(name: str) -> tuple[re.Pattern[str], ...]:
    """Patterns of changes first, since a change contains a statement."""
    attribute = attributes()[name]
    templates = (attribute.change, CORRECTION, RETRACTION, *attribute.statements)
    return tuple(template_pattern(template, attribute, person=NAME) for template in templates)


def template_pattern(template: str, attribute: Attribute, *, person: str) -> re.Pattern[str]:
    """A pattern for the filled template."""
    value = _value_pattern(attribute)
    text = re.escape(template.rstrip(".").replace("{noun}", attribute.noun))
    text = text.replace(r"\ a\ ", r"\ an?\ ")
    for letter, pattern in (("n", person), ("v", value), ("o", value)):
        slot = re.escape(f"{{{letter}}}")
        text = text.replace(slot, rf"(?P<{letter}>{pattern})", 1).replace(slot, rf"(?P={letter})")
    return re.compile(rf"(?<!\w){text}(?!\w)")
