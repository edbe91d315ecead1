"""What the page of episodes shows: tasks, stages and episodes of a run, as JSON."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import BASE
from grpo_cl.report.reward_parts import (
    gold_actions,
    matched_call,
    outcome,
    reward_parts,
    reward_reason,
)
from grpo_cl.report.run import read_object
from grpo_cl.runs.evaluation_episodes import EvaluationEpisode, read_evaluations
from grpo_cl.runs.layout import RunDir
from grpo_cl.types import Message, StructuredInstructions, Task
from grpo_cl.users.scripted.ticket import ticket

TOLERANCE = 1e-9
"""Mean rewards that differ by less are equal."""
_UNKNOWN_TIME = "1970-01-01T00:00:00+00:00"


class Comparison(NamedTuple):
    """Two episodes of a task that show what changed, and the direction."""

    before: EvaluationEpisode
    after: EvaluationEpisode
    change: str
    """``lost``, ``gained`` or ``same``."""


class Episodes:
    """The evaluation episodes of a run, by task."""

    def __init__(self, root: Path) -> None:
        run = RunDir(root)
        self.name = root.resolve().name
        self.config = read_object(run.config)
        self.started = str(read_object(run.environment).get("started", _UNKNOWN_TIME))
        self.all = list(read_evaluations(run))
        if not self.all:
            raise ConfigError(
                f"{str(root)!r} has no evaluation episodes; give the directory of a run that was "
                "evaluated with logging.keep_evaluation_episodes above 0, or --step N for its "
                "training episodes"
            )
        order = [str(name) for name in self.config.get("task_order", ())]
        self.domains = list(dict.fromkeys([*order, *(one.task.domain for one in self.all)]))
        self.stages = {one.row: one.after for one in self.all}
        self.by_task: defaultdict[tuple[str, str], list[EvaluationEpisode]] = defaultdict(list)
        for one in self.all:
            self.by_task[one.task.domain, one.task.id].append(one)

    def stage_label(self, row: int) -> str:
        """The stage in words."""
        after = self.stages[row]
        return "before training" if after == BASE else f"after {after}"

    def learned_row(self, domain: str) -> int | None:
        """The row after the stage that trained on a domain."""
        return next((row for row, after in self.stages.items() if after == domain), None)

    def comparison(self, domain: str, task_id: str) -> Comparison | None:
        """The task just learned and at the end; a domain learned last, before training and then."""
        episodes = self.by_task[domain, task_id]
        rows = sorted({one.row for one in episodes})
        learned = self.learned_row(domain)
        before = learned if learned in rows and learned != rows[-1] else rows[0]
        if before == rows[-1]:
            return None
        earlier = [one for one in episodes if one.row == before]
        later = [one for one in episodes if one.row == rows[-1]]
        difference = _mean(later) - _mean(earlier)
        if abs(difference) < TOLERANCE:
            return Comparison(earlier[0], later[0], "same")
        # Of several trials the two that show the change best, the first of them on a tie.
        if difference > 0:
            return Comparison(min(earlier, key=_value), max(later, key=_value), "gained")
        return Comparison(max(earlier, key=_value), min(later, key=_value), "lost")


def viewer_data(episodes: Episodes) -> dict[str, Any]:
    """The data of the page; its script reads nothing else."""
    tasks = {key: index for index, key in enumerate(_task_order(episodes))}
    return {
        "run": episodes.name,
        "model": episodes.config.get("model_name_or_path"),
        "algorithm": episodes.config.get("cl_algorithm"),
        "domains": [
            {"name": name, "learned": episodes.learned_row(name)} for name in episodes.domains
        ],
        "stages": [
            {"row": row, "label": episodes.stage_label(row)} for row in sorted(episodes.stages)
        ],
        "tasks": [_task(episodes, *key) for key in tasks],
        "episodes": [
            {"task": tasks[one.task.domain, one.task.id], **episode_entry(one)}
            for one in episodes.all
        ],
    }


def episode_entry(one: EvaluationEpisode) -> dict[str, Any]:
    """One episode as the page shows it."""
    trajectory, reward = one.trajectory, one.reward
    return {
        "row": one.row,
        "trial": one.trial,
        "reward": reward.value,
        "outcome": outcome(trajectory, reward),
        "ended": trajectory.termination.value,
        "solo": trajectory.solo,
        "reason": reward_reason(trajectory, reward),
        "parts": [part._asdict() for part in reward_parts(one.task, reward)],
        "gold": [action.state for action in gold_actions(one.task, reward, trajectory.tool_calls)],
        "messages": [_message(message, one.task) for message in trajectory.messages],
    }


def instructions(task: Task) -> str:
    """What the user simulator is told."""
    given = task.user_scenario.instructions
    if not isinstance(given, StructuredInstructions):
        return given
    parts = (
        ("Reason for the call", given.reason_for_call),
        ("Known", given.known_info),
        ("Unknown", given.unknown_info),
        ("Instructions", given.task_instructions),
    )
    return "\n\n".join(f"{name}: {text}" for name, text in parts if text)


def _task_order(episodes: Episodes) -> list[tuple[str, str]]:
    rank = {domain: index for index, domain in enumerate(episodes.domains)}
    return sorted(episodes.by_task, key=lambda key: rank[key[0]])


def _task(episodes: Episodes, domain: str, task_id: str) -> dict[str, Any]:
    task = episodes.by_task[domain, task_id][0].task
    compared = episodes.comparison(domain, task_id)
    return {
        "domain": domain,
        "id": task_id,
        "purpose": task.description.purpose if task.description else None,
        "ticket": ticket(task),
        "instructions": instructions(task),
        "refusal": task.is_refusal,
        "gold": [_call(action.call.model_dump()) for action in task.gold_actions],
        "say": list(task.communicate_info),
        "change": compared.change if compared else "same",
        "compare": [[one.row, one.trial] for one in compared[:2]] if compared else None,
    }


def _message(message: Message, task: Task) -> dict[str, Any]:
    calls = [
        {**_call(call.model_dump()), "id": call.id, "gold": matched_call(task, call)}
        for call in message.tool_calls or ()
    ]
    entry = {
        "role": message.role,
        "text": message.content,
        "calls": calls,
        "id": message.id,
        "error": message.error,
        "by": message.requestor,
    }
    return {name: value for name, value in entry.items() if value not in (None, [], False)}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call["name"], "arguments": call["arguments"], "by": call["requestor"]}


def _mean(episodes: Sequence[EvaluationEpisode]) -> float:
    return fmean(map(_value, episodes))


def _value(one: EvaluationEpisode) -> float:
    return one.reward.value
