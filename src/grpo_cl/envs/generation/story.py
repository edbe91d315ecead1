"""Varied texts of a task: requests of a customer told as a story, in one of several layouts.

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
"""Characters of two requests that are told in one sentence."""

_AGENT_VERB = re.compile(r"\b[Tt]he agent (\w+)s\b")
_AGENT = re.compile(r"\b[Tt]he agent\b")

_ARTICLE = re.compile(r"\ba(?= [aeiou])")

Phrasings = Mapping[str, Sequence[str]]
"""Phrasings of a statement by the first of its plain templates."""


class Wish(NamedTuple):
    """One request before it is told; its texts are templates over the placeholders of persons."""

    clause: str
    """The text after 'You want to'."""
    details: Sequence[str]
    """Clauses that can be told later."""
    question: str
    """What the customer wants to be told."""
    needs_fallback: bool
    """Whether the text must say what to do if it cannot be fulfilled."""
    has_fallback: bool = False
    """Whether the clause says so already."""


class Story(NamedTuple):
    """The facts of a task's texts."""

    name: str
    label: str
    """What identifies the customer besides the name: 'email'."""
    value: str
    wishes: Sequence[Wish]
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
    """Told before the first request."""
    asides: Sequence[str]


class _Plot(NamedTuple):
    request: list[str]
    later: list[str]


def tell_story(draw: Callable[[Random], Story], background: Background, rng: Random) -> TaskTexts:
    """Instructions in the second person, and a ticket in one of the layouts.

    ``draw`` phrases the requests; it is called for the instructions and for the ticket.
    """
    story = draw(rng)
    plot = _plot(story, background, rng)
    manner = [*plot.later, *_manner(story, background, rng)]
    return TaskTexts(
        reason_for_call=_text(plot.request, SECOND),
        known_info=_text(_identify(story, rng), SECOND),
        unknown_info=_text(story.unknown, SECOND) or None,
        task_instructions=_text(manner, SECOND),
        ticket=_ticket(draw(rng), background, rng),
    )


def phrase_request(
    request: Request, question: Question | None, phrasings: Phrasings, rng: Random
) -> Wish:
    """The request in one of its phrasings; ``question`` is told with the request it belongs to."""
    statements = request.wording.statements
    parts: list[str] = []
    for statement in statements:
        options = phrasings.get(statement.templates[0], statement.templates)
        if len(statements) > 1:  # the statements after it belong to the same sentence
            options = [option for option in options if DETAIL not in option] or options
        told = rng.choice(options).format(**statement.facts, **KEEP)
        parts.append(f"{statement.separator}{told}")
    # The words of a fact may end in a comma, for the middle of a sentence.
    clause, *details = (part.rstrip(" ,") for part in "".join(parts).split(DETAIL))
    is_asked = question is not None and any(question is own for own in request.questions)
    return Wish(
        clause,
        details,
        question.subject if question and is_asked else "",
        needs_fallback=not request.writes and not request.has_fallback,
        has_fallback=request.has_fallback,
    )


def asked_question(requests: Sequence[Request], spec: TaskSpec) -> Question | None:
    """The question of the task, which the plain texts drew."""
    questions = [question for request in requests for question in request.questions]
    return next((one for one in questions if one.answer in spec.communicate_info), None)


def draw_unknown(spec: TaskSpec, sentences: Mapping[str, Sequence[str]], rng: Random) -> list[str]:
    """What the customer does not know: a sentence for each subject that the plain text names."""
    plain = spec.unknown_info or ""
    return [rng.choice(options) for subject, options in sentences.items() if subject in plain]


# The story, in templates over the placeholders of persons.


def _plot(story: Story, background: Background, rng: Random) -> _Plot:
    plot = _Plot([], [])
    if rng.random() < 0.35:
        plot.request.append(rng.choice(background.openings))
    wishes = story.wishes
    is_single = len(wishes) == 1
    if _can_be_joined(wishes) and rng.random() < 0.4:
        first, second = (one.clause for one in wishes)
        link = rng.choice((", and {you} also want to ", ", and also to ", ", and then to "))
        plot.request.append(_frame(rng, prose.FIRST_FRAMES, f"{first}{link}{second}"))
        return plot
    is_counted = not is_single and rng.random() < 0.15
    if is_counted:
        count = prose.COUNTS[len(wishes)]
        plot.request.append(rng.choice(prose.COUNTED).format(count=count, **KEEP))
    for index, one in enumerate(wishes):
        frames = _frames(index, len(wishes), is_counted=is_counted, rng=rng)
        _tell(one, frames, plot, is_single=is_single, rng=rng)
    return plot


def _can_be_joined(wishes: Sequence[Wish]) -> bool:
    return (
        len(wishes) == 2
        and sum(len(one.clause) for one in wishes) < MAX_JOINED
        and not any(
            one.details or one.question or one.needs_fallback or one.has_fallback for one in wishes
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


def _tell(one: Wish, frames: Sequence[str], plot: _Plot, *, is_single: bool, rng: Random) -> None:
    """Add a request to the plot; the details of a single request may come late."""
    sentences = [_frame(rng, frames, one.clause)]
    for detail in one.details:
        if is_single and rng.random() < 0.3:
            plot.later.append(_frame_detail(rng, detail))
        else:
            _append(sentences, rng.choice(prose.DETAIL_SEPARATORS) + detail)
    if one.question:
        asked = rng.choice(prose.QUESTIONS if rng.random() < 0.6 else prose.MERGED_QUESTIONS)
        _append(sentences, asked.replace("{subject}", one.question))
    if one.needs_fallback or (not one.has_fallback and rng.random() < FALLBACK_SHARE):
        fallbacks = prose.FALLBACKS if rng.random() < 0.7 else prose.MERGED_FALLBACKS
        _append(sentences, rng.choice(fallbacks))
    plot.request.extend(sentences)


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


def _manner(story: Story, background: Background, rng: Random) -> list[str]:
    sentences: list[str] = []
    if rng.random() < 0.75:
        sentences.append(_persona(rng))
    if rng.random() < 0.5:
        sentences.append(rng.choice(prose.HABITS))
    if rng.random() < 0.6:
        sentences.append(rng.choice(prose.CONFIRMATIONS))
    sentences += _remarks(story, background, rng)
    rng.shuffle(sentences)
    return sentences or [rng.choice(prose.CONFIRMATIONS)]


def _persona(rng: Random) -> str:
    first = rng.choice(prose.TRAITS)
    others = [trait for trait in (*prose.TRAITS, *prose.MORE_TRAITS) if trait != first]
    second, third = rng.sample(others, 2)
    persona = rng.choice(prose.PERSONAS).format(first=first, second=second, third=third, **KEEP)
    return _ARTICLE.sub("an", persona)


def _remarks(story: Story, background: Background, rng: Random) -> list[str]:
    aside = rng.random() < 0.15 + 0.5 * story.level
    return [*story.remarks, *([rng.choice(background.asides)] if aside else [])]


def _identify(story: Story, rng: Random) -> list[str]:
    has_home = story.home and rng.random() < 0.4
    templates = prose.HOME_IDENTITIES if has_home else prose.IDENTITIES
    sentences = rng.choice(templates).split(prose.NEXT_SENTENCE)
    return [*(_fill_identity(sentence, story) for sentence in sentences), *story.notes]


def _fill_identity(template: str, story: Story) -> str:
    words = story._asdict()
    return template.format(**words, Label=capitalized(story.label), **KEEP)


def _text(templates: Sequence[str], person: Person) -> str:
    return " ".join(in_person(template, person) for template in templates)


# The ticket, in one of several layouts.


def _ticket(story: Story, background: Background, rng: Random) -> str:
    layout = rng.choices(list(_LAYOUTS), list(_LAYOUTS.values()))[0]
    text = layout(story, background, rng)
    return contracted(text) if rng.random() < CONTRACTED_SHARE else text


def _report(templates: Sequence[str], rng: Random) -> str:
    """The sentences in the third person; the first names the customer, and so do some others."""
    return " ".join(
        in_person(template, CUSTOMER if index == 0 or rng.random() < 0.15 else THIRD)
        for index, template in enumerate(templates)
    )


def _sections(story: Story, background: Background, rng: Random) -> str:
    """The layout of the tickets that are made from a scenario."""
    plot = _plot(story, background, rng)
    manner = [*plot.later, *_manner(story, background, rng)]
    parts = [
        _report(_identify(story, rng), rng),
        f"Request: {_report(plot.request, rng)}",
        *([f"Not known to the customer: {_report(story.unknown, rng)}"] if story.unknown else []),
        f"How the customer decides: {_report(manner, rng)}",
    ]
    return "\n\n".join(parts)


def _paragraph(story: Story, background: Background, rng: Random) -> str:
    """A report by an agent; the customer is identified before or after the requests."""
    plot = _plot(story, background, rng)
    ending = [*plot.later, *_remarks(story, background, rng), rng.choice(prose.CONSENTS_OF_TICKETS)]
    told = [*plot.request, *ending]
    if rng.random() < 0.4:
        late = _fill_identity(rng.choice(prose.LATE_IDENTITIES), story)
        return f"{_report(told, rng)} {_report([late, *story.notes], rng)}"
    if rng.random() < 0.5:
        fields = _fill_identity(rng.choice(prose.FIELDS), story)
        return f"{_report([fields, *story.notes], rng)} {_report(told, rng)}"
    return _report([*_identify(story, rng), *told], rng)


def _letter(story: Story, background: Background, rng: Random) -> str:
    """A message in the customer's own words, with a signature or an introduction."""
    body = _first_person(story, background, rng)
    greeting, notes = rng.choice(prose.GREETINGS), _text(story.notes, FIRST)
    if rng.random() < 0.5:
        identity = _fill_identity(rng.choice(prose.LETTER_IDENTITIES), story)
        is_sentence = not greeting.endswith(",")
        opening = capitalized(identity) if is_sentence else identity
        return " ".join(filter(None, (greeting, opening, notes, body)))
    signature = _fill_identity(rng.choice(prose.SIGNATURES), story)
    opening = greeting.rstrip(",") + "." if greeting.endswith(",") else greeting
    return " ".join(filter(None, (opening, body, notes, signature)))


def _quotation(story: Story, background: Background, rng: Random) -> str:
    """A report that quotes the customer."""
    opening = _fill_identity(rng.choice(prose.QUOTE_OPENINGS), story)
    notes = _text(story.notes, FIRST)
    body = _first_person(story, background, rng)
    return f'{opening} "{" ".join(filter(None, (notes, body)))}"'


def _first_person(story: Story, background: Background, rng: Random) -> str:
    plot = _plot(story, background, rng)
    remarks = _remarks(story, background, rng)
    if rng.random() < 0.5:
        remarks.insert(0, rng.choice(prose.CONSENTS_OF_LETTERS))
    told = _text([*plot.request, *plot.later, *remarks], FIRST)
    return _AGENT.sub("you", _AGENT_VERB.sub(r"you \1", told))


_LAYOUTS: Mapping[Callable[[Story, Background, Random], str], int] = {
    _sections: 50,
    _paragraph: 28,
    _letter: 14,
    _quotation: 8,
}
"""Layouts with their weights."""
