"""Which runs a campaign has, and which of their stages are trained once for several."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_cl.algorithms import find_algorithm
from grpo_cl.bench.campaign import Campaign, Entry
from grpo_cl.config import GRPOConfig
from grpo_cl.rundir import encode, file_name
from grpo_cl.tasks import TaskDataLoader

NOT_THE_RUNS = {"log_dir", "resume_from"}
"""Settings that say where a run is, not what it is."""
NOT_THE_FIRST_STAGES = {*NOT_THE_RUNS, "cl_algorithm", "cl_options", "replay_ratio", "task_order"}
"""Settings that mean nothing to a first stage that is shared."""
_DIGITS = 12


class Job(NamedTuple):
    """One process: a run, or the first stage that several runs share."""

    name: str
    config: GRPOConfig
    trunk: str | None = None
    """The name of the shared first stage this run goes on from."""
    entry: Entry | None = None
    """The algorithm of a run; None for a shared first stage."""

    @property
    def is_trunk(self) -> bool:
        """Whether this is a shared first stage."""
        return self.entry is None

    @property
    def fingerprint(self) -> str:
        """The same for the same description."""
        return _digest(self.config, NOT_THE_RUNS)


class Plan(NamedTuple):
    """The processes of a campaign."""

    trunks: tuple[Job, ...]
    runs: tuple[Job, ...]


class Estimate(NamedTuple):
    """Episodes, as far as they can be told before."""

    training: int
    """Of plain steps; an algorithm may add some."""
    shared: int
    """Training episodes that sharing saves."""
    evaluation: int


def make_plan(campaign: Campaign) -> Plan:
    """Every run, in the order of the file, and the first stages that more than one can go on from.

    What differs within a first stage is never shared: the policy, the seed, the first domain, the
    set of domains that is measured before it.
    """
    runs = [
        _run(campaign, entry, order, seed)
        for entry in campaign.algorithms
        for order in campaign.orders_of(entry)
        for seed in campaign.seeds
    ]
    groups: dict[str, list[Job]] = {}
    for run in runs:
        if (
            len(run.config.task_order) > 1
            and find_algorithm(run.config.cl_algorithm).shares_first_stage
        ):
            groups.setdefault(_trunk_name(run.config), []).append(run)
    shared = {name: group for name, group in groups.items() if len(group) > 1}
    trunk_of = {run.name: name for name, group in shared.items() for run in group}
    return Plan(
        trunks=tuple(_trunk(campaign, name, group) for name, group in shared.items()),
        runs=tuple(run._replace(trunk=trunk_of.get(run.name)) for run in runs),
    )


def estimate(plan: Plan) -> Estimate:
    """How many episodes a campaign plays."""
    training = [_training(run.config) for run in plan.runs]
    saved = [_training(run.config) // len(run.config.task_order) for run in plan.runs if run.trunk]
    spent = [_training(trunk.config) // len(trunk.config.task_order) for trunk in plan.trunks]
    return Estimate(sum(training), sum(saved) - sum(spent), _evaluation(plan))


def _run(campaign: Campaign, entry: Entry, order: tuple[str, ...], seed: int) -> Job:
    config = campaign.config(entry, order, seed)
    name = file_name(f"{entry.title}.{'-'.join(order)}.{seed}")
    return Job(name, _at(campaign.out / "runs" / name, config), entry=entry)


def _trunk(campaign: Campaign, name: str, group: Sequence[Job]) -> Job:
    config = group[0].config.model_copy(update={"cl_algorithm": "sequential", "cl_options": {}})
    return Job(name, _at(campaign.out / "trunks" / name, config))


def _at(folder: Path, config: GRPOConfig) -> GRPOConfig:
    return config.model_copy(update={"log_dir": folder})


def _trunk_name(config: GRPOConfig) -> str:
    head = config.task_order[0]
    digest = _digest(config, NOT_THE_FIRST_STAGES, measured=sorted(config.task_order))
    return file_name(f"{head}.{config.seed}.{digest}")


def _digest(config: GRPOConfig, left_out: set[str], **more: Sequence[str]) -> str:
    plain = config.model_dump(mode="json", exclude=left_out)
    return hashlib.sha256(encode({**plain, **more}).encode()).hexdigest()[:_DIGITS]


def _training(config: GRPOConfig) -> int:
    steps = config.num_steps_per_task * len(config.task_order)
    return steps * config.tasks_per_step * config.num_samples_per_prompt


def _evaluation(plan: Plan) -> int:
    counts: dict[str, dict[str, int]] = {}
    total = 0
    for job in (*plan.trunks, *plan.runs):
        key = _digest(job.config, {*NOT_THE_FIRST_STAGES, "seed"})
        if key not in counts:
            loader = TaskDataLoader(job.config)
            order, trials = job.config.task_order, job.config.evaluation.trials
            counts[key] = {name: trials * len(loader.evaluation_tasks(name)) for name in order}
        rows = 1 if job.is_trunk else len(job.config.task_order) + (job.trunk is None)
        total += rows * sum(counts[key].values()) + _within_stages(job, counts[key])
    return total


def _within_stages(job: Job, plays: Mapping[str, int]) -> int:
    """Episodes of the evaluations that ``eval_interval`` asks for."""
    order, interval = job.config.task_order, job.config.eval_interval
    times = job.config.num_steps_per_task // interval if interval else 0
    stages = range(1) if job.is_trunk else range(1 if job.trunk else 0, len(order))
    return times * sum(plays[name] for stage in stages for name in order[: stage + 1])
