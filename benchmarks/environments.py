"""Cost of an environment: ours against parsing, copying and hashing the whole database.

    make bench-env

The baseline ("plain") is `inspect-evals`: parse the database for the episode, call its tools, parse
it again for the gold solution, hash both databases. Both run the same tasks in this process; the
figures are medians with quartiles.
"""

import argparse
import gc
import resource
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inspect_ai.tool import ToolError
from inspect_evals.tau2.airline.AirlineAgentTools import AirlineAgentTools
from inspect_evals.tau2.retail.RetailAgentTools import RetailAgentTools
from inspect_evals.tau2.telecom.environment import Environment as TelecomEnvironment
from inspect_evals.tau2.telecom.TelecomAgentTools import TelecomAgentTools
from inspect_evals.tau2.telecom.TelecomUserTools import TelecomUserTools

from grpo_cl.cli.output import table
from grpo_cl.config import RolloutConfig
from grpo_cl.envs import Domain, load_domain
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.rollout.baselines import scripted_recording
from grpo_cl.rollout.recordings import execute
from grpo_cl.types import Task, ToolCall

CALLS = 10
READS = {
    "airline": ToolCall(name="get_reservation_details", arguments={"reservation_id": "Z7GOZK"}),
    "retail": ToolCall(name="get_order_details", arguments={"order_id": "#W2378156"}),
    "telecom": ToolCall(name="get_details_by_id", arguments={"id": "L1002"}),
}
Times = dict[str, list[float]]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20, help="tasks per domain")
    parser.add_argument("--episodes", type=int, default=1000, help="concurrent episodes")
    arguments = parser.parse_args()
    rows: list[Sequence[object]] = [("domain", "what", "plain ms", "ours ms", "ratio")]
    for name in READS:
        rows += compare(load_domain(name), arguments.tasks)
    print(f"median [quartiles] of {arguments.tasks} tasks, {CALLS} calls per episode\n")
    print(table(rows), "\n")
    rows = [("domain", "user", "episodes", "episodes/s", "turns/s", "kB per environment")]
    for name in READS:
        for user in ("solo", "scripted"):
            rows.append(throughput(load_domain(name), arguments.episodes, user))
    print(table(rows))


def compare(domain: Domain, count: int) -> list[Sequence[object]]:
    """One table row per part of an episode."""
    oracle = RewardOracle({domain.name: domain})
    ours, plain = _times(), _times()
    tasks = [task for task in domain.tasks("base") if task.gold_actions][:count]
    _play_ours(domain, oracle, tasks[0], _times())  # parses the shared database
    for task in tasks:
        _play_plain(domain.name, task, plain)
        _play_ours(domain, oracle, task, ours)
    for times in (ours, plain):
        parts = zip(times["reset"], times["call"], times["score"], strict=True)
        times["episode"] = [reset + CALLS * call + score for reset, call, score in parts]
    return [
        (
            domain.name,
            what,
            _spread(plain[what]),
            _spread(ours[what]),
            f"{statistics.median(plain[what]) / statistics.median(ours[what]):.0f}x",
        )
        for what in ("reset", "call", "score", "episode")
    ]


def _times() -> Times:
    return {"reset": [], "call": [], "score": []}


def _timed(into: list[float], run: Callable[[], Any], share: int = 1) -> Any:
    start = time.perf_counter()
    value = run()
    into.append((time.perf_counter() - start) / share * 1000)
    return value


def _spread(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} [{low:.3f} {high:.3f}]"


def _calls(name: str, task: Task) -> list[ToolCall]:
    gold = [action.call for action in task.gold_actions][:CALLS]
    return gold + [READS[name]] * (CALLS - len(gold))


def _play_ours(domain: Domain, oracle: RewardOracle, task: Task, times: Times) -> None:
    calls = _calls(domain.name, task)
    environment = _timed(times["reset"], lambda: domain.environment(task))
    _timed(times["call"], lambda: [environment.call(call) for call in calls], CALLS)
    trajectory = execute(domain, task, scripted_recording(task, calls)).trajectory
    uncached = RewardOracle({domain.name: domain})  # without a cached gold state
    reward = _timed(times["score"], lambda: uncached.score(trajectory))
    assert reward == oracle.score(trajectory)


def _play_plain(name: str, task: Task, times: Times) -> None:
    environment = _timed(times["reset"], lambda: _plain_environment(name, task))
    calls = _calls(name, task)
    _timed(times["call"], lambda: [_plain_call(environment, call) for call in calls], CALLS)

    def score() -> bool:
        gold = _plain_environment(name, task)
        for action in task.gold_actions:
            _plain_call(gold, action.call)
        return [side.db.get_hash() for side in environment] == [side.db.get_hash() for side in gold]

    _timed(times["score"], score)


def _plain_environment(name: str, task: Task) -> tuple[Any, ...]:
    kinds = {"airline": (AirlineAgentTools,), "retail": (RetailAgentTools,)}
    sides: list[Any] = []
    # inspect-evals leaves a copy of the database in the temporary folder.
    with tempfile.TemporaryDirectory() as folder:
        previous, tempfile.tempdir = tempfile.tempdir, folder
        for kind in kinds.get(name, (TelecomAgentTools, TelecomUserTools)):
            side = kind(instance=uuid.uuid4().hex)
            side.initialize()
            sides.append(side)
        tempfile.tempdir = previous
    if name == "telecom":
        environment = TelecomEnvironment(user_tools=sides[1], tools=sides[0])
        for action in (task.initial_state and task.initial_state.initialization_actions) or ():
            side = sides[action.env_type == "user"]
            getattr(side, action.func_name)(**action.arguments)
            environment.sync_tools()
    return tuple(sides)


def _plain_call(environment: tuple[Any, ...], call: ToolCall) -> None:
    side = environment[call.requestor == "user"]
    function = getattr(side, call.name, None)  # inspect-evals has two tools outside its toolkits
    if function is None:
        return
    try:
        function(**call.arguments)
    except ToolError:
        return  # some gold calls fail on purpose


def throughput(domain: Domain, count: int, user: str) -> Sequence[object]:
    """Run many scripted episodes concurrently."""
    train_tasks = domain.tasks("train")
    tasks = [train_tasks[index % len(train_tasks)] for index in range(count)]
    actor = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
    config = RolloutConfig(user=user)
    run_episodes(actor, {domain.name: domain}, tasks[:10], config)
    start = time.perf_counter()
    trajectories = run_episodes(actor, {domain.name: domain}, tasks, config)
    seconds = time.perf_counter() - start
    turns = sum(message.role == "assistant" for t in trajectories for message in t.messages)
    rate = f"{count / seconds:.0f}", f"{turns / seconds:.0f}"
    return domain.name, user, count, *rate, f"{_live_kilobytes(domain, tasks):.0f}"


def _live_kilobytes(domain: Domain, tasks: Sequence[Task]) -> float:
    gc.collect()
    before = _resident()
    environments = [domain.environment(task) for task in tasks]
    for environment, task in zip(environments, tasks, strict=True):
        for action in task.gold_actions:
            environment.call(action.call)
    growth = _resident() - before
    assert len(environments) == len(tasks)
    return max(growth, 0) / len(environments)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


if __name__ == "__main__":
    main()
