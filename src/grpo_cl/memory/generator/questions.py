"""Questions about a story, their answers read from what is true in it."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.memory.generator.attributes import RELATIONS, Attribute, attributes
from grpo_cl.memory.generator.story import Key, Story
from grpo_cl.memory.generator.wording import PREVIOUS, WHEN, phrase
from grpo_cl.memory.instances import Question

SINGLE, UPDATED, PREVIOUS_VALUE = "single", "updated", "previous"
MULTIHOP, TEMPORAL, RETRACTED, ABSTAIN = "multihop", "temporal", "retracted", "abstain"
QTYPES = (SINGLE, UPDATED, PREVIOUS_VALUE, MULTIHOP, TEMPORAL, RETRACTED, ABSTAIN)


class Draft(NamedTuple):
    """A question before it has an id."""

    text: str
    answer: str | None
    qtype: str
    evidence: tuple[int, ...]
    told: str = ""
    """How the evidence puts the answer, if not in the same words."""


def ask(story: Story) -> list[Question]:
    """Questions about the end of a story, in the shares that its knobs say."""
    count, share = story.knobs.questions, story.knobs.unknown
    kinds = (
        (_previous(story), story.knobs.previous),
        (_multihop(story), story.knobs.multihop),
        (_temporal(story), story.knobs.temporal),
    )
    chosen = [draft for drafts, part in kinds for draft in drafts[: round(part * count)]]
    chosen += _current(story)[: max(count - round(share * count) - len(chosen), 0)]
    # Of as many as there are: a short story must not be answered by knowing nothing.
    chosen += _unknown(story)[: round(share * (len(chosen) + 1))]
    story.rng.shuffle(chosen)
    return [_question(number, draft) for number, draft in enumerate(chosen, 1)]


def _question(number: int, draft: Draft) -> Question:
    meta: dict[str, JsonValue] = {"told": draft.told} if draft.told else {}
    return Question(
        question_id=str(number),
        question=draft.text,
        answers=(draft.answer,) if draft.answer is not None else (),
        qtype=draft.qtype,
        evidence=tuple(sorted(set(draft.evidence))),
        meta=meta,
    )


def _asked(story: Story, attribute: Attribute, person: str) -> str:
    is_plain = story.rng.random() >= story.knobs.paraphrase
    way = attribute.asks[0] if is_plain else story.rng.choice(attribute.asks[1:])
    return phrase(way, n=person)


def _current(story: Story) -> list[Draft]:
    drafts = [
        Draft(
            _asked(story, attributes()[key[1]], key[0]),
            fact.value,
            UPDATED if fact.is_changed else SINGLE,
            (fact.chunk_id,),
        )
        for key, fact in story.facts.items()
    ]
    return _shuffled(drafts, story.rng)


def _previous(story: Story) -> list[Draft]:
    drafts = [
        Draft(
            phrase(PREVIOUS, n=key[0], noun=attributes()[key[1]].noun),
            fact.before[0],
            PREVIOUS_VALUE,
            (fact.before[1], fact.chunk_id),
        )
        for key, fact in story.facts.items()
        if fact.before
    ]
    return _shuffled(drafts, story.rng)


def _multihop(story: Story) -> list[Draft]:
    drafts: list[Draft] = []
    for (person, relation), link in story.facts.items():
        if relation not in RELATIONS:
            continue
        for (other, name), fact in story.facts.items():
            if other == link.value and name not in RELATIONS:
                text = _asked(story, attributes()[name], f"{person}'s {relation}")
                evidence = (link.chunk_id, fact.chunk_id)
                drafts.append(Draft(text, fact.value, MULTIHOP, evidence))
    return _shuffled(drafts, story.rng)


def _temporal(story: Story) -> list[Draft]:
    drafts = [
        Draft(
            WHEN.format(n=person, ask=happening.ask),
            deed.day.isoformat(),
            TEMPORAL,
            (deed.chunk_id,),
            deed.told,
        )
        for (person, happening), deed in story.deeds.items()
    ]
    return _shuffled(drafts, story.rng)


def _unknown(story: Story) -> list[Draft]:
    """What was taken back, and then what was never told."""
    retracted = [
        Draft(_asked(story, attributes()[name], person), None, RETRACTED, (chunk_id,))
        for (person, name), chunk_id in story.retracted.items()
    ]
    silent: list[Key] = [
        (person, name)
        for person in story.people
        for name in story.attributes
        if (person, name) not in story.facts and (person, name) not in story.retracted
    ]
    absent = [
        Draft(_asked(story, attributes()[name], person), None, ABSTAIN, ())
        for person, name in story.rng.sample(silent, min(len(silent), story.knobs.questions))
    ]
    return [*_shuffled(retracted, story.rng), *absent]


def _shuffled(drafts: Sequence[Draft], rng: Random) -> list[Draft]:
    return rng.sample(drafts, len(drafts))
