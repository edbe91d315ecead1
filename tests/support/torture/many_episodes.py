"""Thousands of concurrent episodes: the same episodes as alone, at the same cost each."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_cl.config import RolloutConfig
from grpo_cl.envs import load_domain
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.types import Trajectory
from torture.cases import Bench, Case, Verdict, survived, wrong

COUNTS = (10, 100, 1_000, 10_000)
DOMAINS = ("airline", "retail", "telecom")


def many_episodes(bench: Bench) -> Iterator[Case]:
    """Run up to 10,000 scripted episodes at once."""
    for name in DOMAINS[: bench.amount(len(DOMAINS))]:
        counts = [count for count in COUNTS if count <= max(10, 10_000 * bench.scale)]
        yield Case(name, _counted(name, counts), tried=sum(counts))


def _counted(name: str, counts: list[int]) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        del folder
        domain = load_domain(name)
        tasks = domain.tasks("train")[: max(counts)]
        actor = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
        config = RolloutConfig(user="scripted")

        def play(first: int, count: int) -> list[Trajectory]:
            chosen = [tasks[index % len(tasks)] for index in range(first, first + count)]
            return run_episodes(actor, {name: domain}, chosen, config)

        alone = {task.id: _story(play(at, 1)[0]) for at, task in enumerate(tasks)}
        costs: list[str] = []
        for count in counts:
            total = max(count, len(tasks))  # the same mixture of tasks for every count
            start = time.process_time()
            rounds = [play(first, count) for first in range(0, total, count)]
            trajectories = [trajectory for each in rounds for trajectory in each]
            milliseconds = (time.process_time() - start) / len(trajectories) * 1000
            costs.append(f"{count:,}: {milliseconds:.2f} ms")
            changed = [one.task.id for one in trajectories if _story(one) != alone[one.task.id]]
            if changed:
                return wrong(f"{len(changed)} of {count} episodes differ, first {changed[0]}")
        return survived(f"CPU time of an episode, by concurrent episodes: {', '.join(costs)}")

    return attempt


def _story(trajectory: Trajectory) -> str:
    messages = "".join(message.model_dump_json() for message in trajectory.messages)
    return f"{trajectory.termination}{messages}"
