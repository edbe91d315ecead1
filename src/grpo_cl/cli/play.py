"""``grpo-cl play``: be the agent of a task, or watch its solution being played."""

import argparse
import ast
import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from grpo_cl.audit import audit_task
from grpo_cl.cli.world import chosen_domains, find_task, printable, table, transcript
from grpo_cl.config import RolloutConfig
from grpo_cl.domains import Domain
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import Scene, ScriptedActor, run_episodes
from grpo_cl.types import Message, Reward, Task, ToolCall, Trajectory
from grpo_cl.users.ticket import ticket

HELP = (
    "Write to the user, or call a tool: name(argument='value', …) or name {json}.\n"
    ":tools lists the tools, :policy shows the rules, :quit ends."
)


def play(arguments: argparse.Namespace) -> int:
    """Play one task with its transcript, or many with their scores."""
    domains = chosen_domains(arguments)
    config = RolloutConfig(user=arguments.user, max_turns=arguments.max_turns)
    if arguments.count:
        return _play_many(domains, arguments, config)
    domain, task = _chosen_task(domains, arguments)
    if arguments.scripted:
        trajectory = _run([domain], [task], config)[0]
        shown = 0
    else:
        trajectory, shown = _play_by_hand(domain, task, config)
    reward = RewardOracle({domain.name: domain}).score(trajectory)
    if arguments.json:
        print(json.dumps(_entry(domain, trajectory, reward)))
        return 0
    for message in trajectory.messages[shown:]:
        print(transcript(message))
    print(_verdict(trajectory, reward))
    return 0


def _chosen_task(domains: Sequence[Domain], arguments: argparse.Namespace) -> tuple[Domain, Task]:
    if arguments.task:
        return find_task(domains, arguments.task)
    return domains[0], _split(domains[0], arguments.split)[0]


def _split(domain: Domain, split: str) -> Sequence[Task]:
    return domain.tasks(split if split in domain.splits else "base")


def gold_calls(task: Task) -> list[ToolCall]:
    """The solution as calls."""
    return [action.call for action in task.gold_actions]


def gold_closing(task: Task) -> str:
    """Everything the solution must tell the user."""
    criteria = task.evaluation_criteria
    told = (criteria.communicate_info or ()) if criteria else ()
    return f"For your records: {'; '.join(told)}." if told else ""


def _run(
    domains: Sequence[Domain], tasks: Sequence[Task], config: RolloutConfig
) -> list[Trajectory]:
    actor = ScriptedActor(gold_calls, closing=gold_closing)
    return run_episodes(actor, {domain.name: domain for domain in domains}, tasks, config)


def _play_many(
    domains: Sequence[Domain], arguments: argparse.Namespace, config: RolloutConfig
) -> int:
    rows: list[Sequence[object]] = [
        ("domain", "episodes", "mean reward", "do-nothing floor", "turns", "seconds")
    ]
    for domain in domains:
        tasks = _split(domain, arguments.split)[: arguments.count]
        trajectories = _run([domain], tasks, config)
        oracle = RewardOracle({domain.name: domain})
        rewards = [oracle.score(trajectory) for trajectory in trajectories]
        if arguments.json:
            for trajectory, reward in zip(trajectories, rewards, strict=True):
                print(json.dumps(_entry(domain, trajectory, reward)))
        floor = fmean(audit_task(domain, task).idle for task in tasks)
        turns = fmean(sum(m.role == "assistant" for m in t.messages) for t in trajectories)
        rows.append(
            (
                domain.name,
                len(tasks),
                f"{fmean(reward.value for reward in rewards):.2f}",
                f"{floor:.2f}",
                f"{turns:.1f}",
                f"{max(t.duration_s for t in trajectories):.2f}",
            )
        )
    if not arguments.json:
        print(table(rows))
    return 0


def _entry(domain: Domain, trajectory: Trajectory, reward: Reward) -> dict[str, object]:
    return {
        "domain": domain.name,
        "release": domain.release,
        "task_id": trajectory.task.id,
        "termination": trajectory.termination,
        "reward": reward.model_dump(mode="json"),
        "messages": [m.model_dump(mode="json", exclude_none=True) for m in trajectory.messages],
    }


def _verdict(trajectory: Trajectory, reward: Reward) -> str:
    parts = ", ".join(f"{part} {value:g}" for part, value in reward.components.items())
    missing = f"; not judged: {', '.join(reward.not_judged)}" if reward.not_judged else ""
    reason = f"; {reward.reason}" if reward.reason else ""
    return printable(
        f"\nreward {reward.value:g} by basis {reward.basis_name} ({parts}{missing}{reason}), "
        f"ended by {trajectory.termination}"
    )


class _Player:
    """A person at a terminal, in one episode."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._solo = False
        self.shown = 0

    def join(self, scene: Scene) -> "_Player":
        """Take the agent's seat."""
        self._solo = scene.solo
        return self

    def trace(self) -> None:
        """A person has no tokens."""

    async def act(self, messages: Sequence[Message]) -> Message:
        """Show what is new and read the next move."""
        for message in messages[self.shown :]:
            print(transcript(message))
        self.shown = len(messages) + 1
        while True:
            line = _read_line()
            if line == ":tools":
                print("\n".join(_signature(tool) for tool in self._domain.tools(solo=self._solo)))
            elif line == ":policy":
                print(printable(self._domain.policy_text(solo=self._solo)))
            elif line == ":quit":
                return Message(role="assistant")  # says nothing, which ends the episode
            elif line:
                return parse_move(line, number=self.shown)


def _read_line() -> str:
    try:
        return input("agent> ").strip()
    except EOFError:
        return ":quit"


def _signature(tool: object) -> str:
    function = tool["function"]  # type: ignore[index]
    return printable(f"  {function['name']}({', '.join(function['parameters']['properties'])})")


def parse_move(line: str, *, number: int) -> Message:
    """A typed line as a message: a call if it reads like one, else text for the user."""
    call = _as_json_call(line) or _as_python_call(line)
    if call is None:
        return Message(role="assistant", content=line)
    name, values = call
    made = ToolCall(id=f"typed_{number}", name=name, arguments=values)
    return Message(role="assistant", tool_calls=(made,))


def _as_json_call(line: str) -> tuple[str, dict[str, Any]] | None:
    name, _, rest = line.partition(" ")
    if not name.isidentifier() or not rest.lstrip().startswith("{"):
        return None
    try:
        return name, json.loads(rest)
    except ValueError:
        return None


def _as_python_call(line: str) -> tuple[str, dict[str, Any]] | None:
    try:
        node = ast.parse(line, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
            return None
        values = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
    except (SyntaxError, ValueError):
        return None
    return node.func.id, values


def _play_by_hand(domain: Domain, task: Task, config: RolloutConfig) -> tuple[Trajectory, int]:
    print(HELP)
    if config.user == "solo":
        print(printable(f"\n{ticket(task)}\n"))
    player = _Player(domain)
    return run_episodes(player, {domain.name: domain}, [task], config)[0], player.shown
