"""Where a campaign keeps its files. No other module spells a file name of it."""

import fcntl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_cl.bench.plan import Job
from grpo_cl.errors import ConfigError
from grpo_cl.rundir import read_json, write_json
from grpo_cl.types import Record


class Outcome(Record):
    """How a process ended; a process that was cut off has none."""

    error: str | None = None
    """What ended it; None if it finished."""


@dataclass(frozen=True)
class CampaignDir:
    """The files of one campaign."""

    root: Path

    @property
    def results(self) -> Path:
        """Every run and what they say together; the same for the same campaign."""
        return self.root / "results.json"

    @property
    def times(self) -> Path:
        """Seconds of each run."""
        return self.root / "times.json"

    @property
    def report(self) -> Path:
        """The page a person reads."""
        return self.root / "report.html"

    @property
    def fingerprints(self) -> Path:
        """What each run was begun with."""
        return self.root / "fingerprints.json"

    def log(self, job: Job) -> Path:
        """What the processes of a job printed."""
        return self.root / "logs" / f"{_kind(job)}.{job.name}.txt"

    def outcome(self, job: Job) -> Outcome | None:
        """How a job ended; None if it has not."""
        path = self._outcome(job)
        return Outcome.model_validate(read_json(path)) if path.exists() else None

    def write_outcome(self, job: Job, outcome: Outcome) -> None:
        """Write down how a job ended."""
        write_json(self._outcome(job), outcome.model_dump())

    def _outcome(self, job: Job) -> Path:
        return self.root / "outcomes" / f"{_kind(job)}.{job.name}.json"

    def claim(self, jobs: Sequence[Job]) -> None:
        """Refuse to go on with runs that were begun with other settings; note the new ones."""
        known: dict[str, str] = read_json(self.fingerprints) if self.fingerprints.exists() else {}
        for job in jobs:
            if known.get(job.name, job.fingerprint) != job.fingerprint:
                raise ConfigError(
                    f"{job.config.log_dir} was begun with other settings than the campaign has "
                    "now; give the campaign another out, or delete that folder and "
                    f"{self.fingerprints}"
                )
        write_json(self.fingerprints, known | {job.name: job.fingerprint for job in jobs})

    @contextmanager
    def held(self) -> Generator[None]:
        """Be the only process that works on this campaign."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process works on {self.root}; wait for it, or give another out"
                ) from None
            yield


def _kind(job: Job) -> str:
    return "trunk" if job.is_trunk else "run"
