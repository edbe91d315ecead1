"""An answerer for generated instances: no model, no chance, and it believes what it reads."""

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from grpo_cl.memory.answerers import UNKNOWN, Answer, Context
from grpo_cl.memory.generator.attributes import HAPPENINGS, RELATIONS, Happening, attributes
from grpo_cl.memory.generator.claims import NAME, SENTENCE, Claim, claims, template_pattern
from grpo_cl.memory.generator.wording import PREVIOUS, WHEN, phrase

_DAY = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_VIA = re.compile(rf"(?P<person>{NAME})'s (?P<relation>{'|'.join(RELATIONS)})")


class Query(NamedTuple):
    """A question as far as it is understood."""

    person: str
    attribute: str = ""
    relation: str = ""
    """What the one asked about is to ``person``; empty if it is the person."""
    is_previous: bool = False
    happening: Happening | None = None


class _Found(NamedTuple):
    claim: Claim
    entry_id: int | None
    order: tuple[str, int, int]
    """The newest date, then the best rank, then the last in the text."""

    @property
    def used(self) -> tuple[int, ...]:
        return () if self.entry_id is None else (self.entry_id,)


class LexiconReader:
    """Finds the value that the newest entry claims; the first one found, if none has a date."""

    def answer(self, asked: Sequence[tuple[str, Context]]) -> list[Answer]:
        """The answers, each from its own context alone."""
        return [_answer(question, context) for question, context in asked]


def _answer(question: str, context: Context) -> Answer:
    query = read_question(question)
    if query is None:
        return Answer(UNKNOWN)
    if query.happening is not None:
        return _day(query.person, query.happening, context)
    if not query.relation:
        return _value(query, context)
    link = max(_find(query.person, query.relation, context), key=_order, default=None)
    if link is None or link.claim.value is None:
        return Answer(UNKNOWN)
    direct = query._replace(person=link.claim.value, relation="")
    answer = _value(direct, context)
    plain = phrase(attributes()[query.attribute].asks[0], n=direct.person)
    follow_up = plain if answer.text == UNKNOWN else None
    return Answer(answer.text, (*link.used, *(answer.used or ())), follow_up)


def _value(query: Query, context: Context) -> Answer:
    found = sorted(_find(query.person, query.attribute, context), key=_order)
    if not found:
        return Answer(UNKNOWN)
    newest = found[-1]
    if query.is_previous:
        return _previous(newest, found[:-1])
    return Answer(newest.claim.value or UNKNOWN, newest.used)


def _previous(newest: _Found, older: Sequence[_Found]) -> Answer:
    if newest.claim.before is not None:
        return Answer(newest.claim.before, newest.used)
    for found in reversed(older):
        is_ordered = bool(found.order[0]) or found.entry_id == newest.entry_id
        if is_ordered and found.claim.value not in {None, newest.claim.value}:
            return Answer(found.claim.value or UNKNOWN, (*newest.used, *found.used))
    return Answer(UNKNOWN)


def _find(person: str, attribute: str, context: Context) -> Iterator[_Found]:
    for rank, (entry_id, timestamp, text) in enumerate(_texts(context)):
        for claim in claims(attribute, text):
            if claim.person == person:
                yield _Found(claim, entry_id, (timestamp, -rank, claim.place))


def _order(found: _Found) -> tuple[str, int, int]:
    return found.order


def _texts(context: Context) -> Iterator[tuple[int | None, str, str]]:
    for entry in context.entries:
        yield entry.id, entry.timestamp or "", entry.content
    yield None, "", context.core


def _day(person: str, happening: Happening, context: Context) -> Answer:
    what = happening.past.partition(" ")[2]
    for entry_id, _, text in _texts(context):
        for sentence in SENTENCE.split(text):
            days = set(_DAY.findall(sentence))
            is_it = re.search(rf"\b{person}\b", sentence) and what in sentence
            if is_it and len(days) == 1:
                return Answer(days.pop(), () if entry_id is None else (entry_id,))
    return Answer(UNKNOWN)


@lru_cache(maxsize=8192)
def read_question(text: str) -> Query | None:
    """What a generated question asks for; None for any other."""
    for pattern, attribute, is_previous, happening in _asked():
        match = pattern.fullmatch(text.rstrip("?"))
        if match:
            via = _VIA.fullmatch(match["n"])
            person, relation = (via["person"], via["relation"]) if via else (match["n"], "")
            return Query(person, attribute, relation, is_previous, happening)
    return None


@cache
def _asked() -> list[tuple[re.Pattern[str], str, bool, Happening | None]]:
    who = rf"{NAME}(?:'s (?:{'|'.join(RELATIONS)}))?"
    found: list[tuple[re.Pattern[str], str, bool, Happening | None]] = []
    for name, attribute in attributes().items():
        ways = [(template, False) for template in attribute.asks]
        for template, is_previous in [*ways, (PREVIOUS, True)]:
            pattern = template_pattern(template.rstrip("?"), attribute, person=who)
            found.append((pattern, name, is_previous, None))
    for happening in HAPPENINGS:
        template = WHEN.replace("{ask}", happening.ask).rstrip("?")
        pattern = template_pattern(template, attributes()["city"], person=NAME)
        found.append((pattern, "", False, happening))
    return found
