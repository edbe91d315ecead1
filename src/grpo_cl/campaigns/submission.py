"""Submissions to the leaderboard: the results of runs in one file, and what proves them.

A submission has no local path and no secret. Its R-matrices have the counts of every task, so that
scores can be computed again from it alone; with the run directories, rewards and cells can be too.
"""

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from grpo_cl.campaigns.costs import Costs, read_costs
from grpo_cl.campaigns.directory import CampaignDir
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.continual import continual_scores
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.registry import is_in_file
from grpo_cl.runs.checkpoints import newest_checkpoint
from grpo_cl.runs.layout import CheckpointFiles, RunDir, file_name
from grpo_cl.runs.settings import LOCATION
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import read_json, write_file, write_json
from grpo_cl.storage.redaction import redact
from grpo_cl.types import Record, first_problem

FORMAT: Final = 1
MAX_BYTES = 2**28
"""Of a submission after decompression: a small compressed file must not fill the memory."""
_HOST = re.compile(r"(?<=://)[^/\s]+")
_ROOT = r"(?:file:///|(?<!:)//|/(?!/)|~(?:[A-Za-z_][\w.\-]*)?/|[A-Za-z]:[\\/]|\\\\)"
_PATH = re.compile(
    rf"""(?<=(['"`])){_ROOT}.*?(?=\1)               # in quotes: up to the closing one
        |(?<![\w.…/<]){_ROOT}[^\s'"`]+
            (?:(?<![.,:;)])                         # a folder of two words, not the next words
                \ [^\s'"`.,:;()=/\\]+[/\\][^\s'"`]*)*""",
    re.VERBOSE,
)
"""An absolute path within a sentence, with the punctuation after it."""
_ENVIRONMENT = ("commit", "python", "versions", "task_releases")
"""What a submission has of ``environment.json``; the command line and the variables stay away."""


class SubmittedRun(Record):
    """One finished run."""

    label: str
    """Its method in tables."""
    algorithm: str
    seed: int
    config: dict[str, Any]
    """The settings, without places on the machine."""
    environment: dict[str, Any]
    """Commit, versions of packages, and the task release of each domain."""
    task_fingerprints: dict[str, str]
    """A hash of the evaluation tasks of each domain: equal ones are the same benchmark."""
    r_matrix: RMatrix
    scores: dict[str, float | None]
    costs: Costs
    files: dict[str, str]
    """The SHA-256 of the files that prove the results, by their path in the run directory."""
    initial_model: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """The checksum of the initial model; None if no checkpoint is kept."""

    @model_validator(mode="after")
    def _is_finished(self) -> Self:
        missing = len(self.r_matrix.domains) + 1 - len(self.r_matrix.rows)
        if missing:
            raise ValueError(f"{self.label!r} lacks {missing} rows of its R-matrix")
        return self


class MissingRun(Record):
    """A planned run of a campaign that has no results."""

    label: str
    order: tuple[str, ...]
    seed: int
    reason: str
    """The first sentence of its error, or "not finished" if it did not end."""


class Submission(Record):
    """The runs of one campaign, or a single run."""

    format: Literal[1] = FORMAT
    name: str
    campaign: dict[str, Any] | None = None
    """The description of the campaign, with its primary score; None for a single run."""
    runs: tuple[SubmittedRun, ...]
    missing: tuple[MissingRun, ...] = ()
    digest: str = ""
    """The SHA-256 of everything else in the file."""

    def to_json(self) -> dict[str, Any]:
        """The contents of the file."""
        dumped = self.model_dump(mode="json")
        for entry, run in zip(dumped["runs"], self.runs, strict=True):
            entry["r_matrix"] = run.r_matrix.to_json()
            if run.initial_model is None:
                del entry["initial_model"]  # so that files without it keep their digest
        if not self.missing:
            del dumped["missing"]
        return dumped

    def computed_digest(self) -> str:
        """The digest that the contents have."""
        return _sha256(encode(self.to_json() | {"digest": ""}).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """The submission in a file, which may be compressed with gzip."""
        try:
            return cls.model_validate_json(_contents(path))
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"cannot read the submission {str(path)!r}: {error}") from error
        except ValidationError as error:
            raise ConfigError(
                f"{str(path)!r} is not a submission of format {FORMAT}: {first_problem(error)}; "
                "`grpo-cl submit` writes one"
            ) from error


class RunPlace(NamedTuple):
    """A run directory, and the label of its method."""

    root: Path
    label: str


def pack(source: Path, *, name: str | None = None) -> Submission:
    """The submission of a run directory, or of all finished runs of a campaign's directory.

    The other runs that the campaign's results plan are named in it, with the reason.
    """
    places, campaign, missing = run_places(source), campaign_of(source), missing_runs(source)
    if not places:
        raise ConfigError(
            f"none of the {len(missing)} runs of the campaign {str(source)!r} is finished; finish "
            "one with grpo-cl bench, then submit the campaign"
        )
    whole = Submission(
        name=name or (campaign["name"] if campaign else source.resolve().name),
        campaign=campaign,
        runs=tuple(pack_run(place) for place in places),
        missing=missing,
    )
    return whole.model_copy(update={"digest": whole.computed_digest()})


def campaign_of(source: Path) -> dict[str, Any] | None:
    """The description of the campaign in ``source`` as a submission has it; None for a run."""
    results = CampaignDir(source).results
    return _shareable(read_json(results)["campaign"]) if results.exists() else None


def write_submission(submission: Submission, path: Path) -> None:
    """Write the file, compressed if its name ends in ``.gz``."""
    if path.suffix != ".gz":
        write_json(path, submission.to_json())
        return
    # Without a time, the same submission is the same file.
    write_file(path, [gzip.compress(encode(submission.to_json()).encode(), mtime=0)])


def run_places(source: Path) -> list[RunPlace]:
    """The finished runs of a campaign, or the one run, in ``source``."""
    if not CampaignDir(source).results.exists():
        config = _settings(RunDir(source))
        return [RunPlace(source, str(config.get("cl_algorithm", "sequential")))]
    places: list[RunPlace] = []
    for run in _campaign_runs(source, finished=True):
        folder = file_name(f"{run['label']}.{'-'.join(run['order'])}.{run['seed']}")
        places.append(RunPlace(source / "runs" / folder, run["label"]))
    return places


def _campaign_runs(source: Path, *, finished: bool) -> list[dict[str, Any]]:
    """The runs in a campaign's results that are finished, or those that are not.

    These failed, never ran or did not end, or their files were changed: each has an error.
    """
    results = CampaignDir(source).results
    runs = read_json(results)["runs"] if results.exists() else []
    return [run for run in runs if bool(run["error"]) is not finished]


def missing_runs(source: Path) -> tuple[MissingRun, ...]:
    """The runs in a campaign's results that are not finished, with the reason."""
    return tuple(map(_missing_run, _campaign_runs(source, finished=False)))


def _missing_run(run: Mapping[str, Any]) -> MissingRun:
    reason = _PATH.sub(_without_folders, run["error"]).partition(". ")[0]
    return MissingRun(
        label=run["label"], order=run["order"], seed=run["seed"], reason=_shareable(reason)
    )


def task_fingerprints(config: GRPOConfig) -> dict[str, str]:
    """A hash of the evaluation tasks of each domain, as they are installed here."""
    loader = TaskDataLoader(config)
    fingerprints: dict[str, str] = {}
    for domain in config.task_order:
        # Skills are labels of a task: no policy sees them and no reward depends on them.
        tasks = [
            task.model_dump(mode="json", exclude={"skills"})
            for task in loader.evaluation_tasks(domain)
        ]
        fingerprints[domain] = _sha256(encode(tasks).encode())
    return fingerprints


def _require_installed_tasks(root: Path, recorded: Mapping[str, str], config: GRPOConfig) -> None:
    """Refuse a run whose tasks are not installed: their hash would be that of other tasks."""
    for domain, release in TaskDataLoader(config).releases.items():
        if recorded.get(domain, release) != release:
            raise ConfigError(
                f"the run {str(root)!r} has the {domain} tasks of {recorded[domain]!r}, and those "
                f"installed here are {release!r}; submit it with the version of grpo-cl and the "
                "tau2_data_dir that it was made with"
            )


def proof_files(run: RunDir) -> list[Path]:
    """The files of a run from which its results can be computed again, and its last model."""
    stages = sorted(run.root.glob("checkpoint_task_*/model/*.safetensors"))
    last = [path for path in stages if stages and path.parent == stages[-1].parent]
    named = (run.metrics_journal, run.trajectories_journal, run.r_matrix)
    evaluations = sorted(run.evaluations_dir.glob("*.jsonl.gz"))
    return [path for path in (*named, *evaluations, *last) if path.is_file()]


def file_hashes(run: RunDir) -> dict[str, str]:
    """The SHA-256 of each of the run's proof files."""
    return {path.relative_to(run.root).as_posix(): _file_sha256(path) for path in proof_files(run)}


def needs_code(settings: Mapping[str, Any]) -> bool:
    """Whether the tasks of these settings need code that is not installed: a file, or ``tools``."""
    named = encode([settings.get("task_order"), settings.get("domain_files")])
    return bool(settings.get("tools")) or is_in_file(named)


def shareable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a submission has them: without places, hosts and secrets."""
    return _shareable({name: value for name, value in settings.items() if name not in LOCATION})


def pack_run(place: RunPlace) -> SubmittedRun:
    """The results of a run and what proves them, read from its directory."""
    run = RunDir(place.root)
    settings = _settings(run)
    matrix = RMatrix.load(run.r_matrix)
    missing = len(matrix.domains) + 1 - len(matrix.rows)
    if missing:
        raise ConfigError(
            f"the run {str(place.root)!r} lacks {missing} of {len(matrix.domains) + 1} rows of its "
            "R-matrix; finish it with grpo-cl train --resume_from, then submit it"
        )
    environment: Mapping[str, Any] = read_json(run.environment) if run.environment.exists() else {}
    config = _config(settings, place.root)
    _require_installed_tasks(place.root, environment.get("task_releases") or {}, config)
    return SubmittedRun(
        label=place.label,
        algorithm=settings["cl_algorithm"],
        seed=settings["seed"],
        config=shareable_settings(settings),
        environment=_shareable({name: environment.get(name) for name in _ENVIRONMENT}),
        task_fingerprints=task_fingerprints(config),
        r_matrix=matrix,
        scores=dict(continual_scores(matrix.scores())),  # type: ignore[arg-type]  # a TypedDict
        costs=read_costs(place.root),
        files=file_hashes(run),
        initial_model=_initial_model(run),
    )


def _initial_model(run: RunDir) -> str | None:
    checkpoint = newest_checkpoint(run.checkpoints_dir)
    file = CheckpointFiles(checkpoint).initial_model if checkpoint else None
    return read_json(file)["checksum"] if file and file.exists() else None


def _contents(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    with gzip.open(path) as file:
        contents = file.read(MAX_BYTES + 1)
    if len(contents) > MAX_BYTES:
        raise ConfigError(
            f"{str(path)!r} has more than {MAX_BYTES} bytes after decompression; submit fewer runs"
        )
    return contents


def _settings(run: RunDir) -> dict[str, Any]:
    if not run.config.exists():
        raise ConfigError(
            f"{str(run.root)!r} is neither a run nor a campaign: it has no config.json and no "
            "results.json; give the directory of one"
        )
    return read_json(run.config)


def _config(settings: Mapping[str, Any], root: Path) -> GRPOConfig:
    try:
        return GRPOConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(
            f"the settings of {str(root)!r} are not valid here: {first_problem(error)}"
        ) from error


def _shareable(value: Any) -> Any:
    return _without_places(redact(value, variables=os.environ))


def _without_places(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_places(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(entry) for entry in value]
    if not isinstance(value, str):
        return value
    if "://" in value:
        return _HOST.sub("…", value)
    if value.startswith(("/", "~")) or re.match(r"[A-Za-z]:\\", value):
        return f"…/{_last_part(value)}"
    return value


def _without_folders(match: re.Match[str]) -> str:
    path = match[0].rstrip(r".,:;!?)]}>/\ ")
    return f"…/{_last_part(path)}" + match[0][len(path) :].lstrip(r"\/")


def _last_part(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip(r"\/"))[-1]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
