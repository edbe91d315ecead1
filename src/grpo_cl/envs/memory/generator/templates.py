"""Templates of conversation lines (facts and noise) and of questions."""

import re
from datetime import date, timedelta
from random import Random

from grpo_cl.envs.memory.generator.attributes import Attribute, EventType

RUMOURS = (
    "Somebody at the market claims, but cannot know: {s}",
    "I heard this in the queue and would not bet on it: {s}",
)
CONFIRMED = "What people claimed turned out to be true: {s}"
HYPOTHETICALS = (
    "Nobody would believe me if I said: {s}",
    "In a novel the next chapter would begin like this: {s}",
    "My brother jokes that one day we will hear: {s}",
)
REPEATS = ("As I said before: {s}", "You know this already: {s}")
CORRECTION = "I was wrong about {n}'s {noun}: it is {v}, not {o}."
RETRACTION = "Please forget what I said about {n}'s {noun}: it was wrong, and I do not know better."
PREVIOUS = "What was {n}'s {noun} before the latest change?"
WHEN = "On which date did {n} {ask}?"
CHAT = (
    "The weather has been odd lately.",
    "Did you see the match last night?",
    "I really need more coffee.",
    "The printer is jammed again.",
    "Traffic was dreadful this morning.",
    "I keep losing my umbrella.",
    "The lift is out of order, as usual.",
    "Somebody left the window open all night.",
    "I should read more and scroll less.",
    "The meeting could have been a letter.",
)
BEFORE = "Before: {o}."
"""The previous value in the content of a gold update."""


def phrase(template: str, **words: str) -> str:
    """A filled template, with the right article before a vowel."""
    return re.sub(r"\ba (?=[aeiouAEIOU])", "an ", template.format(**words))


def statement(attribute: Attribute, person: str, value: str) -> str:
    """A fact in its canonical form."""
    return phrase(attribute.statements[0], n=person, v=value)


def statement_with_previous(attribute: Attribute, person: str, value: str, *, before: str) -> str:
    """A fact in its canonical form, with the previous value."""
    return f"{statement(attribute, person, value)} {phrase(BEFORE, o=before)}"


def event_statement(person: str, event_type: EventType, day: date) -> str:
    """An event with its absolute date."""
    return f"{person} {event_type.past} on {day.isoformat()}."


def date_phrase(day: date, today: date, *, relative: bool) -> str:
    """A date as it is written on ``today``."""
    days = (today - day).days
    if not relative:
        return f"on {day.isoformat()}"
    return {0: "today", 1: "yesterday"}.get(days, f"{days} days ago")


def recent_day(today: date, rng: Random) -> date:
    """A random day of the last week, or today."""
    return today - timedelta(days=rng.randrange(7))
