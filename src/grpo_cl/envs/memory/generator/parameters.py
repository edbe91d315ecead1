"""Difficulty parameters of the generator (config section ``memory.knobs``)."""

from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, PositiveInt

from grpo_cl.config import ConfigRecord
from grpo_cl.errors import ConfigError

Fraction = Annotated[float, Field(ge=0, le=1)]


class GeneratorParams(ConfigRecord):
    """Length, rate of change and noise of an instance; ``at`` sets all of them by difficulty."""

    chunks: PositiveInt = 8
    facts: PositiveInt = 3
    """Facts per chunk with facts."""
    people: Annotated[int, Field(ge=3)] = 5
    namesakes: NonNegativeInt = 0
    """Persons who share a first name with another."""
    attributes: Annotated[int, Field(ge=2, le=26)] = 16
    """Number of attributes in the conversation."""
    update: Fraction = 0.3
    """Fraction of facts that change a value."""
    correct: Fraction = 0.05
    """Fraction of facts that correct an earlier statement, which was never true."""
    retract: Fraction = 0.05
    """Fraction of facts that retract a statement without a new value."""
    relation: Fraction = 0.1
    """Fraction of facts about a relation between two persons."""
    happening: Fraction = 0.1
    """Fraction of facts that are dated events."""
    relative_dates: Fraction = 0.5
    """Fraction of events whose date is relative to the chunk's."""
    noise: Annotated[float, Field(ge=0)] = 1.0
    """Noise lines per fact line."""
    hypothetical: Fraction = 0.3
    """Fraction of noise that states a value in a hypothetical."""
    rumour: Fraction = 0.1
    """Fraction of noise that is a rumour; some rumours are confirmed later."""
    repeat: Fraction = 0.1
    """Fraction of noise that repeats a fact."""
    empty: Fraction = 0.1
    """Fraction of chunks with noise only."""
    paraphrase: Fraction = 0.5
    """Fraction of statements and questions that are not in canonical form."""
    questions: PositiveInt = 12
    previous: Fraction = 0.15
    """Fraction of questions for the value before the latest change."""
    multihop: Fraction = 0.1
    """Fraction of questions about a person named by a relation to another."""
    temporal: Fraction = 0.1
    """Fraction of questions for the date of an event."""
    unknown: Fraction = 0.1
    """Fraction of questions without an answer; the score of an empty memory."""

    @classmethod
    def at(cls, difficulty: float) -> Self:
        """The parameters at a difficulty in [0, 1]."""
        if not 0 <= difficulty <= 1:
            raise ConfigError(f"difficulty {difficulty} is outside [0, 1]")

        def between(easy: float, hard: float) -> float:
            return easy + (hard - easy) * difficulty

        return cls(
            chunks=round(between(3, 16)),
            facts=round(between(2, 4)),
            people=round(between(3, 9)),
            namesakes=round(between(-2, 3)) if difficulty > 0.4 else 0,
            attributes=round(between(6, 26)),
            update=between(0.3, 0.45),
            correct=between(0.0, 0.08),
            retract=between(0.0, 0.08),
            relation=between(0.0, 0.12),
            happening=between(0.0, 0.12),
            relative_dates=between(0.0, 1.0),
            noise=between(0.5, 1.5),
            hypothetical=between(0.0, 0.35),
            rumour=between(0.0, 0.2),
            repeat=between(0.0, 0.15),
            empty=between(0.05, 0.15),
            paraphrase=between(0.0, 0.8),
            questions=round(between(6, 20)),
            previous=between(0.0, 0.2),
            multihop=between(0.0, 0.15),
            temporal=between(0.0, 0.15),
            unknown=0.1,
        )
