"""Sentences of delivery customers, told to them in the second person and of them in the third."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

SECOND_PERSON = {"You": "You", "you": "you", "your": "your"}
THIRD_PERSON = {"You": "They", "you": "they", "your": "their"}
_OPEN = {word: f"{{{word}}}" for word in SECOND_PERSON}

FIRST_OPENINGS = ("{You} want to", "{You} would like to", "{You} need to", "{You} are hoping to")
NEXT_OPENINGS = (
    "{You} also want to",
    "{You} would also like to",
    "Then {you} want to",
    "As another matter {you} need to",
)
LAST_RESORTS = (
    "if that cannot be done, {you} want everything left as it is",
    "if the rules forbid it, {you} want nothing in its place",
    "if it is not possible, {you} want no alternative",
)
QUESTIONS = (
    "and {you} want to know {subject}",
    "and {you} want to be told {subject}",
    "and {you} ask for {subject}",
)
CONSENTS = (
    "You say yes to what matches your request.",
    "You confirm every step that is what you asked for.",
    "You give a clear yes once the details are right.",
)
MANNERS = (
    "You are polite but hungry.",
    "You are patient and speak slowly.",
    "You are annoyed by long answers.",
    "You are friendly and chat a lot.",
    "You are busy, with little time.",
    "You are nervous about getting it wrong.",
    "You are calm and exact.",
)
ASIDES = (
    "You mention that guests are coming tonight.",
    "You mention that the doorbell is broken.",
    "You say that your kitchen is being painted this week.",
    "You mention that you usually cook on Fridays.",
    "You say that the elevator in the building is slow.",
    "You mention that a friend told you about the service.",
)
TICKET_OPENINGS = (
    "{name} ({identity}) has asked for the following and agrees to all of it.",
    "Customer {name}, {identity}. What follows is confirmed.",
    "Request by {name}, {identity}, with consent to every change named here.",
)


class Wording(NamedTuple):
    """What is wanted, phrased twice; pronouns are still open."""

    asked: str
    """For the customer's own instructions."""
    filed: str
    """For the ticket."""

    def then(self, other: "Wording", link: str) -> "Wording":
        """Both in one, with ``link`` between them."""
        return Wording(f"{self.asked}{link}{other.asked}", f"{self.filed}{link}{other.filed}")


def word(rng: Random, templates: Sequence[str], **facts: str) -> Wording:
    """One phrasing for the customer and one for the ticket, drawn apart, with all facts filled."""
    asked, filed = (rng.choice(templates).format(**facts, **_OPEN) for _ in Wording._fields)
    return Wording(asked, filed)


def speak(text: str, person: Mapping[str, str]) -> str:
    """``text`` with its pronouns settled."""
    return text.format(**person)


def listing(parts: Sequence[str]) -> str:
    """The parts as an English list."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def number(amount: float) -> str:
    """An amount as it occurs in every way of writing it: 54.1 is part of 54.10."""
    return f"{amount:.2f}".rstrip("0").rstrip(".")
