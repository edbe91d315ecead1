"""The results of a campaign's runs: scores, drift, costs and times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from grpo_cl.algorithms import find_algorithm
from grpo_cl.campaigns.campaign import Campaign, Entry
from grpo_cl.campaigns.costs import ZERO_COSTS, Costs, read_costs, read_seconds
from grpo_cl.campaigns.directory import CampaignDir
from grpo_cl.campaigns.drift import drift_scores
from grpo_cl.campaigns.plan import Job, Plan
from grpo_cl.errors import ConfigError, GRPOCLError
from grpo_cl.metrics.continual import continual_scores
from grpo_cl.metrics.curves import curve_scores
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.resume import read_task_releases
from grpo_cl.types import Record


class Method(Record):
    """The description of an algorithm in the tables."""

    label: str
    algorithm: str
    options: dict[str, Any]
    settings: dict[str, Any]
    stores: str
    """The data it stores of earlier domains."""
    needs_domain: bool
    """Whether it must know the domain of a task at test time."""
    cost: str


class RunResult(Record):
    """One run."""

    label: str
    algorithm: str
    seed: int
    order: tuple[str, ...]
    fingerprint: str
    """A hash of the configuration."""
    shared_stage: str | None
    """The shared first stage that it continues, if any."""
    error: str | None = None
    """Why it is not finished; the fields below are then missing."""
    scores: dict[str, float | None] = Field(default_factory=dict)
    drift: dict[str, float] = Field(default_factory=dict)
    """Drift after the last stage; empty if it was not measured."""
    costs: Costs | None = None
    r_matrix: RMatrix | None = None


class CampaignResults(NamedTuple):
    """The results of all runs, and their times, which vary between repetitions."""

    methods: list[Method]
    runs: list[RunResult]
    spent: Costs
    """The cost of the campaign; a shared stage counts once."""
    times: dict[str, dict[str, float]]
    """Seconds by job; a run includes its shared first stage."""
    own_times: dict[str, dict[str, float]]
    """Seconds by job; a run excludes its shared first stage."""

    def finished(self, label: str, order: Sequence[str]) -> list[RunResult]:
        """The finished runs of one algorithm in one task order, by seed."""
        chosen = [run for run in self.runs if run.label == label and run.order == tuple(order)]
        return sorted((run for run in chosen if run.r_matrix), key=lambda run: run.seed)

    def orders(self, label: str) -> list[tuple[str, ...]]:
        """The task orders of an algorithm, as the campaign lists them."""
        return list(dict.fromkeys(run.order for run in self.runs if run.label == label))


def collect_results(campaign: Campaign, plan: Plan, directory: CampaignDir) -> CampaignResults:
    """Read every run of a campaign, finished or not."""
    releases: dict[str, str] = {}
    runs = [_result(job, directory, releases) for job in plan.runs]
    finished = {
        job.name: job for job in (*plan.shared_stages, *plan.runs) if directory.is_finished(job)
    }
    stage_costs = {
        job.name: read_costs(job.config.log_dir)
        for job in plan.shared_stages
        if job.name in finished
    }
    spent = sum(stage_costs.values(), ZERO_COSTS)
    for job, run in zip(plan.runs, runs, strict=True):
        if run.costs is not None:
            shared = stage_costs.get(job.shared_stage or "", ZERO_COSTS)
            spent = spent + _subtract(run.costs, shared)
    times = {name: read_seconds(job.config.log_dir) for name, job in finished.items()}
    return CampaignResults(
        methods=[_method(entry) for entry in campaign.algorithms],
        runs=runs,
        spent=spent,
        times=times,
        own_times={
            name: _own_times(times[name], times.get(job.shared_stage or ""))
            for name, job in finished.items()
        },
    )


def _method(entry: Entry) -> Method:
    kind = find_algorithm(entry.name)
    return Method(
        label=entry.title,
        algorithm=entry.name,
        options=entry.cl_options,
        settings=entry.settings,
        stores=kind.stores,
        needs_domain=kind.needs_domain,
        cost=kind.cost,
    )


def _result(job: Job, directory: CampaignDir, releases: dict[str, str]) -> RunResult:
    """The result of a job; ``releases`` has those of the tasks of earlier runs, by domain."""
    assert job.entry is not None
    result = RunResult(
        label=job.entry.title,
        algorithm=job.entry.name,
        seed=job.config.seed,
        order=job.config.task_order,
        fingerprint=job.fingerprint,
        shared_stage=job.shared_stage,
    )
    outcome = directory.outcome(job)
    if outcome is None or outcome.error is not None:
        return result.model_copy(update={"error": outcome.error if outcome else "not finished"})
    return result.model_copy(update=_measurements(job.config.log_dir, releases))


def _measurements(root: Path, releases: dict[str, str]) -> dict[str, Any]:
    try:
        _require_one_release(RunDir(root), releases)
        matrix = RMatrix.load(RunDir(root).r_matrix)
        costs = read_costs(root)
        metrics = RunDir(root).read_metrics()
    except GRPOCLError as error:  # the files of a finished run, or its tasks, were changed
        return {"error": str(error)}
    return {
        "scores": {
            **continual_scores(matrix.scores()),
            **curve_scores(metrics, matrix.domains),
        },
        "drift": drift_scores(matrix),
        "costs": costs,
        "r_matrix": matrix,
    }


def _require_one_release(run: RunDir, releases: dict[str, str]) -> None:
    for domain, release in read_task_releases(run).items():
        if releases.setdefault(domain, release) != release:
            raise ConfigError(
                f"its {domain} tasks are those of {release!r} and not of {releases[domain]!r}; "
                "scores of different releases are not comparable, so run the campaign in a new "
                "directory"
            )


def _subtract(whole: Costs, part: Costs) -> Costs:
    kinds = {
        kind: {name: value - part.model_dump()[kind][name] for name, value in counts.items()}
        for kind, counts in whole.model_dump().items()
    }
    return Costs.model_validate(kinds)


def _own_times(whole: dict[str, float], part: dict[str, float] | None) -> dict[str, float]:
    return {kind: spent - (part[kind] if part else 0.0) for kind, spent in whole.items()}
