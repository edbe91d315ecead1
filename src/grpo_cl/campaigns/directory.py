"""The files of a campaign; no other module spells their names."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_cl.campaigns.plan import PLACES, Job
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.settings import changes_between, read_settings
from grpo_cl.runs.state_files import StateKind, read_state, write_state
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.storage.lock import locked
from grpo_cl.types import Record


class Outcome(Record):
    """How a job ended; a job that was killed has none."""

    error: str | None = None
    """Why it failed; None if it finished."""


OUTCOME = StateKind("the outcome of a job", Outcome, "remove it to run the job again")


@dataclass(frozen=True)
class CampaignDir:
    """The files of one campaign."""

    root: Path

    @property
    def results(self) -> Path:
        """Every run and the statistics over them; byte-identical for the same campaign."""
        return self.root / "results.json"

    @property
    def times(self) -> Path:
        """The seconds of each run."""
        return self.root / "times.json"

    @property
    def report(self) -> Path:
        """The HTML page."""
        return self.root / "report.html"

    @property
    def fingerprints(self) -> Path:
        """The fingerprint of the configuration that each run was started with."""
        return self.root / "fingerprints.json"

    def log(self, job: Job) -> Path:
        """The output of a job's processes."""
        return self.root / "logs" / f"{_kind(job)}.{job.name}.txt"

    def outcome(self, job: Job) -> Outcome | None:
        """How a job ended; None if it has not ended."""
        path = self._outcome(job)
        return Outcome.model_validate(read_state(path, OUTCOME)) if path.exists() else None

    def write_outcome(self, job: Job, outcome: Outcome) -> None:
        """Record how a job ended."""
        write_state(self._outcome(job), OUTCOME, outcome.model_dump())

    def is_finished(self, job: Job) -> bool:
        """Whether a job ended without an error."""
        outcome = self.outcome(job)
        return outcome is not None and outcome.error is None

    def _outcome(self, job: Job) -> Path:
        return self.root / "outcomes" / f"{_kind(job)}.{job.name}.json"

    def check_fingerprints(self, jobs: Sequence[Job]) -> None:
        """Refuse runs that were started with other settings; record the new ones.

        Of a run without a fingerprint, which was copied here, the settings are compared.
        """
        recorded = self._recorded_fingerprints()
        for job in jobs:
            is_new = job.name not in recorded and not RunDir(job.config.log_dir).config.exists()
            is_same = is_new or recorded.get(job.name) == job.fingerprint
            if not is_same and not _has_settings_of(job):
                raise ConfigError(
                    f"{job.config.log_dir} was started with other settings than the campaign has "
                    "now; give the campaign another out, or delete that directory and "
                    f"{self.fingerprints}"
                )
        write_json(self.fingerprints, recorded | {job.name: job.fingerprint for job in jobs})

    def _recorded_fingerprints(self) -> dict[str, str]:
        value = read_json(self.fingerprints) if self.fingerprints.exists() else {}
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise CheckpointError(
                f"{self.fingerprints} must have a fingerprint for each run; restore it, or remove "
                "it to compare the settings of each run"
            )
        return value

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the lock of the campaign, so that only one process works on it."""
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.root, remedy="give the campaign another out"):
            self._rename_stages_of_earlier_versions()
            yield

    def _rename_stages_of_earlier_versions(self) -> None:
        for pattern in ("trunks/*", "outcomes/trunk.*", "logs/trunk.*"):
            for old in list(self.root.glob(pattern)):
                name = str(old.relative_to(self.root)).replace("trunk", "shared_stage", 1)
                new = self.root / name
                if not new.exists():
                    new.parent.mkdir(exist_ok=True)
                    old.rename(new)


def _kind(job: Job) -> str:
    return "shared_stage" if job.is_shared_stage else "run"


def _has_settings_of(job: Job) -> bool:
    """Whether the run was started with the job's settings, except for ``PLACES``."""
    run = RunDir(job.config.log_dir)
    if not run.config.exists():
        return False
    changes = changes_between(read_settings(run.config), job.config)
    return all(change.name in PLACES for change in changes)
