"""What the runs of a campaign say, one by one and together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from grpo_cl.algorithms import find_algorithm
from grpo_cl.bench.campaign import Campaign, Entry
from grpo_cl.bench.drift import drift_scores
from grpo_cl.bench.folder import CampaignDir
from grpo_cl.bench.ledger import NOTHING, Costs, costs, seconds
from grpo_cl.bench.plan import Job, Plan
from grpo_cl.errors import GRPOCLError
from grpo_cl.metrics.continual import continual_scores
from grpo_cl.metrics.curves import curve_scores
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.rundir import RunDir
from grpo_cl.types import Record


class Method(Record):
    """An algorithm as a reader has to know it."""

    label: str
    algorithm: str
    options: dict[str, Any]
    settings: dict[str, Any]
    stores: str
    """What it keeps of earlier domains."""
    needs_domain: bool
    """Whether it is told the domain when it is measured."""
    cost: str


class RunResult(Record):
    """One run."""

    label: str
    algorithm: str
    seed: int
    order: tuple[str, ...]
    fingerprint: str
    """The same for the same description."""
    shared_stage: str | None
    """The first stage it goes on from, if others do too."""
    error: str | None = None
    """Why it is not finished; what follows is then missing."""
    scores: dict[str, float | None] = Field(default_factory=dict)
    drift: dict[str, float] = Field(default_factory=dict)
    """After the last stage; empty where it was not measured."""
    costs: Costs | None = None
    r_matrix: RMatrix | None = None


class Gathered(NamedTuple):
    """The runs of a campaign, and what is not the same each time it is run."""

    methods: list[Method]
    runs: list[RunResult]
    spent: Costs
    """Of the campaign: a shared stage counts once."""
    times: dict[str, dict[str, float]]
    """Seconds by run, or by shared first stage; of a branch, those of its first stage too."""
    own_times: dict[str, dict[str, float]]
    """The same with the seconds of a shared first stage counted once."""

    def finished(self, label: str, order: Sequence[str]) -> list[RunResult]:
        """The finished runs of one algorithm in one order, by seed."""
        chosen = [run for run in self.runs if run.label == label and run.order == tuple(order)]
        return sorted((run for run in chosen if run.r_matrix), key=lambda run: run.seed)

    def orders(self, label: str) -> list[tuple[str, ...]]:
        """The orders an algorithm is run in, as the campaign has them."""
        return list(dict.fromkeys(run.order for run in self.runs if run.label == label))


def gather(campaign: Campaign, plan: Plan, folder: CampaignDir) -> Gathered:
    """Read every run of a campaign, finished or not."""
    runs = [_result(job, folder) for job in plan.runs]
    finished = {job.name: job for job in (*plan.trunks, *plan.runs) if _is_finished(job, folder)}
    trunk_costs = {
        job.name: costs(job.config.log_dir) for job in plan.trunks if job.name in finished
    }
    spent = sum(trunk_costs.values(), NOTHING)
    for job, run in zip(plan.runs, runs, strict=True):
        if run.costs is not None:
            shared = trunk_costs.get(job.trunk or "", NOTHING)
            spent = spent + _without(run.costs, shared)
    times = {name: seconds(job.config.log_dir) for name, job in finished.items()}
    return Gathered(
        methods=[_method(entry) for entry in campaign.algorithms],
        runs=runs,
        spent=spent,
        times=times,
        own_times={
            name: _own(times[name], times.get(job.trunk or "")) for name, job in finished.items()
        },
    )


def _is_finished(job: Job, folder: CampaignDir) -> bool:
    outcome = folder.outcome(job)
    return outcome is not None and outcome.error is None


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


def _result(job: Job, folder: CampaignDir) -> RunResult:
    assert job.entry is not None
    known = RunResult(
        label=job.entry.title,
        algorithm=job.entry.name,
        seed=job.config.seed,
        order=job.config.task_order,
        fingerprint=job.fingerprint,
        shared_stage=job.trunk,
    )
    outcome = folder.outcome(job)
    if outcome is None or outcome.error is not None:
        return known.model_copy(update={"error": outcome.error if outcome else "not finished"})
    return known.model_copy(update=_measured(job.config.log_dir))


def _measured(root: Path) -> dict[str, Any]:
    try:
        matrix = RMatrix.load(RunDir(root).r_matrix)
        spent = costs(root)
        metrics = RunDir(root).read_metrics()
    except GRPOCLError as error:  # somebody changed the files of a finished run
        return {"error": str(error)}
    return {
        "scores": {
            **continual_scores(matrix.scores()),
            **curve_scores(metrics, matrix.domains),
        },
        "drift": drift_scores(matrix),
        "costs": spent,
        "r_matrix": matrix,
    }


def _without(whole: Costs, part: Costs) -> Costs:
    kinds = {
        kind: {name: value - part.model_dump()[kind][name] for name, value in counts.items()}
        for kind, counts in whole.model_dump().items()
    }
    return Costs.model_validate(kinds)


def _own(whole: dict[str, float], part: dict[str, float] | None) -> dict[str, float]:
    return {kind: spent - (part[kind] if part else 0.0) for kind, spent in whole.items()}
