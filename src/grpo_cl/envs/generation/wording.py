"""Templates that address the customer in the second person and describe them in the third."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

SECOND_PERSON = {"You": "You", "you": "you", "your": "your"}
THIRD_PERSON = {"You": "They", "you": "they", "your": "their"}
_KEEP_PRONOUNS = {pronoun: f"{{{pronoun}}}" for pronoun in SECOND_PERSON}


class TaskTexts(NamedTuple):
    """The texts of one task."""

    reason_for_call: str
    known_info: str
    unknown_info: str | None
    task_instructions: str
    ticket: str


class Statement(NamedTuple):
    """A statement before it is phrased."""

    templates: tuple[str, ...]
    """Equivalent templates over ``facts`` and pronouns."""
    facts: Mapping[str, str] = {}
    separator: str = ""
    """Separates it from the statement before it."""


class Wording(NamedTuple):
    """Statements phrased twice; their pronouns are still placeholders."""

    asked: str
    """For the customer's own instructions."""
    filed: str
    """For the ticket."""
    drawn_from: tuple[Statement, ...] = ()

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What a text says that phrases it in another way."""
        return self.drawn_from or (Statement((self.asked,)),)

    def then(self, other: "Wording", separator: str) -> "Wording":
        """Both statements joined by ``separator``."""
        first, *rest = other.statements
        return Wording(
            f"{self.asked}{separator}{other.asked}",
            f"{self.filed}{separator}{other.filed}",
            (*self.statements, first._replace(separator=separator), *rest),
        )


def draw_wording(rng: Random, templates: Sequence[str], **facts: str) -> Wording:
    """A wording whose two phrasings are drawn independently, with ``facts`` filled in."""
    asked, filed = (rng.choice(templates).format(**facts, **_KEEP_PRONOUNS) for _ in range(2))
    return Wording(asked, filed, (Statement(tuple(templates), facts),))


def fill_pronouns(text: str, person: Mapping[str, str]) -> str:
    """``text`` with its pronouns in the given grammatical person."""
    return text.format(**person)


def join_words(parts: Sequence[str]) -> str:
    """The parts as an English enumeration."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def format_amount(amount: float) -> str:
    """The shortest form of an amount, which all other forms contain: 54.1 is part of 54.10."""
    return f"{amount:.2f}".rstrip("0").rstrip(".")
