"""How long, how changeable and how noisy an instance is."""

from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, PositiveInt

from grpo_cl.errors import ConfigError
from grpo_cl.records import Record

Share = Annotated[float, Field(ge=0, le=1)]


class Knobs(Record):
    """The dials of the generator; ``Knobs.at`` sets them all by one."""

    chunks: PositiveInt = 8
    facts: PositiveInt = 3
    """Things told in a chunk that has any."""
    people: Annotated[int, Field(ge=3)] = 5
    namesakes: NonNegativeInt = 0
    """People who share a first name with another."""
    attributes: Annotated[int, Field(ge=2, le=26)] = 16
    """How many attributes are spoken of."""
    update: Share = 0.3
    """Of the things told, those that change what was true."""
    correct: Share = 0.05
    """Those that were never true: the earlier statement was a mistake."""
    retract: Share = 0.05
    """Those that are taken back, with nothing in their place."""
    relation: Share = 0.1
    """Those that say what somebody is to somebody else."""
    happening: Share = 0.1
    """Those that somebody did on a day."""
    relative_dates: Share = 0.5
    """Happenings whose day must be reckoned from the chunk's."""
    noise: Annotated[float, Field(ge=0)] = 1.0
    """Lines without anything to keep for each line that has something."""
    hypothetical: Share = 0.3
    """Noise that names a value which is not true."""
    rumour: Share = 0.1
    """Noise by somebody who may be wrong; some of it is confirmed later, and true then."""
    repeat: Share = 0.1
    """Noise that says again what is known."""
    empty: Share = 0.1
    """Chunks that hold noise alone."""
    paraphrase: Share = 0.5
    """Statements and questions that are not put in the plainest way."""
    questions: PositiveInt = 12
    previous: Share = 0.15
    """Questions for what was true before the latest change."""
    multihop: Share = 0.1
    """Questions about somebody who is named by what they are to somebody else."""
    temporal: Share = 0.1
    """Questions for the day of a happening."""
    unknown: Share = 0.1
    """Questions whose answer was taken back or never told: the score of a memory that is empty."""

    @classmethod
    def at(cls, difficulty: float) -> Self:
        """The dials at a difficulty in [0, 1]."""
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
