"""Scenarios, and dialogues of the scripted user with given agent texts."""

import asyncio
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from grpo_cl.types import Message, StructuredInstructions, Task, UserScenario
from grpo_cl.users.scripted.user import ScriptedUser

GREETING = "Hi! How can I help you today?"


@cache
def tau2_tasks(domain: str) -> tuple[Task, ...]:
    spec = find_spec("inspect_evals")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0]) / "tau2" / "data" / "domains"
    records = json.loads((root / domain / "tasks.json").read_text())
    return tuple(Task.model_validate(record | {"domain": domain}) for record in records)


def structured(reason: str, *, known: str = "", unknown: str = "", rules: str = "") -> Task:
    return Task(
        id="t",
        domain="airline",
        user_scenario=UserScenario(
            instructions=StructuredInstructions(
                domain="airline",
                reason_for_call=reason,
                known_info=known,
                unknown_info=unknown or None,
                task_instructions=rules,
            )
        ),
    )


def plain(text: str) -> Task:
    return Task(id="t", domain="mock", user_scenario=UserScenario(instructions=text))


CANCELLER = structured(
    "You want to cancel reservation EHGLP3.",
    known="You are Emma Kim.\nYour user id is emma_kim_9957.",
    unknown="You do not remember your date of birth.",
    rules="If the agent says that cancellation is not possible, mention that you were sick. "
    "You also want to add 1 checked bag. You do not want any insurance. "
    "Under no circumstances do you want to be transferred to another agent.",
)


def talk(task: Task, *texts: str, greeting: str = GREETING) -> list[str]:
    """The user's replies to the agent's texts, without the opening if there are texts."""
    user = ScriptedUser(task, ())
    messages: list[Message] = []
    replies: list[str] = []
    for text in (greeting, *texts):
        messages.append(Message(role="assistant", content=text))
        messages.append(asyncio.run(user.respond(messages)))
        replies.append(messages[-1].content or "")
    return replies[1:] if texts else replies
