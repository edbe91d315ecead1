"""Varied texts of a task: the requests of a customer in prose, in one of several layouts.

The user's instructions and the ticket are drawn independently from the same facts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from grpo_cl.envs.generation import prose
from grpo_cl.envs.generation.persons import (
    CUSTOMER,
    FIRST,
    KEEP,
    SECOND,
    THIRD,
    Person,
    capitalized,
    contracted,
    in_person,
)
from grpo_cl.envs.generation.requests import Question, Request
from grpo_cl.envs.generation.tasks import TaskSpec
from grpo_cl.envs.generation.wording import TaskTexts

DETAIL = " | "
"""Separates a request from its details in a phrasing."""
FALLBACK_SHARE = 0.2
"""Share of the requests that say what to do if they cannot be fulfilled, though they can."""
CONTRACTED_SHARE = 0.4
"""Share of the tickets with short forms of speech."""
MAX_JOINED = 220
"""Most characters of two requests in one sentence."""

_AGENT_VERB = re.compile(r"\b[Tt]he agent (\w+)s\b")
_AGENT = re.compile(r"\b[Tt]he agent\b")

_ARTICLE = re.compile(r"\ba(?= [aeiou])")

Phrasings = Mapping[str, Sequence[str]]
"""Phrasings of a statement by the first of its plain templates."""


class RequestClauses(NamedTuple):
    """The clauses of one request, as templates over the placeholders of persons."""

    clause: str
    """The text after 'You want to'."""
    details: Sequence[str]
    """Clauses that may follow later."""
    question: str
    """What the customer asks."""
    needs_fallback: bool
    """Whether the text must say what to do if it cannot be fulfilled."""
    has_fallback: bool = False
    """Whether the clause says so already."""
    asks_amount: bool = True
    """Whether ``question`` names an amount: 'the exact refund', not 'the phone number'."""


class TextFacts(NamedTuple):
    """The facts of a task's texts."""

    name: str
    label: str
    """What identifies the customer besides the name: 'email'."""
    value: str
    requests: Sequence[RequestClauses]
    notes: Sequence[str]
    """Further sentences about who the customer is."""
    unknown: Sequence[str]
    """Sentences on what the customer does not know."""
    level: float
    """Difficulty; harder tasks have more remarks."""
    remarks: Sequence[str] = ()
    """Sentences that need no action."""
    home: str = ""
    """Where the customer lives, if ``value`` is a zip code."""


class Background(NamedTuple):
    """Sentences of one domain that need no action."""

    openings: Sequence[str]
    """Before the first request."""
    asides: Sequence[str]


class _Body(NamedTuple):
    request: list[str]
    later: list[str]
    """Sentences that may follow the requests."""


def write_varied_texts(
    draw: Callable[[Random], TextFacts], background: Background, rng: Random
) -> TaskTexts:
    """Instructions in the second person, and a ticket in one of the layouts.

    ``draw`` phrases the requests; it is called for the instructions and for the ticket.
    """
    facts = draw(rng)
    body = _write_body(facts, background, rng)
    manner = [*body.later, *_manner(facts, background, rng)]
    return TaskTexts(
        reason_for_call=_text(body.request, SECOND),
        known_info=_text(_identify(facts, rng), SECOND),
        unknown_info=_text(facts.unknown, SECOND) or None,
        task_instructions=_text(manner, SECOND),
        ticket=_ticket(draw(rng), background, rng),
    )


def phrase_request(
    request: Request, question: Question | None, phrasings: Phrasings, rng: Random
) -> RequestClauses:
    """The request in one of its phrasings; ``question`` is part of its own request."""
    statements = request.wording.statements
    parts: list[str] = []
    for statement in statements:
        options = phrasings.get(statement.templates[0], statement.templates)
        if len(statements) > 1:  # the statements after it belong to the same sentence
            options = [option for option in options if DETAIL not in option] or options
        phrased = rng.choice(options).format(**statement.facts, **KEEP)
        parts.append(f"{statement.separator}{phrased}")
    # The words of a fact may end in a comma, for the middle of a sentence.
    clause, *details = (part.rstrip(" ,") for part in "".join(parts).split(DETAIL))
    is_asked = question is not None and any(question is own for own in request.questions)
    return RequestClauses(
        clause,
        details,
        question.subject if question and is_asked else "",
        needs_fallback=not request.writes and not request.has_fallback,
        has_fallback=request.has_fallback,
        asks_amount=question is not None and _names_amount(question),
    )


def _names_amount(question: Question) -> bool:
    is_number = question.answer.replace(".", "").isdigit()
    return is_number and question.subject.startswith("the ")


def asked_question(requests: Sequence[Request], spec: TaskSpec) -> Question | None:
    """The question of the task, which the plain texts drew."""
    questions = [question for request in requests for question in request.questions]
    return next((one for one in questions if one.answer in spec.communicate_info), None)


def draw_unknown(spec: TaskSpec, sentences: Mapping[str, Sequence[str]], rng: Random) -> list[str]:
    """What the customer does not know: a sentence for each subject that the plain text names."""
    plain = spec.unknown_info or ""
    return [rng.choice(options) for subject, options in sentences.items() if subject in plain]


# Sentences, as templates over the placeholders of persons.


def _write_body(facts: TextFacts, background: Background, rng: Random) -> _Body:
    body = _Body([], [])
    if rng.random() < 0.35:
        body.request.append(rng.choice(background.openings))
    requests = facts.requests
    is_single = len(requests) == 1
    if _can_be_joined(requests) and rng.random() < 0.4:
        first, second = (one.clause for one in requests)
        link = rng.choice((", and {you} also want to ", ", and also to ", ", and then to "))
        body.request.append(_frame(rng, prose.FIRST_FRAMES, f"{first}{link}{second}"))
        return body
    is_counted = not is_single and rng.random() < 0.15
    if is_counted:
        count = prose.COUNTS[len(requests)]
        body.request.append(rng.choice(prose.COUNTED).format(count=count, **KEEP))
    for index, one in enumerate(requests):
        frames = _frames(index, len(requests), is_counted=is_counted, rng=rng)
        _add_request(one, frames, body, is_single=is_single, rng=rng)
    return body


def _can_be_joined(requests: Sequence[RequestClauses]) -> bool:
    return (
        len(requests) == 2
        and sum(len(one.clause) for one in requests) < MAX_JOINED
        and not any(
            one.details or one.question or one.needs_fallback or one.has_fallback
            for one in requests
        )
    )


def _frames(index: int, count: int, *, is_counted: bool, rng: Random) -> Sequence[str]:
    if is_counted and index < 4 and rng.random() < 0.8:
        order = ("First", "Second", "Third", "Fourth")[index]
        return (f"{order}, {{you}} want to {{clause}}", f"{order}, {{you}} need to {{clause}}")
    if index == 0:
        return prose.FIRST_FRAMES
    is_last = index == count - 1 and rng.random() < 0.4
    return prose.LAST_FRAMES if is_last else prose.NEXT_FRAMES


def _frame(rng: Random, frames: Sequence[str], clause: str) -> str:
    return rng.choice(frames).replace("{clause}", clause)


def _add_request(
    one: RequestClauses, frames: Sequence[str], body: _Body, *, is_single: bool, rng: Random
) -> None:
    """Add the sentences of a request; the details of a single request may come later."""
    sentences = [_frame(rng, frames, one.clause)]
    for detail in one.details:
        if is_single and rng.random() < 0.3:
            body.later.append(_frame_detail(rng, detail))
        else:
            _append(sentences, rng.choice(prose.DETAIL_SEPARATORS) + detail)
    if one.question:
        asked = rng.choice(prose.QUESTIONS if rng.random() < 0.6 else prose.MERGED_QUESTIONS)
        if not one.asks_amount and asked in prose.AMOUNT_QUESTIONS:
            asked = prose.QUESTIONS[0]
        _append(sentences, asked.replace("{subject}", one.question))
    if one.needs_fallback or (not one.has_fallback and rng.random() < FALLBACK_SHARE):
        fallbacks = prose.FALLBACKS if rng.random() < 0.7 else prose.MERGED_FALLBACKS
        _append(sentences, rng.choice(fallbacks))
    body.request.extend(sentences)


def _append(sentences: list[str], text: str) -> None:
    """Add a sentence, or extend the last one by a text that begins in the middle of a sentence."""
    if text.startswith(". "):
        sentences.append(text[2:])
    elif text[0] in "; ,-":
        sentences[-1] += text
    else:
        sentences.append(text)


def _frame_detail(rng: Random, detail: str) -> str:
    return rng.choice(prose.LATE_DETAILS).replace("{detail}", detail)


def _manner(facts: TextFacts, background: Background, rng: Random) -> list[str]:
    sentences: list[str] = []
    if rng.random() < 0.75:
        sentences.append(_persona(rng))
    if rng.random() < 0.5:
        sentences.append(rng.choice(prose.HABITS))
    if rng.random() < 0.6:
        sentences.append(rng.choice(prose.CONFIRMATIONS))
    sentences += _remarks(facts, background, rng)
    rng.shuffle(sentences)
    return sentences or [rng.choice(prose.CONFIRMATIONS)]


def _persona(rng: Random) -> str:
    first = rng.choice(prose.TRAITS)
    others = [trait for trait in (*prose.TRAITS, *prose.MORE_TRAITS) if trait != first]
    second, third = rng.sample(others, 2)
    persona = rng.choice(prose.PERSONAS).format(first=first, second=second, third=third, **KEEP)
    return _ARTICLE.sub("an", persona)


def _remarks(facts: TextFacts, background: Background, rng: Random) -> list[str]:
    aside = rng.random() < 0.15 + 0.5 * facts.level
    return [*facts.remarks, *([rng.choice(background.asides)] if aside else [])]


def _identify(facts: TextFacts, rng: Random) -> list[str]:
    has_home = facts.home and rng.random() < 0.4
    templates = prose.HOME_IDENTITIES if has_home else prose.IDENTITIES
    sentences = rng.choice(templates).split(prose.NEXT_SENTENCE)
    return [*(_fill_identity(sentence, facts) for sentence in sentences), *facts.notes]


def _fill_identity(template: str, facts: TextFacts) -> str:
    words = facts._asdict()
    return template.format(**words, Label=capitalized(facts.label), **KEEP)


def _text(templates: Sequence[str], person: Person) -> str:
    return " ".join(in_person(template, person) for template in templates)


# The ticket, in one of several layouts.


def _ticket(facts: TextFacts, background: Background, rng: Random) -> str:
    layout = rng.choices(list(_LAYOUTS), list(_LAYOUTS.values()))[0]
    text = layout(facts, background, rng)
    return contracted(text) if rng.random() < CONTRACTED_SHARE else text


def _report(templates: Sequence[str], rng: Random) -> str:
    """The sentences in the third person; the first names the customer, and so do some others."""
    return " ".join(
        in_person(template, CUSTOMER if index == 0 or rng.random() < 0.15 else THIRD)
        for index, template in enumerate(templates)
    )


def _sections(facts: TextFacts, background: Background, rng: Random) -> str:
    """The layout of the tickets that are made from a scenario."""
    body = _write_body(facts, background, rng)
    manner = [*body.later, *_manner(facts, background, rng)]
    parts = [
        _report(_identify(facts, rng), rng),
        f"Request: {_report(body.request, rng)}",
        *([f"Not known to the customer: {_report(facts.unknown, rng)}"] if facts.unknown else []),
        f"How the customer decides: {_report(manner, rng)}",
    ]
    return "\n\n".join(parts)


def _paragraph(facts: TextFacts, background: Background, rng: Random) -> str:
    """A report by an agent; the customer is identified before or after the requests."""
    body = _write_body(facts, background, rng)
    ending = [*body.later, *_remarks(facts, background, rng), rng.choice(prose.CONSENTS_OF_TICKETS)]
    sentences = [*body.request, *ending]
    if rng.random() < 0.4:
        late = _fill_identity(rng.choice(prose.LATE_IDENTITIES), facts)
        return f"{_report(sentences, rng)} {_report([late, *facts.notes], rng)}"
    if rng.random() < 0.5:
        fields = _fill_identity(rng.choice(prose.FIELDS), facts)
        return f"{_report([fields, *facts.notes], rng)} {_report(sentences, rng)}"
    return _report([*_identify(facts, rng), *sentences], rng)


def _letter(facts: TextFacts, background: Background, rng: Random) -> str:
    """A message in the customer's own words, with a signature or an introduction."""
    body = _first_person(facts, background, rng)
    greeting, notes = rng.choice(prose.GREETINGS), _text(facts.notes, FIRST)
    if rng.random() < 0.5:
        identity = _fill_identity(rng.choice(prose.LETTER_IDENTITIES), facts)
        is_sentence = not greeting.endswith(",")
        opening = capitalized(identity) if is_sentence else identity
        return " ".join(filter(None, (greeting, opening, notes, body)))
    signature = _fill_identity(rng.choice(prose.SIGNATURES), facts)
    opening = greeting.rstrip(",") + "." if greeting.endswith(",") else greeting
    return " ".join(filter(None, (opening, body, notes, signature)))


def _quotation(facts: TextFacts, background: Background, rng: Random) -> str:
    """A report that quotes the customer."""
    opening = _fill_identity(rng.choice(prose.QUOTE_OPENINGS), facts)
    notes = _text(facts.notes, FIRST)
    body = _first_person(facts, background, rng)
    return f'{opening} "{" ".join(filter(None, (notes, body)))}"'


def _first_person(facts: TextFacts, background: Background, rng: Random) -> str:
    body = _write_body(facts, background, rng)
    remarks = _remarks(facts, background, rng)
    if rng.random() < 0.5:
        remarks.insert(0, rng.choice(prose.CONSENTS_OF_LETTERS))
    sentences = _text([*body.request, *body.later, *remarks], FIRST)
    return _AGENT.sub("you", _AGENT_VERB.sub(r"you \1", sentences))


_LAYOUTS: Mapping[Callable[[TextFacts, Background, Random], str], int] = {
    _sections: 50,
    _paragraph: 28,
    _letter: 14,
    _quotation: 8,
}
"""Layouts with their weights."""
