"""Solved episodes to learn from: the gold actions played through the environment by an agent alone.

A demonstration makes only the calls an attentive agent needs. In telecom it first looks at the
phone, as the fault is nowhere stated; elsewhere it makes those reads whose answers its writes
depend on.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random

from pydantic import JsonValue

from grpo_cl.demonstrations.chunks import demonstrate_chunks
from grpo_cl.demonstrations.mistakes import Answered, spoil
from grpo_cl.domains.base import DONE, Domain
from grpo_cl.rewards import RewardOracle
from grpo_cl.types import Message, Task, Termination, ToolCall, Trajectory
from grpo_cl.users.base import STOP
from grpo_cl.users.ticket import ticket

_LINE_CHECKS = ("check_network_status", "check_sim_status", "check_apn_settings")
_DATA_CHECKS = (
    "check_network_mode_preference",
    "check_data_restriction_status",
    "check_vpn_status",
    "run_speed_test",
)
_MESSAGE_CHECKS = ("check_wifi_calling_status", "check_app_permissions", "can_send_mms")

CHECKS = {
    "service_issue": _LINE_CHECKS,
    "mobile_data_issue": (*_LINE_CHECKS, *_DATA_CHECKS),
    "mms_issue": (*_LINE_CHECKS, *_DATA_CHECKS[:2], *_MESSAGE_CHECKS),
}
"""What to look at on a phone, by what is wrong with it."""

_ARGUMENTS: dict[str, dict[str, JsonValue]] = {"check_app_permissions": {"app_name": "messaging"}}
_VALUE = re.compile(r"[\w#.@-]+")
_SHORTEST = 3
"""Values shorter than this appear everywhere by chance."""


def demonstrate(domain: Domain, task: Task, *, careless: Random | None = None) -> Trajectory | None:
    """An episode that solves ``task``, alone or chunk by chunk; None where the gold actions do not.

    With ``careless`` one mistake is made in it, drawn from there, if there is anything to spoil.
    """
    if domain.is_narrated:
        return demonstrate_chunks(domain, task, careless=careless)
    looked = _play(domain, task, _with_checks(domain, task))
    played = _play(domain, task, _needed(looked, ticket(task)))
    trajectory = _trajectory(task, played)
    reward = RewardOracle({domain.name: domain}).score(trajectory)
    if reward.value != 1.0:
        return None
    spoiled = spoil(played, careless) if careless else None
    return trajectory if spoiled is None else _trajectory(task, _play(domain, task, spoiled))


def _with_checks(domain: Domain, task: Task) -> list[ToolCall]:
    gold = [
        action.call.model_copy(update={"requestor": "assistant"}) for action in task.gold_actions
    ]
    if not domain.user_tools:
        return gold
    purpose = f"{task.id} {task.description.purpose if task.description else ''}"
    looks = next((looks for issue, looks in CHECKS.items() if issue in purpose), ())
    checks = [ToolCall(name=name, arguments=_ARGUMENTS.get(name, {})) for name in looks]
    return [*checks, *chain.from_iterable(_with_bills(call) for call in gold)]


def _with_bills(call: ToolCall) -> tuple[ToolCall, ...]:
    if call.name != "send_payment_request":
        return (call,)
    customer = {"customer_id": call.arguments["customer_id"]}
    return ToolCall(name="get_bills_for_customer", arguments=customer), call


def _play(domain: Domain, task: Task, calls: Sequence[ToolCall]) -> list[Answered]:
    world = domain.environment(task, solo=True)
    played: list[Answered] = []
    for number, call in enumerate(calls):
        named = call.model_copy(update={"id": f"call_{number}"})
        played.append(Answered(named, world.call(named).content, world.mutates(named)))
    return played


def _needed(played: Sequence[Answered], known: str) -> list[ToolCall]:
    """The writes, and the reads that tell something a kept call uses and nobody said before."""
    is_kept = [answer.is_write or not _tells(answer) for answer in played]
    told = _words(known)
    for later in reversed(range(len(played))):
        if not is_kept[later]:
            continue
        wanted = set(_values(played[later].call.arguments)) - told
        for earlier in range(later):
            answers = _words(played[earlier].content)
            if wanted & answers:
                is_kept[earlier] = True
                wanted -= answers
    return [answer.call for answer, kept in zip(played, is_kept, strict=True) if kept]


def _tells(answer: Answered) -> bool:
    """Whether the answer is a record to take values from; a look at the phone is kept anyway."""
    return answer.content.startswith(("{", "[")) or answer.call.name.startswith("find_")


def _values(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (word for item in value.values() for word in _values(item))
    elif isinstance(value, list):
        yield from (word for item in value for word in _values(item))
    else:
        # A small number of a write is worked out from a record: any that has it will do.
        yield from (word for word in _words(str(value)) if len(word) >= _SHORTEST or word.isdigit())


def _words(text: str) -> set[str]:
    return {word.rstrip(".") for word in _VALUE.findall(text)}


def _trajectory(task: Task, played: Sequence[Answered]) -> Trajectory:
    messages: list[Message] = []
    for answer in played:
        messages.append(Message(role="assistant", tool_calls=(answer.call,)))
        messages.append(Message(role="tool", id=answer.call.id, content=answer.content))
    messages.append(Message(role="assistant", content=STOP))
    return Trajectory(
        task=task, messages=tuple(messages), termination=Termination.AGENT_STOP, solo=True
    )


def agent_turns(trajectory: Trajectory) -> tuple[Message, ...]:
    """The conversation up to its end as the agent writes it: alone, a call of ``done``."""
    if not trajectory.solo:
        return trajectory.messages[:-1]
    done = Message(role="assistant", tool_calls=(ToolCall(id=DONE, name=DONE),))
    return (*trajectory.messages[:-1], done)
