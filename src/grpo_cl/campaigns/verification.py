"""Compute the results of a submission again, and name everything that differs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.campaigns.campaign import Campaign
from grpo_cl.campaigns.submission import (
    MissingRun,
    RunPlace,
    Submission,
    SubmittedRun,
    campaign_of,
    file_hashes,
    missing_runs,
    needs_code,
    pack_run,
    run_places,
    shareable_settings,
    task_fingerprints,
)
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import CheckpointError, ConfigError, TaskDataError
from grpo_cl.metrics.continual import Counts, continual_scores
from grpo_cl.metrics.rmatrix import Cell, DomainFacts, measure
from grpo_cl.rewards import RewardOracle
from grpo_cl.rewards.advantages import INFRASTRUCTURE
from grpo_cl.runs.episodes import RecordedEpisode, recorded_episode
from grpo_cl.runs.evaluation_episodes import EvaluationEpisode, read_evaluations
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.settings import read_settings
from grpo_cl.storage.files import read_json
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer.evaluate import domain_facts
from grpo_cl.types import Reward, RewardType, first_problem

TOLERANCE = 1e-9
"""Numbers that differ by less are equal: a mean of floats depends on its order."""
MAX_NAMED = 20
"""Differing episodes that are named for each run; the rest is counted."""
_RECORDED = ("label", "environment", "r_matrix", "costs", "initial_model")
"""What a run directory has as it is; the rest of a submission follows from the settings, the
R-matrix and the hashes."""


class Verification(NamedTuple):
    """What was computed again, and what differs from the submission."""

    checked: list[str]
    differences: list[str]


def verify(submission: Submission, source: Path | None = None) -> Verification:
    """Check a submission by itself, and with ``source`` against its run or campaign directory."""
    found = Verification([], [])
    found.checked.append(f"the digest of {submission.name!r}")
    if submission.digest != submission.computed_digest():
        found.differences.append(
            "the file was changed after it was written: its digest is "
            f"{submission.digest[:12]}…, its contents have {submission.computed_digest()[:12]}…"
        )
    for run in submission.runs:
        _verify_identity(run, found)
        _verify_scores(run, found)
        _verify_tasks(run, found)
    _verify_plan(submission, found)
    if source is not None:
        _verify_directories(submission, source, found)
    return found


def _name(run: SubmittedRun) -> str:
    return f"{run.label}, {' → '.join(run.r_matrix.domains)}, seed {run.seed}"


def _verify_identity(run: SubmittedRun, found: Verification) -> None:
    """The algorithm, the seed and the domains are those of the settings."""
    given = (run.algorithm, run.seed, list(run.r_matrix.domains))
    for name, value in zip(("cl_algorithm", "seed", "task_order"), given, strict=True):
        if run.config.get(name) != value:
            found.differences.append(
                f"{_name(run)}: {name} is {value}, in its settings {run.config.get(name)}"
            )


def _verify_scores(run: SubmittedRun, found: Verification) -> None:
    """The scores follow from the R-matrix, and the mean of a cell from its counts."""
    scores: Mapping[str, Any] = dict(continual_scores(run.r_matrix.scores()))
    for name, value in scores.items():
        _compare(f"{_name(run)}: {name}", run.scores.get(name), value, found)
    for domain, facts in run.r_matrix.facts.items():
        _verify_means(run, domain, facts, found)
    count = sum(len(row.cells) for row in run.r_matrix.rows)
    found.checked.append(f"{_name(run)}: {len(scores)} scores and {count} cells")


def _verify_means(run: SubmittedRun, domain: str, facts: DomainFacts, found: Verification) -> None:
    """Mean rewards follow from the counts of a domain whose rewards are 0 or 1."""
    if RewardType.ANSWERS in (facts.basis or ()):
        return
    for after, cell in _cells(run, domain):
        if cell.tasks:
            place = f"{_name(run)}: mean reward of {domain} after {after}"
            _compare(place, cell.mean, cell.pass_rate, found)


def _cells(run: SubmittedRun, domain: str) -> list[tuple[str, Cell]]:
    """Every evaluation of a domain, with the stage before it."""
    return [(row.after, row.cells[domain]) for row in run.r_matrix.rows if domain in row.cells]


def _verify_tasks(run: SubmittedRun, found: Verification) -> None:
    """The evaluation tasks and the floors, if the tasks are installed in the same release."""
    if needs_code(run.config):
        found.differences.append(
            f"{_name(run)}: its tasks need code that is not installed (domain_files or tools), "
            "which a verification never imports; publish the domain as an entry point"
        )
        return
    try:
        config = GRPOConfig.model_validate(run.config)
        fingerprints = task_fingerprints(config)
    except (ValidationError, ConfigError, TaskDataError) as error:
        reason = str(error).splitlines()[0]
        found.checked.append(f"{_name(run)}: tasks not checked: {reason}")
        return
    loader = TaskDataLoader(config)
    for domain, fingerprint in fingerprints.items():
        if run.task_fingerprints.get(domain) != fingerprint:
            theirs = (run.environment.get("task_releases") or {}).get(domain)
            found.differences.append(
                f"{_name(run)}: the evaluation tasks of {domain} ({theirs}) are not those "
                f"installed here ({loader.releases[domain]})"
            )
            continue
        _verify_counts(run, domain, loader, found)
        facts, computed = run.r_matrix.facts.get(domain), domain_facts(domain, loader)
        if facts is None:
            _verify_means(run, domain, computed, found)
        if facts is None or facts.floor_tasks is None:
            found.checked.append(
                f"{_name(run)}: floors of {domain} not checked: they are not named"
            )
        elif facts != computed:
            found.differences.append(f"{_name(run)}: other floors of {domain} than computed here")
    found.checked.append(f"{_name(run)}: tasks and floors of {', '.join(fingerprints)}")


def _verify_counts(
    run: SubmittedRun, domain: str, loader: TaskDataLoader, found: Verification
) -> None:
    """Every evaluation of a domain has all its tasks, each with the trials of the settings."""
    ids = {task.id for task in loader.evaluation_tasks(domain)}
    trials = loader.config.evaluation.trials
    for after, cell in _cells(run, domain):
        count = cell.num_episodes + (cell.left_out or 0)
        is_known = ids.issuperset(cell.tasks)
        most = max((n for _, n in cell.tasks.values()), default=0)
        if not is_known or most > trials or count != len(ids) * trials:
            found.differences.append(
                f"{_name(run)}: {domain} after {after} has {count} episodes of {len(cell.tasks)} "
                f"tasks; its settings give {len(ids)} tasks with {trials} trial(s)"
            )


def _verify_plan(submission: Submission, found: Verification) -> None:
    """Each planned run of the campaign stands once among the runs or the missing ones."""
    if submission.campaign is None:
        return
    try:
        campaign = Campaign.model_validate({**submission.campaign, "out": "."})
        if needs_code(campaign.base):
            return
        planned = {
            (entry.title, order, seed)
            for entry in campaign.algorithms
            for order in campaign.orders_of(entry)
            for seed in campaign.seeds
        }
    except ValidationError as error:
        found.checked.append(f"planned runs not counted: {first_problem(error)}")
        return
    given = Counter((run.label, run.r_matrix.domains, run.seed) for run in submission.runs)
    given += _counted(submission.missing)
    for label, order, seed in sorted(planned | set(given)):
        place = label, order, seed
        if given[place] != (place in planned):
            found.differences.append(
                f"{label}, {' → '.join(order)}, seed {seed}: {given[place]} time(s) in the file, "
                f"planned {int(place in planned)} time(s) by its campaign"
            )
    found.checked.append(f"{len(planned)} planned run(s) of the campaign")


def _verify_directories(submission: Submission, source: Path, found: Verification) -> None:
    _verify_missing(submission, source, found)
    places = run_places(source)
    if len(places) != len(submission.runs):
        found.differences.append(
            f"{source} has {len(places)} run(s), the submission {len(submission.runs)}"
        )
        return
    if campaign_of(source) != submission.campaign:
        found.differences.append(f"the campaign is not that of {source}")
    for run, place in zip(submission.runs, places, strict=True):
        _verify_files(run, place, found)


def _verify_missing(submission: Submission, source: Path, found: Verification) -> None:
    """The submission names each run without results once, and no other."""
    given, actual = _counted(submission.missing), _counted(missing_runs(source))
    for run in {**actual, **given}:
        if given[run] != actual[run]:
            label, order, seed = run
            found.differences.append(
                f"{label}, {' → '.join(order)}, seed {seed}: named {given[run]} time(s) as a "
                f"missing run, {source} has {actual[run]}"
            )
    found.checked.append(f"{actual.total()} missing run(s)")


def _counted(runs: Sequence[MissingRun]) -> Counter[tuple[str, tuple[str, ...], int]]:
    return Counter((run.label, run.order, run.seed) for run in runs)


def _verify_files(run: SubmittedRun, place: RunPlace, found: Verification) -> None:
    """The run directory has what the submission says; then its episodes are scored again."""
    files = RunDir(place.root)
    # Compared before anything is loaded: settings can name code, which is never imported here.
    if shareable_settings(read_json(files.config)) != run.config:
        found.differences.append(f"{_name(run)}: other settings than in {files.config}")
        return
    if needs_code(run.config):
        return
    hashes = file_hashes(files)
    for name in sorted({*hashes, *run.files}):
        if hashes.get(name) != run.files.get(name):
            what = "is missing" if name not in hashes else "was changed"
            what = "is not in the submission" if name not in run.files else what
            found.differences.append(f"{_name(run)}: {name} {what}")
    found.checked.append(f"{_name(run)}: hashes of {len(hashes)} files")
    try:
        packed = pack_run(place)
    except (CheckpointError, ConfigError) as error:
        found.differences.append(f"{_name(run)}: {error}")
    else:
        found.differences.extend(
            f"{_name(run)}: {field} is not that of {place.root}"
            for field in _RECORDED
            # A submission need not name the initial model.
            if getattr(run, field) not in (None, getattr(packed, field))
        )
        if run.initial_model is None:
            found.checked.append(f"{_name(run)}: initial model not checked: it is not named")
    _verify_episodes(run, place, found)


def _verify_episodes(run: SubmittedRun, place: RunPlace, found: Verification) -> None:
    """Score the stored episodes again, and compute the cells from their rewards."""
    files = RunDir(place.root)
    config = read_settings(files.config)
    loader = TaskDataLoader(config)
    oracle = RewardOracle(loader.domains, basis=config.reward.basis)
    kept = _KeptEpisodes(loader)
    counts: Counter[str] = Counter()
    differing: list[str] = []
    for episode in read_evaluations(files):
        counts["evaluation"] += 1
        differing += kept.add(episode, oracle)
    for step, episode in _training_episodes(files, loader):
        counts["training"] += 1
        where = f"training episode of {episode.trajectory.task.id} in step {step}"
        assert episode.reward is not None
        differing += _reward_differences(where, episode.reward, oracle.score(episode.trajectory))
    found.differences.extend(f"{_name(run)}: {text}" for text in differing[:MAX_NAMED])
    if len(differing) > MAX_NAMED:
        more = len(differing) - MAX_NAMED
        found.differences.append(f"{_name(run)}: {more} more episodes differ")
    scored = " and ".join(f"{count} {kind}" for kind, count in counts.items()) or "no"
    found.checked.append(f"{_name(run)}: {scored} episodes scored again")
    _verify_cells(run, kept, config.logging.keep_evaluation_episodes, found)


class _KeptEpisodes:
    """The kept evaluation episodes of each cell, with rewards computed by the installed tasks."""

    def __init__(self, loader: TaskDataLoader) -> None:
        self._tasks = {
            (domain, task.id): task
            for domain in loader.config.task_order
            for task in loader.evaluation_tasks(domain)
        }
        self.counts: Counter[tuple[str, str]] = Counter()
        self._rewards: defaultdict[tuple[str, str], defaultdict[str, list[Reward]]]
        self._rewards = defaultdict(lambda: defaultdict(list))

    def add(self, episode: EvaluationEpisode, oracle: RewardOracle) -> list[str]:
        """Count an episode; returns what differs from the installed task and from its reward."""
        domain, task_id = episode.task.domain, episode.task.id
        where = f"evaluation episode of {task_id} after {episode.after}"
        self.counts[episode.after, domain] += 1
        task = self._tasks.get((domain, task_id))
        if task is None:
            return [f"{where}: {domain} has no such evaluation task here"]
        # The tasks in a file of episodes could have been made easier.
        reward = oracle.score(episode.trajectory.model_copy(update={"task": task}))
        if episode.trajectory.termination not in INFRASTRUCTURE:
            rewards = self._rewards[episode.after, domain][task_id]
            rewards.append(episode.reward if reward.not_judged else reward)
        other = [] if task == episode.task else [f"{where}: another task than the installed one"]
        return other + _reward_differences(where, episode.reward, reward)

    def cell(self, after: str, domain: str) -> Cell | None:
        """What follows from the episodes of a cell; None without any."""
        rewards = self._rewards.get((after, domain))
        return measure(rewards) if rewards else None


def _verify_cells(run: SubmittedRun, kept: _KeptEpisodes, limit: int, found: Verification) -> None:
    """The cells follow from their episodes, of which at most ``limit`` were kept."""
    cells = {(row.after, d): cell for row in run.r_matrix.rows for d, cell in row.cells.items()}
    for after, domain in sorted({*kept.counts} - {*cells}):
        place = f"{_name(run)}: {domain} after {after}"
        found.differences.append(f"{place}: episodes of a cell that is not in the R-matrix")
    whole = 0
    for (after, domain), cell in cells.items():
        place = f"{_name(run)}: {domain} after {after}"
        count = kept.counts[after, domain]
        expected = min(limit, cell.num_episodes + (cell.left_out or 0))
        if count != expected:
            found.differences.append(f"{place}: {count} episodes are kept, {expected} were")
        computed = kept.cell(after, domain)
        if computed is not None and not _is_part(computed.tasks, cell.tasks):
            found.differences.append(f"{place}: other successes of tasks than its episodes")
        if computed is not None and computed.num_episodes >= cell.num_episodes:
            whole += 1
            _compare(f"{place}: mean reward", cell.mean, computed.mean, found)
    found.checked.append(
        f"{_name(run)}: {whole} of {len(cells)} cells computed from their episodes"
    )


def _is_part(some: Counts, every: Counts) -> bool:
    """Whether the successes and failures of some episodes are among those of every episode."""
    return all(
        task in every
        and successes <= every[task][0]
        and trials - successes <= every[task][1] - every[task][0]
        for task, (successes, trials) in some.items()
    )


def _training_episodes(
    files: RunDir, loader: TaskDataLoader
) -> Iterator[tuple[int, RecordedEpisode]]:
    if not files.trajectories_journal.exists():
        return
    for line in read_journal(files.trajectories_journal):
        task = loader.domains[line["domain"]].task(line["task_id"])
        yield line["step"], recorded_episode(line, task)


def _reward_differences(where: str, recorded: Reward, computed: Reward) -> list[str]:
    if computed.not_judged:
        return []
    if isclose(recorded.value, computed.value, rel_tol=0.0, abs_tol=TOLERANCE):
        return []
    return [f"{where}: recorded reward {recorded.value:g}, computed {computed.value:g}"]


def _compare(place: str, given: float | None, computed: float | None, found: Verification) -> None:
    if given is None or computed is None:
        is_equal = given is computed
    else:
        is_equal = isclose(given, computed, rel_tol=0.0, abs_tol=TOLERANCE)
    if not is_equal:
        found.differences.append(f"{place} is {given}, computed is {computed}")
