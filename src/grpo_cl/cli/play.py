"""``grpo-cl play``: act as the agent of a task, or show episodes of its gold solution."""

import argparse
import ast
import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from grpo_cl.cli.output import printable, table, transcript
from grpo_cl.cli.tasks import find_task, selected_domains
from grpo_cl.config import RolloutConfig
from grpo_cl.envs import Domain
from grpo_cl.errors import ConfigError
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import Scene, ScriptedActor, run_episodes
from grpo_cl.rollout.baselines import score_baselines
from grpo_cl.types import Message, Reward, Task, ToolCall, ToolSchema, Trajectory
from grpo_cl.users import STRATEGIES, require_user
from grpo_cl.users.scripted.ticket import ticket

HELP = (
    "Write to the user, or call a tool: name(argument='value', …) or name {json}.\n"
    ":help shows this, :tools the tools, :policy the domain policy; :quit ends the episode."
)


def play(arguments: argparse.Namespace) -> int:
    """Run one episode and print its transcript, or many and print their scores."""
    if arguments.user in STRATEGIES:
        raise ConfigError(
            f"the user {arguments.user!r} is driven by a model, which play does not have; choose "
            "--user scripted or solo, or run `grpo-cl evaluate` with user.model=PROVIDER/MODEL"
        )
    require_user(arguments.user)
    domains = selected_domains(arguments)
    config = RolloutConfig(user=arguments.user, max_turns=arguments.max_turns)
    if arguments.count:
        return _play_many(domains, arguments, config)
    domain, task = _selected_task(domains, arguments)
    if arguments.scripted:
        trajectory = _run([domain], [task], config)[0]
        shown = 0
    else:
        trajectory, shown = _play_in_terminal(domain, task, config)
    reward = RewardOracle({domain.name: domain}).score(trajectory)
    if arguments.json:
        print(json.dumps(_entry(domain, trajectory, reward)))
        return 0
    for message in trajectory.messages[shown:]:
        print(transcript(message))
    print(_reward_line(trajectory, reward))
    return 0


def _selected_task(domains: Sequence[Domain], arguments: argparse.Namespace) -> tuple[Domain, Task]:
    if arguments.task:
        return find_task(domains, arguments.task)
    return domains[0], _split(domains[0], arguments.split)[0]


def _split(domain: Domain, split: str) -> Sequence[Task]:
    return domain.tasks(split if split in domain.splits else "base")


def gold_calls(task: Task) -> list[ToolCall]:
    """The gold actions as tool calls."""
    return [action.call for action in task.gold_actions]


def gold_closing(task: Task) -> str:
    """The final message, with all information the user must get."""
    information = task.communicate_info
    return f"For your records: {'; '.join(information)}." if information else ""


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
        floor = fmean(score_baselines(domain, task).idle for task in tasks)
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
        "release": domain.release_of(trajectory.task),
        "task_id": trajectory.task.id,
        "termination": trajectory.termination,
        "reward": reward.model_dump(mode="json"),
        "messages": [m.model_dump(mode="json", exclude_none=True) for m in trajectory.messages],
    }


def _reward_line(trajectory: Trajectory, reward: Reward) -> str:
    components = ", ".join(f"{name} {value:g}" for name, value in reward.components.items())
    missing = f"; not judged: {', '.join(reward.not_judged)}" if reward.not_judged else ""
    reason = f"; {reward.reason}" if reward.reason else ""
    return printable(
        f"\nreward {reward.value:g} by basis {reward.basis_name} ({components}{missing}{reason}), "
        f"ended by {trajectory.termination}"
    )


class _TerminalActor:
    """An actor whose replies are typed in a terminal."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._solo = False
        self.shown = 0

    def join(self, scene: Scene) -> "_TerminalActor":
        """Return this actor, which plays one episode."""
        self._solo = scene.solo
        return self

    def trace(self) -> None:
        """No token trace."""

    async def act(self, messages: Sequence[Message]) -> Message:
        """Print the new messages and read the next reply."""
        for message in messages[self.shown :]:
            print(transcript(message))
        self.shown = len(messages) + 1
        while True:
            line = _read_line()
            if line == ":quit":
                return Message(role="assistant")  # an empty message ends the episode
            if line.startswith(":"):
                print(self._answer(line))
            elif line:
                return parse_typed_reply(line, number=self.shown)

    def _answer(self, line: str) -> str:
        """The answer to a line that begins with a colon."""
        if line == ":tools":
            return "\n".join(_signature(tool) for tool in self._domain.tools(solo=self._solo))
        if line == ":policy":
            return printable(self._domain.policy_text(solo=self._solo))
        return HELP if line == ":help" else printable(f"{line} is no command. {HELP}")


def _read_line() -> str:
    try:
        return input("agent> ").strip()
    except EOFError:
        return ":quit"


def _signature(tool: ToolSchema) -> str:
    function = tool["function"]
    return printable(f"  {function['name']}({', '.join(function['parameters']['properties'])})")


def parse_typed_reply(line: str, *, number: int) -> Message:
    """A typed line as a message: a tool call if it parses as one, else text for the user."""
    call = _as_json_call(line) or _as_python_call(line)
    if call is None:
        return Message(role="assistant", content=line)
    name, values = call
    typed = ToolCall(id=f"typed_{number}", name=name, arguments=values)
    return Message(role="assistant", tool_calls=(typed,))


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


def _play_in_terminal(domain: Domain, task: Task, config: RolloutConfig) -> tuple[Trajectory, int]:
    print(HELP)
    if config.user == "solo":
        print(printable(f"\n{ticket(task)}\n"))
    actor = _TerminalActor(domain)
    return run_episodes(actor, {domain.name: domain}, [task], config)[0], actor.shown
