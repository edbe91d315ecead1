"""Cases of an attack and their verdicts."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import NamedTuple

from torture.processes import Ended


class Outcome(StrEnum):
    SURVIVED = "survived"
    LOST = "lost"
    """Work is gone, the program crashed or hung, or it refused what it should do."""
    WRONG = "silently wrong"
    """Status 0 with a result that differs."""


class Verdict(NamedTuple):
    outcome: Outcome
    detail: str = ""
    """What failed; of a case that survived, a measurement."""


class Case(NamedTuple):
    name: str
    attempt: Callable[[Path], Verdict]
    """Runs the case in an empty folder of its own."""
    tried: int = 1
    """How many inputs the case tries."""


@dataclass(frozen=True)
class Bench:
    """What an attack may use."""

    seed: int
    scale: float
    """The share of the long form that is run."""
    folder: Path

    def rng(self, *names: object) -> Random:
        """A generator that depends on the seed and on names, not on other attacks."""
        return Random(json.dumps([self.seed, *map(str, names)]))

    def amount(self, count: int) -> int:
        """A count of the long form, scaled; at least 1."""
        return max(1, round(count * self.scale))

    def prepared(self, name: str) -> Path:
        """A new folder for what the cases of an attack share."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


Attack = Callable[[Bench], Iterable[Case]]


def survived(detail: str = "") -> Verdict:
    return Verdict(Outcome.SURVIVED, detail)


def lost(detail: str) -> Verdict:
    return Verdict(Outcome.LOST, detail)


def wrong(detail: str) -> Verdict:
    return Verdict(Outcome.WRONG, detail)


def crash(ended: Ended) -> str:
    """The status and the last words of a process."""
    return f"status {ended.status}: {' | '.join(ended.errors.strip().splitlines()[-3:])[-600:]}"
