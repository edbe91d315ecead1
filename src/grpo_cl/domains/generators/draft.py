"""What the task generators share: chance by index, halves that never meet, the shape of a task."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple, TypeVar

from inspect_evals.tau2.airline.data_model import User as AirlineUser
from inspect_evals.tau2.retail.data_model import User as RetailUser
from inspect_evals.tau2.utils import TAU2_DATA_DIR

from grpo_cl.errors import ConfigError
from grpo_cl.types import (
    Action,
    Description,
    EvaluationCriteria,
    RewardType,
    StructuredInstructions,
    Task,
    UserScenario,
)

User = TypeVar("User", AirlineUser, RetailUser)

TEST_SHARE = 5
"""One entity in this many belongs to the test half."""

ATTEMPTS = 200
"""Draws per task before a generator admits that it cannot make one."""


TaskMaker = Callable[[Random, float], Task | None]
"""Draws one task of a difficulty, its id blank; None where the draw led nowhere."""


class Draft(NamedTuple):
    """A task before it has an id."""

    purpose: str
    reason_for_call: str
    known_info: str
    unknown_info: str | None
    task_instructions: str
    ticket: str
    actions: Sequence[tuple[str, dict[str, Any]]]
    """Gold calls of the agent, in order."""
    communicate_info: Sequence[str] = ()
    is_refusal: bool = False


def in_split(entity: str, split: str) -> bool:
    """Whether ``entity`` belongs to ``split``; each entity is in exactly one half for ever."""
    if split not in {"train", "test"}:
        raise ConfigError(f"a generator makes 'train' or 'test' tasks, not {split!r}")
    digest = hashlib.sha256(entity.encode()).digest()
    return (digest[0] % TEST_SHARE == 0) == (split == "test")


def customers(users: Mapping[str, User], *, folder: str, split: str) -> list[User]:
    """The customers a split may speak of; whoever τ²-bench's own test tasks name is in test."""
    named = _named_in_test_tasks(folder)
    found: list[User] = []
    for key, user in users.items():
        is_tested = not named.isdisjoint((key, *_belongings(user)))
        if in_split(key, split) if not is_tested else split == "test":
            found.append(user)
    return found


def _belongings(user: Any) -> Sequence[str]:
    return user.orders if isinstance(user, RetailUser) else user.reservations


@cache
def _named_in_test_tasks(folder: str) -> frozenset[str]:
    directory = TAU2_DATA_DIR / "domains" / folder
    test = set(json.loads((directory / "split_tasks.json").read_text())["test"])
    tasks = json.loads((directory / "tasks.json").read_text())
    text = json.dumps([task for task in tasks if task["id"] in test])
    return frozenset(re.findall(r"#?\w+", text))


def draw_tasks(
    make: TaskMaker,
    *,
    name: str,
    seed: int,
    count: int,
    split: str,
    difficulty: float | None,
) -> list[Task]:
    """``count`` tasks that differ in what they ask; the first of a longer list are the same."""
    if difficulty is not None and not 0 <= difficulty <= 1:
        raise ConfigError(f"difficulty {difficulty} is outside [0, 1]")
    tasks: list[Task] = []
    seen: set[str] = set()
    for index in range(count):
        for attempt in range(ATTEMPTS):
            rng = Random(f"{name}/{split}/{seed}/{index}/{attempt}")
            level = rng.random() if difficulty is None else difficulty
            task = make(rng, level)
            if task is None or (key := _essence(task)) in seen:
                continue
            seen.add(key)
            dial = "mix" if difficulty is None else f"{difficulty:g}"
            update = {"id": f"{name}-{split}-{seed}-{dial}-{index}", "difficulty": level}
            tasks.append(task.model_copy(update=update))
            break
        else:
            raise ConfigError(
                f"the {name} generator found no new {split} task after {ATTEMPTS} draws; "
                f"ask for fewer than {count} or leave the difficulty open"
            )
    return tasks


def agent_task(draft: Draft, *, domain: str) -> Task:
    """A task that is judged on the database and on what the agent told the user."""
    return Task(
        id="",
        domain=domain,
        description=Description(purpose=draft.purpose),
        user_scenario=UserScenario(
            instructions=StructuredInstructions(
                domain=domain,
                reason_for_call=draft.reason_for_call,
                known_info=draft.known_info,
                unknown_info=draft.unknown_info,
                task_instructions=draft.task_instructions,
            )
        ),
        ticket=draft.ticket,
        evaluation_criteria=EvaluationCriteria(
            actions=tuple(
                Action(action_id=f"{number}", name=name, arguments=arguments)
                for number, (name, arguments) in enumerate(draft.actions)
            ),
            communicate_info=tuple(draft.communicate_info),
            reward_basis=(RewardType.DB, RewardType.COMMUNICATE),
        ),
        is_refusal=draft.is_refusal,
    )


def _essence(task: Task) -> str:
    start = task.initial_state.model_dump(mode="json") if task.initial_state else None
    actions = [(action.name, action.arguments) for action in task.gold_actions]
    asked = task.user_scenario.instructions
    reason = asked if isinstance(asked, str) else asked.reason_for_call
    return json.dumps([start, actions, reason if task.is_refusal else None], sort_keys=True)
