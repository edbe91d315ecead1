"""The runs of a campaign, and the first stages that several of them share."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cl.algorithms import find_algorithm
from grpo_cl.campaigns.campaign import Campaign, Entry
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.runs.layout import file_name
from grpo_cl.runs.settings import LOCATION
from grpo_cl.storage.encoding import encode

_NOT_IN_FIRST_STAGE = {*LOCATION, "cl_algorithm", "cl_options", "replay_ratio", "task_order"}
"""Settings without effect on a shared first stage."""
PLACES = ("tau2_data_dir", "models.cache_dir")
"""Settings that name directories of this machine: data, and the cache of replies."""
_DIGITS = 12


class Job(NamedTuple):
    """One process: a run, or the first stage that several runs share."""

    name: str
    config: GRPOConfig
    shared_stage: str | None = None
    """The name of the shared first stage that this run continues."""
    entry: Entry | None = None
    """The algorithm of a run; None for a shared first stage."""

    @property
    def is_shared_stage(self) -> bool:
        """Whether this is a shared first stage."""
        return self.entry is None

    @property
    def fingerprint(self) -> str:
        """A hash of the configuration, without where the run is stored."""
        return _digest(self.config, set(LOCATION))


class Plan(NamedTuple):
    """The jobs of a campaign."""

    shared_stages: tuple[Job, ...]
    runs: tuple[Job, ...]


class Estimate(NamedTuple):
    """Episodes that a campaign will play, as far as the configuration determines them."""

    training: int
    """Episodes of plain steps; an algorithm may add some."""
    shared: int
    """Training episodes saved by sharing first stages."""
    evaluation: int


def make_plan(campaign: Campaign) -> Plan:
    """Every run, in the order of the file, and the first stages that more than one run can share.

    Runs share a first stage if everything that affects it is equal: the policy, the seed, the
    first domain, and the set of domains that is evaluated before it.
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
            groups.setdefault(_stage_name(run.config), []).append(run)
    shared = {name: group for name, group in groups.items() if len(group) > 1}
    stage_of = {run.name: name for name, group in shared.items() for run in group}
    return Plan(
        shared_stages=tuple(_shared_stage(campaign, name, group) for name, group in shared.items()),
        runs=tuple(run._replace(shared_stage=stage_of.get(run.name)) for run in runs),
    )


def estimate(plan: Plan) -> Estimate:
    """The number of episodes that a campaign plays."""
    training = [_training(run.config) for run in plan.runs]
    saved = [
        _training(run.config) // len(run.config.task_order) for run in plan.runs if run.shared_stage
    ]
    spent = [
        _training(stage.config) // len(stage.config.task_order) for stage in plan.shared_stages
    ]
    return Estimate(sum(training), sum(saved) - sum(spent), _evaluation(plan))


def _run(campaign: Campaign, entry: Entry, order: tuple[str, ...], seed: int) -> Job:
    config = campaign.config(entry, order, seed)
    name = file_name(f"{entry.title}.{'-'.join(order)}.{seed}")
    return Job(name, _at(campaign.out / "runs" / name, config), entry=entry)


def _shared_stage(campaign: Campaign, name: str, group: Sequence[Job]) -> Job:
    config = group[0].config.model_copy(update={"cl_algorithm": "sequential", "cl_options": {}})
    return Job(name, _at(campaign.out / "shared_stages" / name, config))


def _at(log_dir: Path, config: GRPOConfig) -> GRPOConfig:
    return config.model_copy(update={"log_dir": log_dir})


def _stage_name(config: GRPOConfig) -> str:
    head = config.task_order[0]
    digest = _digest(config, _NOT_IN_FIRST_STAGE, measured=sorted(config.task_order))
    return file_name(f"{head}.{config.seed}.{digest}")


def _digest(config: GRPOConfig, excluded: set[str], **more: Sequence[str]) -> str:
    left_out: dict[str, Any] = dict.fromkeys(excluded, True)
    for place in PLACES:  # a campaign may be continued on another machine
        section, _, name = place.rpartition(".")
        left_out |= {section: {name}} if section else {name: True}
    plain = config.model_dump(mode="json", exclude=left_out)
    return hashlib.sha256(encode({**plain, **more}).encode()).hexdigest()[:_DIGITS]


def _training(config: GRPOConfig) -> int:
    steps = config.num_steps_per_task * len(config.task_order)
    return steps * config.tasks_per_step(world_size=1) * config.num_samples_per_prompt


def _evaluation(plan: Plan) -> int:
    counts: dict[str, dict[str, int]] = {}
    total = 0
    for job in (*plan.shared_stages, *plan.runs):
        key = _digest(job.config, {*_NOT_IN_FIRST_STAGE, "seed"})
        if key not in counts:
            loader = TaskDataLoader(job.config)
            order, trials = job.config.task_order, job.config.evaluation.trials
            counts[key] = {name: trials * len(loader.evaluation_tasks(name)) for name in order}
        rows = 1 if job.is_shared_stage else len(job.config.task_order) + (job.shared_stage is None)
        total += rows * sum(counts[key].values()) + _within_stages(job, counts[key])
    return total


def _within_stages(job: Job, episodes: Mapping[str, int]) -> int:
    """Episodes of the evaluations that ``eval_interval`` adds within stages."""
    order, interval = job.config.task_order, job.config.eval_interval
    # At the end of a stage all domains are evaluated anyway.
    times = (job.config.num_steps_per_task - 1) // interval if interval else 0
    stages = range(1) if job.is_shared_stage else range(1 if job.shared_stage else 0, len(order))
    return times * sum(episodes[name] for stage in stages for name in order[: stage + 1])
