"""Texts and gold calls of a task, written from the requests of a customer."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.envs.generation.requests import Call, Case, Question, Request
from grpo_cl.envs.generation.wording import (
    SECOND_PERSON,
    THIRD_PERSON,
    Wording,
    draw_wording,
    fill_pronouns,
)

FALLBACK_SHARE = 0.3
"""Share of allowed requests at difficulty 1 that say what to do if they cannot be fulfilled."""


class Phrases(NamedTuple):
    """Sentence templates of one domain."""

    first_openings: Sequence[str]
    next_openings: Sequence[str]
    fallbacks: Sequence[str]
    questions: Sequence[str]
    """Templates over ``{subject}``."""
    confirmations: Sequence[str]
    personas: Sequence[str]
    asides: Sequence[str]
    ticket_openings: Sequence[str]
    """Templates over ``{name}`` and ``{identity}``."""


def purpose_of(requests: Sequence[Request]) -> str:
    """The purposes of all requests, with the forbidden ones marked."""
    return "; ".join(
        request.purpose if request.writes else f"refused: {request.purpose}" for request in requests
    )


def draw_question(case: Case, requests: Sequence[Request], share: float) -> Question | None:
    """The question that the customer asks, in a ``share`` of the tasks at difficulty 1."""
    if not case.chance(share):
        return None
    questions = [question for request in requests for question in request.questions]
    return case.rng.choice(questions) if questions else None


def request_sentences(
    case: Case, requests: Sequence[Request], phrases: Phrases, question: Question | None
) -> list[Wording]:
    """One sentence per request; ``question`` is part of the sentence of its request."""
    sentences: list[Wording] = []
    for request in requests:
        body = request_body(case, request, phrases, question)
        opening = draw_opening(case, phrases, is_first=not sentences)
        sentences.append(full_sentence(opening, body))
    return sentences


def request_body(
    case: Case, request: Request, phrases: Phrases, question: Question | None
) -> Wording:
    """The request with its question and with what to do if it cannot be fulfilled."""
    text = request.wording
    if question is not None and any(question is own for own in request.questions):
        text = text.then(draw_wording(case.rng, phrases.questions, subject=question.subject), ", ")
    if not request.has_fallback and (not request.writes or case.chance(FALLBACK_SHARE)):
        text = text.then(draw_wording(case.rng, phrases.fallbacks), "; ")
    return text


def draw_opening(case: Case, phrases: Phrases, *, is_first: bool) -> Wording:
    """The beginning of a sentence, up to the request."""
    templates = phrases.first_openings if is_first else phrases.next_openings
    return draw_wording(case.rng, templates)


def full_sentence(opening: Wording, body: Wording) -> Wording:
    """Opening and body as a sentence with a full stop."""
    text = opening.then(body, " ")
    return Wording(f"{text.asked}.", f"{text.filed}.")


def reason_for_call(sentences: Sequence[Wording]) -> str:
    """The sentences in the second person, for the user's instructions."""
    return " ".join(fill_pronouns(sentence.asked, SECOND_PERSON) for sentence in sentences)


def ticket_text(head: Sequence[str], sentences: Sequence[Wording]) -> str:
    """The sentences in the third person, after the sentences that identify the customer."""
    filed = (fill_pronouns(sentence.filed, THIRD_PERSON) for sentence in sentences)
    return " ".join([*head, *filed])


def manner_sentences(case: Case, phrases: Phrases) -> list[str]:
    """How the customer behaves; harder tasks add a persona and an irrelevant remark."""
    sentences = [case.rng.choice(phrases.confirmations)]
    if case.rng.random() < 0.2 + 0.8 * case.level:
        sentences.insert(0, case.rng.choice(phrases.personas))
    if case.omits_detail():
        sentences.append(case.rng.choice(phrases.asides))
    return sentences


def request_calls(
    first_calls: Sequence[Call], requests: Sequence[Request], question: Question | None
) -> list[Call]:
    """``first_calls`` and then the calls of the requests, without repeated reads."""
    calls = list(first_calls)
    for request in requests:
        is_asked = question is not None and question in request.questions
        reads = [*request.reads, *(question.reads if question and is_asked else ())]
        calls += [call for index, call in enumerate(reads) if call not in (*calls, *reads[:index])]
        calls += request.writes
    return calls
