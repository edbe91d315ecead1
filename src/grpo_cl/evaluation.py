"""Measure a policy on a domain."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence

from grpo_cl.advantages import INFRASTRUCTURE
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ModelCallError
from grpo_cl.metrics.rmatrix import Cell, Drift, measure
from grpo_cl.rewards import Scored
from grpo_cl.types import Reward, Task, TokenTrace, Trajectory


def episode_seed(*parts: object) -> int:
    """A seed for one episode from everything that makes it this one."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


Play = Callable[[Sequence[Task], Sequence[int]], Sequence[Trajectory]]
"""Plays an episode of each task with its seed."""
Score = Callable[[Sequence[Trajectory]], Sequence[Scored]]
"""Scores episodes; where the judge fails, their ending says so."""
Compare = Callable[[Sequence[TokenTrace]], Drift | None]
"""Compares the policy with earlier ones on the tokens it wrote."""


def evaluate(
    play: Play,
    tasks: Sequence[Task],
    score: Score,
    config: GRPOConfig,
    *,
    compare: Compare | None = None,
) -> Cell:
    """Play each task as often as the config says.

    Every episode counts, whatever happened in it, but for those that a failing endpoint ended:
    they say nothing about the policy, and the cell says how many they were.
    """
    plays = [task for task in tasks for _ in range(config.evaluation.trials)]
    seeds = [
        episode_seed(config.seed, "evaluation", task.id, number % config.evaluation.trials)
        for number, task in enumerate(plays)
    ]
    played = play(plays, seeds)
    told = require_told(score(played))
    rewards: defaultdict[str, list[Reward]] = defaultdict(list)
    for trajectory, reward in told:
        rewards[trajectory.task.id].append(reward)
    drift = compare([episode.tokens for episode in played if episode.tokens]) if compare else None
    left_out = len(played) - len(told) or None
    return measure(rewards).model_copy(update={"drift": drift, "left_out": left_out})


def require_told(scored: Sequence[Scored]) -> list[Scored]:
    """The episodes that say something about the policy; none at all is an error."""
    told = [one for one in scored if one.trajectory.termination not in INFRASTRUCTURE]
    if told or not scored:
        return told
    calls = [call for one in scored for call in one.trajectory.model_calls if call.error]
    reason = calls[-1].error if calls else scored[-1].reward.reason
    raise ModelCallError(
        f"none of {len(scored)} episodes could be played and judged to the end, the last because: "
        f"{reason}. Mend the endpoint; a run goes on with --resume_from"
    )
