"""Sentences of callers, told to them in the second person and of them in the third."""

from collections.abc import Mapping, Sequence
from datetime import date
from random import Random
from typing import NamedTuple

SECOND_PERSON = {"You": "You", "you": "you", "your": "your"}
THIRD_PERSON = {"You": "They", "you": "they", "your": "their"}
_OPEN_PRONOUNS = {word: f"{{{word}}}" for word in SECOND_PERSON}

FIRST_OPENINGS = ("{You} want to", "{You} would like to", "{You} need to", "{You} call to")
NEXT_OPENINGS = (
    "{You} also want to",
    "{You} would also like to",
    "Then {you} want to",
    "Apart from that, {you} want to",
)
LAST_RESORTS = (
    "if that cannot be done, {you} want nothing else instead",
    "if the clinic does not allow that, {you} want everything left as it is",
    "if that is not possible, {you} leave it at that",
)
QUESTIONS = (
    "and {you} want to be told {fact}",
    "and {you} want to know {fact}",
    "and {you} would like to hear {fact}",
)
CONFIRMATIONS = (
    "You confirm every change that is what you asked for.",
    "You say yes to details that fit your request and correct all others.",
    "You say yes when the agent repeats your request correctly.",
)
PERSONAS = (
    "You are polite and a little nervous.",
    "You are in a hurry and want to be done soon.",
    "You are friendly and chatty.",
    "You are precise and like short answers.",
    "You are tired after a long day.",
    "You are annoyed by telephone queues but stay civil.",
    "You are calm and formal.",
)
ASIDES = (
    "You mention that the parking lot of the clinic is always full.",
    "You mention that the waiting room has new chairs.",
    "You mention that you are calling from a train.",
    "You mention that the receptionist was very kind last time.",
    "You mention that you take the bus to the clinic.",
    "You mention that your sister works in a hospital.",
)
TICKET_OPENINGS = (
    "{name} ({identity}) has called and agrees to every change described here.",
    "Call from {name}, {identity}; everything below is already confirmed.",
    "The caller is {name}, {identity}, and has said yes to all that follows.",
    "{name} called, gave {identity} and confirmed what follows.",
)


class Wording(NamedTuple):
    """What is wanted, in two phrasings; pronouns are still open."""

    asked: str
    """For the caller's own instructions."""
    filed: str
    """For the ticket."""


def word(rng: Random, templates: Sequence[str], **facts: str) -> Wording:
    """One phrasing for the caller and one for the ticket, drawn apart, with all facts filled."""
    asked, filed = (
        rng.choice(templates).format(**facts, **_OPEN_PRONOUNS) for _ in Wording._fields
    )
    return Wording(asked, filed)


def append(first: Wording, separator: str, second: Wording) -> Wording:
    """Two wordings as one."""
    return Wording(
        f"{first.asked}{separator}{second.asked}", f"{first.filed}{separator}{second.filed}"
    )


def speak(text: str, person: Mapping[str, str]) -> str:
    """``text`` with its pronouns settled."""
    return text.format(**person)


def day_words(day: str, *, is_exact: bool) -> str:
    """A day as people say it, with the date in figures if ``is_exact``."""
    when = date.fromisoformat(day)
    said = f"{when:%A}, {when:%B} {when.day}"
    return f"{said} ({day})" if is_exact else said
