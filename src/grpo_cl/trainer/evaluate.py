"""Evaluate a policy on the evaluation tasks of one domain: one cell of the R-matrix."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ModelCallError
from grpo_cl.metrics.rmatrix import Cell, DomainFacts, Drift, measure
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.rewards.advantages import INFRASTRUCTURE
from grpo_cl.rollout.baselines import score_floors
from grpo_cl.types import Reward, Task, Termination, TokenTrace, Trajectory

Play = Callable[[Sequence[Task], Sequence[int]], Sequence[ScoredTrajectory]]
"""Plays and scores one episode per task and seed."""
MeasureDrift = Callable[[Sequence[TokenTrace]], Drift | None]
"""Compares the policy with earlier ones on the tokens it generated."""
KeepEpisodes = Callable[[Sequence[ScoredTrajectory]], None]
"""Receives the episodes of an evaluation, those with infrastructure errors too."""


def episode_seed(*parts: object) -> int:
    """The seed of one episode, hashed from everything that identifies it."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def evaluate(
    play: Play,
    tasks: Sequence[Task],
    config: GRPOConfig,
    *,
    measure_drift: MeasureDrift | None = None,
    keep: KeepEpisodes | None = None,
) -> Cell:
    """Play each task ``config.evaluation.trials`` times and average the rewards.

    Every episode counts, except those that ended with an infrastructure error: they say nothing
    about the policy, and the cell counts them as ``left_out``.
    """
    repeated = [task for task in tasks for _ in range(config.evaluation.trials)]
    seeds = [
        episode_seed(config.seed, "evaluation", task.id, index % config.evaluation.trials)
        for index, task in enumerate(repeated)
    ]
    scored = play(repeated, seeds)
    if keep is not None:
        keep(scored)
    valid = require_valid(scored)
    rewards: defaultdict[str, list[Reward]] = defaultdict(list)
    for trajectory, reward in valid:
        rewards[trajectory.task.id].append(reward)
    drift = None
    if measure_drift is not None:
        traces = [episode.trajectory.tokens for episode in scored]
        drift = measure_drift([trace for trace in traces if trace])
    counts = {
        "left_out": len(scored) - len(valid),
        **outcome_counts([episode.trajectory for episode in valid]),
    }
    found = {name: count for name, count in counts.items() if count}
    return measure(rewards).model_copy(update={"drift": drift, **found})


def domain_facts(name: str, loader: TaskDataLoader) -> DomainFacts:
    """The floors of a domain on its evaluation tasks, and the components of its rewards.

    Floor policies are scored without models: by the reward of a run without a judge.
    """
    tasks, config = loader.evaluation_tasks(name), loader.config
    oracle = RewardOracle(loader.domains, basis=config.reward.basis)
    is_solo = config.rollout.user == "solo"
    floors = score_floors(loader.domains[name], tasks, oracle, solo=is_solo)
    criteria = [task.evaluation_criteria for task in tasks]
    return DomainFacts(
        idle=fmean(one.idle for one in floors),
        transfer=fmean(one.transfer for one in floors),
        repeat_reads=fmean(one.repeat_reads for one in floors),
        spam_writes=fmean(one.spam_writes for one in floors),
        floor_tasks=tuple(one.task_id for one in floors if one.is_solved),
        basis=tuple(sorted({part for found in criteria if found for part in found.reward_basis})),
    )


def outcome_counts(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Episodes that ended with a full context, and those without a tool call of the agent."""
    full = Termination.CONTEXT_WINDOW_EXCEEDED
    return {
        "context_window_exceeded": sum(t.termination is full for t in trajectories),
        "no_tool_call": sum(not t.has_agent_call for t in trajectories),
    }


def require_valid(scored: Sequence[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """The episodes without an infrastructure error; raises if there are none."""
    valid = [one for one in scored if one.trajectory.termination not in INFRASTRUCTURE]
    if valid or not scored:
        return valid
    failed = [call for one in scored for call in one.trajectory.model_calls if call.error]
    reason = failed[-1].error if failed else scored[-1].reward.reason
    raise ModelCallError(
        f"none of {len(scored)} episodes could be played and judged to the end, the last because: "
        f"{reason and reason.rstrip('.')}. Fix the endpoint, or its model and URL in the settings, "
        "then continue the run with --resume_from"
    )
