"""Attributes of persons and types of events, with their values and sentence templates."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from grpo_cl.envs.memory.generator.vocabulary import ATTRIBUTE_ROWS


class Attribute(NamedTuple):
    """An attribute of a person, with one value at a time."""

    name: str
    category: str
    noun: str
    """The noun used after a possessive."""
    values: tuple[str, ...]
    statements: tuple[str, ...]
    """Templates; the first is the canonical form, used by the gold operations."""
    change: str
    questions: tuple[str, ...]
    """Templates; the first is the canonical form."""
    cues: tuple[str, ...]
    """Every sentence about the attribute contains one of these words."""


class EventType(NamedTuple):
    """A dated event in the life of a person."""

    past: str
    infinitive: str
    """The form in a question for the date."""


RELATIONS = ("sister", "brother", "manager", "neighbour", "mentor", "doctor", "cousin", "flatmate")
"""Relations between persons; each is an attribute whose values are persons."""

EVENT_TYPES = (
    EventType("visited the salt mine", "visit the salt mine"),
    EventType("ran the harbour marathon", "run the harbour marathon"),
    EventType("sold the old piano", "sell the old piano"),
    EventType("passed the driving test", "pass the driving test"),
    EventType("planted the walnut tree", "plant the walnut tree"),
    EventType("met the mayor", "meet the mayor"),
    EventType("lost the silver ring", "lose the silver ring"),
    EventType("opened the repair shop", "open the repair shop"),
    EventType("gave the toast", "give the toast"),
    EventType("repaired the boat", "repair the boat"),
    EventType("saw the comet", "see the comet"),
    EventType("won the raffle", "win the raffle"),
)


def _attribute(row: tuple[str, ...]) -> Attribute:
    name, category, noun, values, statements, change, questions, cues = row
    return Attribute(
        name,
        category,
        noun,
        tuple(values.split()),
        tuple(statements.split("|")),
        change,
        tuple(questions.split("|")),
        tuple(cues.split()),
    )


def _relation(name: str) -> Attribute:
    return Attribute(
        name,
        "social_interpersonal",
        name,
        (),
        (f"{{n}}'s {name} is {{v}}.", f"The {name} of {{n}} is {{v}}."),
        f"{{n}}'s {name} is {{v}} now instead of {{o}}.",
        (f"Who is {{n}}'s {name}?", f"Who is the {name} of {{n}}?"),
        (name,),
    )


@cache
def attributes() -> Mapping[str, Attribute]:
    """All attributes by name, relations last."""
    rows = [*map(_attribute, ATTRIBUTE_ROWS), *map(_relation, RELATIONS)]
    return {attribute.name: attribute for attribute in rows}
