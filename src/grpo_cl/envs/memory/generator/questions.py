"""Questions about a generated conversation; gold answers are taken from its facts."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.envs.memory.generator.attributes import RELATIONS, Attribute, attributes
from grpo_cl.envs.memory.generator.conversation import ConversationGenerator, Key
from grpo_cl.envs.memory.generator.templates import PREVIOUS, WHEN, phrase
from grpo_cl.envs.memory.instances import Question

SINGLE, UPDATED, PREVIOUS_VALUE = "single", "updated", "previous"
MULTIHOP, TEMPORAL, RETRACTED, ABSTAIN = "multihop", "temporal", "retracted", "abstain"
QTYPES = (SINGLE, UPDATED, PREVIOUS_VALUE, MULTIHOP, TEMPORAL, RETRACTED, ABSTAIN)


class Draft(NamedTuple):
    """A question without an id."""

    text: str
    answer: str | None
    qtype: str
    subject: str
    """The attribute or event that is asked for."""
    evidence: tuple[int, ...]
    evidence_text: str = ""
    """The answer as the evidence states it, if its wording differs."""


def generate_questions(conversation: ConversationGenerator) -> list[Question]:
    """Questions about the final facts, in the fractions of the parameters."""
    params = conversation.params
    count = params.questions
    fractions = (
        (_previous(conversation), params.previous),
        (_multihop(conversation), params.multihop),
        (_temporal(conversation), params.temporal),
    )
    selected = [
        draft for drafts, fraction in fractions for draft in drafts[: round(fraction * count)]
    ]
    num_unanswerable = round(params.unknown * count)
    selected += _current(conversation)[: max(count - num_unanswerable - len(selected), 0)]
    # A fraction of the selected questions, not of ``count``: a short conversation has fewer, and
    # an empty memory must not answer most of them.
    selected += _unanswerable(conversation)[: round(params.unknown * (len(selected) + 1))]
    conversation.rng.shuffle(selected)
    return [_question(number, draft) for number, draft in enumerate(selected, 1)]


def _question(number: int, draft: Draft) -> Question:
    meta: dict[str, JsonValue] = {"subject": draft.subject}
    if draft.evidence_text:
        meta["told"] = draft.evidence_text
    return Question(
        question_id=str(number),
        question=draft.text,
        answers=(draft.answer,) if draft.answer is not None else (),
        qtype=draft.qtype,
        evidence=tuple(sorted(set(draft.evidence))),
        meta=meta,
    )


def _question_text(conversation: ConversationGenerator, attribute: Attribute, person: str) -> str:
    is_canonical = conversation.rng.random() >= conversation.params.paraphrase
    template = (
        attribute.questions[0] if is_canonical else conversation.rng.choice(attribute.questions[1:])
    )
    return phrase(template, n=person)


def _current(conversation: ConversationGenerator) -> list[Draft]:
    drafts = [
        Draft(
            _question_text(conversation, attributes()[key[1]], key[0]),
            fact.value,
            UPDATED if fact.is_changed else SINGLE,
            key[1],
            (fact.chunk_id,),
        )
        for key, fact in conversation.facts.items()
    ]
    return _shuffled(drafts, conversation.rng)


def _previous(conversation: ConversationGenerator) -> list[Draft]:
    drafts = [
        Draft(
            phrase(PREVIOUS, n=key[0], noun=attributes()[key[1]].noun),
            fact.before[0],
            PREVIOUS_VALUE,
            key[1],
            (fact.before[1], fact.chunk_id),
        )
        for key, fact in conversation.facts.items()
        if fact.before
    ]
    return _shuffled(drafts, conversation.rng)


def _multihop(conversation: ConversationGenerator) -> list[Draft]:
    drafts: list[Draft] = []
    for (person, relation), link in conversation.facts.items():
        if relation not in RELATIONS:
            continue
        for (other, name), fact in conversation.facts.items():
            if other == link.value and name not in RELATIONS:
                text = _question_text(conversation, attributes()[name], f"{person}'s {relation}")
                evidence = (link.chunk_id, fact.chunk_id)
                drafts.append(Draft(text, fact.value, MULTIHOP, name, evidence))
    return _shuffled(drafts, conversation.rng)


def _temporal(conversation: ConversationGenerator) -> list[Draft]:
    drafts = [
        Draft(
            WHEN.format(n=person, ask=event_type.infinitive),
            event.day.isoformat(),
            TEMPORAL,
            event_type.infinitive,
            (event.chunk_id,),
            event.date_text,
        )
        for (person, event_type), event in conversation.events.items()
    ]
    return _shuffled(drafts, conversation.rng)


def _unanswerable(conversation: ConversationGenerator) -> list[Draft]:
    """Questions for retracted values, then for values that were never stated."""
    retracted = [
        Draft(
            _question_text(conversation, attributes()[name], person),
            None,
            RETRACTED,
            name,
            (chunk_id,),
        )
        for (person, name), chunk_id in conversation.retracted.items()
    ]
    never_stated: list[Key] = [
        (person, name)
        for person in conversation.people
        for name in conversation.attributes
        if (person, name) not in conversation.facts and (person, name) not in conversation.retracted
    ]
    count = min(len(never_stated), conversation.params.questions)
    absent = [
        Draft(_question_text(conversation, attributes()[name], person), None, ABSTAIN, name, ())
        for person, name in conversation.rng.sample(never_stated, count)
    ]
    return [*_shuffled(retracted, conversation.rng), *absent]


def _shuffled(drafts: Sequence[Draft], rng: Random) -> list[Draft]:
    return rng.sample(drafts, len(drafts))
