"""Who answers questions from a memory: somebody who reads what was found in it and nothing else."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from grpo_cl.memory.entries import Entry
from grpo_cl.transcripts import ModelCall

UNKNOWN = "unknown"
"""What somebody says who does not find an answer."""


class Context(NamedTuple):
    """What somebody reads before answering."""

    core: str
    entries: tuple[Entry, ...]
    """The best first."""

    @property
    def text(self) -> str:
        """The context as lines to read, each entry with its number and what is known of it."""
        return "\n".join(
            [*([f"Core: {self.core}"] if self.core else []), *map(shown, self.entries)]
        )


class Answer(NamedTuple):
    """What was answered, and on what grounds."""

    text: str
    used: tuple[int, ...] | None = ()
    """The entries that the answer rests on; None where nobody says."""
    follow_up: str | None = None
    """What has to be looked up before there is an answer."""
    calls: tuple[ModelCall, ...] = ()
    """What models were asked for it."""


class Answerer(Protocol):
    """Answers questions; never the policy that wrote the memory, or it would grade itself."""

    def answer(self, asked: Sequence[tuple[str, Context]]) -> Sequence[Answer]:
        """An answer to each question from its own context, and from nothing else."""
        ...


def shown(entry: Entry) -> str:
    """An entry as agents and answerers read it."""
    known = ", ".join(part for part in (entry.category or entry.type, entry.timestamp) if part)
    return f"[{entry.id}] ({known}) {entry.content}"
