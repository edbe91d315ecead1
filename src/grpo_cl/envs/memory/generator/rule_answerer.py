"""A deterministic answerer for generated questions, by fact extraction."""

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from grpo_cl.envs.memory.generator.attributes import EVENT_TYPES, RELATIONS, EventType, attributes
from grpo_cl.envs.memory.generator.fact_extraction import (
    NAME,
    SENTENCE,
    ExtractedFact,
    extract_facts,
    template_pattern,
)
from grpo_cl.envs.memory.generator.templates import PREVIOUS, WHEN, phrase
from grpo_cl.envs.memory.rewards.answer_grading import UNKNOWN
from grpo_cl.envs.memory.rewards.question_answering import Answer, Context

_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_VIA = re.compile(rf"(?P<person>{NAME})'s (?P<relation>{'|'.join(RELATIONS)})")


class ParsedQuestion(NamedTuple):
    """A generated question as a query."""

    person: str
    attribute: str
    relation: str
    """The relation to ``person`` of the person asked about; empty if it is ``person``."""
    is_previous: bool
    event_type: EventType | None


class _Candidate(NamedTuple):
    fact: ExtractedFact
    entry_id: int | None
    order: tuple[str, int, int]
    """Date, then negative rank, then offset in the text; the largest is the current fact."""

    @property
    def used(self) -> tuple[int, ...]:
        return () if self.entry_id is None else (self.entry_id,)


class RuleAnswerer:
    """Answers with the value in the newest entry, or in the best-ranked one without dates."""

    def answer(self, questions: Sequence[tuple[str, Context]]) -> list[Answer]:
        """The answers, each from its own context only."""
        return [_answer(question, context) for question, context in questions]


def _answer(question: str, context: Context) -> Answer:
    query = parse_question(question)
    if query is None:
        return Answer(UNKNOWN)
    if query.event_type is not None:
        return _event_date(query.person, query.event_type, context)
    if not query.relation:
        return _value(query, context)
    link = max(_candidates(query.person, query.relation, context), key=_order, default=None)
    if link is None or link.fact.value is None:
        return Answer(UNKNOWN)
    direct = query._replace(person=link.fact.value, relation="")
    answer = _value(direct, context)
    canonical = phrase(attributes()[query.attribute].questions[0], n=direct.person)
    follow_up = canonical if answer.text == UNKNOWN else None
    return Answer(answer.text, (*link.used, *(answer.used or ())), follow_up)


def _value(query: ParsedQuestion, context: Context) -> Answer:
    candidates = sorted(_candidates(query.person, query.attribute, context), key=_order)
    if not candidates:
        return Answer(UNKNOWN)
    newest = candidates[-1]
    if query.is_previous:
        return _previous_value(newest, candidates[:-1])
    return Answer(newest.fact.value or UNKNOWN, newest.used)


def _previous_value(newest: _Candidate, older: Sequence[_Candidate]) -> Answer:
    if newest.fact.before is not None:
        return Answer(newest.fact.before, newest.used)
    for candidate in reversed(older):
        is_ordered = bool(candidate.order[0]) or candidate.entry_id == newest.entry_id
        if is_ordered and candidate.fact.value not in {None, newest.fact.value}:
            return Answer(candidate.fact.value or UNKNOWN, (*newest.used, *candidate.used))
    return Answer(UNKNOWN)


def _candidates(person: str, attribute: str, context: Context) -> Iterator[_Candidate]:
    for rank, (entry_id, timestamp, text) in enumerate(_texts(context)):
        for fact in extract_facts(attribute, text):
            if fact.person == person:
                yield _Candidate(fact, entry_id, (timestamp, -rank, fact.offset))


def _order(candidate: _Candidate) -> tuple[str, int, int]:
    return candidate.order


def _texts(context: Context) -> Iterator[tuple[int | None, str, str]]:
    for entry in context.entries:
        yield entry.id, entry.timestamp or "", entry.content
    yield None, "", context.core


def _event_date(person: str, event_type: EventType, context: Context) -> Answer:
    event_object = event_type.past.partition(" ")[2]
    for entry_id, _, text in _texts(context):
        for sentence in SENTENCE.split(text):
            dates = set(_DATE.findall(sentence))
            is_match = re.search(rf"\b{person}\b", sentence) and event_object in sentence
            if is_match and len(dates) == 1:
                return Answer(dates.pop(), () if entry_id is None else (entry_id,))
    return Answer(UNKNOWN)


@lru_cache(maxsize=8192)
def parse_question(text: str) -> ParsedQuestion | None:
    """The query of a generated question; None for any other text."""
    for pattern, attribute, is_previous, event_type in _question_patterns():
        match = pattern.fullmatch(text.rstrip("?"))
        if match:
            via = _VIA.fullmatch(match["n"])
            person, relation = (via["person"], via["relation"]) if via else (match["n"], "")
            return ParsedQuestion(person, attribute, relation, is_previous, event_type)
    return None


@cache
def _question_patterns() -> list[tuple[re.Pattern[str], str, bool, EventType | None]]:
    person = rf"{NAME}(?:'s (?:{'|'.join(RELATIONS)}))?"
    patterns: list[tuple[re.Pattern[str], str, bool, EventType | None]] = []
    for name, attribute in attributes().items():
        templates = [(template, False) for template in attribute.questions]
        for template, is_previous in [*templates, (PREVIOUS, True)]:
            pattern = template_pattern(template.rstrip("?"), attribute, person=person)
            patterns.append((pattern, name, is_previous, None))
    for event_type in EVENT_TYPES:
        template = WHEN.replace("{ask}", event_type.infinitive).rstrip("?")
        pattern = template_pattern(template, attributes()["city"], person=NAME)
        patterns.append((pattern, "", False, event_type))
    return patterns
