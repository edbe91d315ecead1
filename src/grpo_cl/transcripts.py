"""What was asked and said beside a conversation: by models behind an API, and about its outcome."""

from collections.abc import Sequence
from statistics import fmean

from pydantic import NonNegativeInt

from grpo_cl.records import Record


class ModelCall(Record):
    """One question to a model that plays the user, the judge or the agent."""

    role: str
    """Whom the model plays."""
    purpose: str
    """What it was asked for: a reply, a check of a draft, a verdict."""
    model: str
    prompt: str
    """SHA-256 of everything the model was given; names the entry in the cache of replies."""
    reply: str = ""
    seed: int = 0
    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0
    cost: float = 0.0
    """What it cost in the currency of ``models.prices``; nothing where it came from the cache."""
    seconds: float = 0.0
    retries: NonNegativeInt = 0
    """Attempts that failed before the one that is told here."""
    is_cached: bool = False
    rejected: str | None = None
    """Why the reply was not used, and asked for again."""
    error: str | None = None
    """Why there is no reply."""


class Judgement(Record):
    """A judge's answer about every natural-language assertion of a task."""

    model: str
    votes: tuple[tuple[bool, ...], ...]
    """One row for each time the judge was asked, one column for each assertion."""
    calls: tuple[ModelCall, ...] = ()
    """What the judge was asked and said."""

    @property
    def met(self) -> tuple[bool, ...]:
        """Whether more than half of the votes find each assertion met."""
        return tuple(2 * sum(column) > len(column) for column in self._columns)

    @property
    def agreement(self) -> float:
        """Mean share of the votes that are with the majority; 1 where all agree."""
        shares = [max(sum(c), len(c) - sum(c)) / len(c) for c in self._columns]
        return fmean(shares) if shares else 1.0

    @property
    def _columns(self) -> Sequence[tuple[bool, ...]]:
        return list(zip(*self.votes, strict=True))


class AnswerCheck(Record):
    """How one question about what was remembered was answered."""

    question_id: str
    qtype: str
    answer: str
    score: float
    evidence: tuple[int, ...] = ()
    """The memories that the answer rests on."""
