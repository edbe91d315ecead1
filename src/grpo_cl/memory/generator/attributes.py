"""What can be known about a person: values, and the words in which it is told and asked for."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from grpo_cl.memory.generator.lexicon import ROWS


class Attribute(NamedTuple):
    """One thing that is true of a person until it changes."""

    name: str
    category: str
    noun: str
    """What it is called after a possessive."""
    values: tuple[str, ...]
    says: tuple[str, ...]
    """Statements; the first is how a careful writer puts it."""
    change: str
    asks: tuple[str, ...]
    """Questions; the first is the plainest."""
    cues: tuple[str, ...]
    """Words, one of which a sentence about it has."""


class Happening(NamedTuple):
    """Something that a person did on a day."""

    past: str
    ask: str
    """The same in a question about the day."""


RELATIONS = ("sister", "brother", "manager", "neighbour", "mentor", "doctor", "cousin", "flatmate")
"""What one person may be to another; each is an attribute whose values are people."""

HAPPENINGS = (
    Happening("visited the salt mine", "visit the salt mine"),
    Happening("ran the harbour marathon", "run the harbour marathon"),
    Happening("sold the old piano", "sell the old piano"),
    Happening("passed the driving test", "pass the driving test"),
    Happening("planted the walnut tree", "plant the walnut tree"),
    Happening("met the mayor", "meet the mayor"),
    Happening("lost the silver ring", "lose the silver ring"),
    Happening("opened the repair shop", "open the repair shop"),
    Happening("gave the toast", "give the toast"),
    Happening("repaired the boat", "repair the boat"),
    Happening("saw the comet", "see the comet"),
    Happening("won the raffle", "win the raffle"),
)


def _attribute(row: tuple[str, ...]) -> Attribute:
    name, category, noun, values, says, change, asks, cues = row
    return Attribute(
        name,
        category,
        noun,
        tuple(values.split()),
        tuple(says.split("|")),
        change,
        tuple(asks.split("|")),
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
    found = [*map(_attribute, ROWS), *map(_relation, RELATIONS)]
    return {each.name: each for each in found}
