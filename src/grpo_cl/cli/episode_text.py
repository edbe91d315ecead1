"""An episode as text: coloured on a terminal, plain elsewhere."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TextIO

from grpo_cl.cli.output import printable
from grpo_cl.report.reward_parts import (
    gold_actions,
    matched_call,
    outcome,
    reward_parts,
    reward_reason,
)
from grpo_cl.report.viewer_data import instructions
from grpo_cl.types import SUCCESS, Message, Reward, Task, ToolCall, Trajectory
from grpo_cl.users.scripted.ticket import ticket

LONGEST_RESULT = 600
"""Characters of a tool result on a terminal; elsewhere it is printed whole."""

_CODES: Mapping[str, str] = {
    "title": "1",
    "agent": "36",
    "user": "35",
    "tool": "2",
    "met": "34",
    "missed": "33",
    "error": "33;1",
    "soft": "2",
}
_ROLES = {"assistant": "agent", "user": "user", "tool": "tool", "system": "soft"}
_GOLD = {"called": "✓", "other arguments": "≈", "not called": "✗"}
_OUTCOMES = {"success": "✓", "failure": "✗", "partial": "◐", "error": "!"}


class Line(NamedTuple):
    """One line or paragraph, and its style."""

    text: str
    style: str = ""


def print_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Print the lines, in colour if the stream is a terminal and $NO_COLOR is not set."""
    is_coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    for line in lines:
        text = printable(line.text)
        code = _CODES.get(line.style)
        print(f"\x1b[{code}m{text}\x1b[0m" if is_coloured and code else text, file=stream)


def glyph(trajectory: Trajectory, reward: Reward) -> str:
    """The outcome as one character."""
    return _OUTCOMES[outcome(trajectory, reward)]


def episode_lines(
    title: str, trajectory: Trajectory, reward: Reward, *, is_short: bool
) -> list[Line]:
    """Title, task, gold actions, conversation and reward."""
    task = trajectory.task
    told = ("Ticket", ticket(task)) if trajectory.solo else ("User", instructions(task))
    return [
        Line(title, "title"),
        Line(f"{told[0]}: {told[1]}"),
        Line(""),
        *conversation(trajectory, is_short=is_short),
        Line(""),
        *_reward_lines(task, trajectory, reward),
    ]


def conversation(trajectory: Trajectory, *, is_short: bool) -> list[Line]:
    """The messages, one entry each."""
    return [
        line
        for message in trajectory.messages
        for line in _message_lines(message, trajectory.task, is_short=is_short)
    ]


def _message_lines(message: Message, task: Task, *, is_short: bool) -> list[Line]:
    style, lines = _ROLES[message.role], list[Line]()
    if message.role == "tool":
        text = message.content or ""
        if is_short and len(text) > LONGEST_RESULT:
            text = f"{text[:LONGEST_RESULT]} … {len(text)} characters"
        mark = "✗ " if message.error else ""
        return [Line(f"  ↳ {mark}{text}", "error" if message.error else style)]
    if message.content:
        lines.append(Line(f"{_name(message.role)}: {message.content}", style))
    for call in message.tool_calls or ():
        gold = "  [gold]" if matched_call(task, call) else ""
        lines.append(Line(f"{_name(message.role)} calls {_call(call)}{gold}", style))
    return lines


def _name(role: str) -> str:
    return "agent" if role == "assistant" else role


def _call(call: ToolCall) -> str:
    arguments = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return f"{call.name}({arguments})"


def _reward_lines(task: Task, trajectory: Trajectory, reward: Reward) -> list[Line]:
    kind = outcome(trajectory, reward)
    ended = trajectory.termination.value
    lines = [Line(f"{_OUTCOMES[kind]} reward {reward.value:g}, ended by {ended}", "title")]
    if reason := reward_reason(trajectory, reward):
        lines.append(Line(f"  {reason}"))
    for part in reward_parts(task, reward):
        is_met = part.value is not None and part.value >= SUCCESS
        if is_met and not part.counts:
            continue
        aside = "" if part.counts else " (not part of this reward)"
        value = "?" if part.value is None else f"{part.value:g}"
        text = f"  {'✓' if is_met else '✗'} {part.label} {value}{aside}: {part.why}"
        lines.append(Line(text.removesuffix(": "), "met" if is_met else "missed"))
    gold = gold_actions(task, reward, trajectory.tool_calls)
    lines.append(Line("Gold actions:" if gold else "Gold actions: none, nothing is to change"))
    for action in gold:
        note = "" if action.state == "called" else f"  ({action.state})"
        style = "met" if action.state == "called" else "missed"
        lines.append(Line(f"  {_GOLD[action.state]} {_call(action.call)}{note}", style))
    return lines
