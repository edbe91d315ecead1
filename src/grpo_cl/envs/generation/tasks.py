"""Generated tasks: reproducible draws, disjoint train and test splits, and the task record."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

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

GENERATOR_RELEASE = 3
"""Release of the generated tasks; it rises when the same arguments give other tasks."""

TEST_SHARE = 5
"""One entity in this many belongs to the test split."""

COMBINATION_SEED = 1219
"""Seed of the hash that divides sets of skills; with it, every skill is in sets of both splits."""

ATTEMPTS = 200
"""Draws per task that keep the number of skills; after twice as many generation fails."""


TaskMaker = Callable[[Random, float], Task | None]
"""Draws one task of a difficulty, with an empty id; None if the draw failed."""


class Rewording(NamedTuple):
    """Two makers with the same draws: one for the tasks, one for their texts."""

    make: TaskMaker
    reword: TaskMaker


class TaskSpec(NamedTuple):
    """Texts and gold calls of a task that is scored on the database and the agent's statements."""

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
    """Whether ``entity`` belongs to ``split``, decided by a hash: each entity is in one split."""
    if split not in {"train", "test"}:
        raise ConfigError(f"a generator makes 'train' or 'test' tasks, not {split!r}")
    digest = hashlib.sha256(entity.encode()).digest()
    return (digest[0] % TEST_SHARE == 0) == (split == "test")


def skill_set(names: Iterable[str]) -> tuple[str, ...]:
    """The skills of a task, from the names of its parts."""
    return tuple(sorted(set(names)))


def allows_skills(skills: Sequence[str], split: str) -> bool:
    """Whether tasks of ``split`` may have this set of skills.

    One skill is in both splits; a set of several is in one of them, decided by a hash.
    """
    return len(skills) < 2 or in_split(f"skills {COMBINATION_SEED}: {' + '.join(skills)}", split)


def draw_tasks(
    make: TaskMaker | Rewording,
    *,
    name: str,
    seed: int,
    count: int,
    split: str,
    difficulty: float | None,
) -> list[Task]:
    """``count`` distinct tasks; a larger ``count`` appends tasks and keeps the first ones.

    A draw whose set of skills belongs to the other split is repeated until it has another set of
    several skills, so that the share of tasks with several skills is the same in both splits.
    """
    if difficulty is not None and not 0 <= difficulty <= 1:
        raise ConfigError(f"difficulty {difficulty} is outside [0, 1]")
    make, reword = make if isinstance(make, Rewording) else (make, None)
    tasks: list[Task] = []
    seen: set[str] = set()
    for index in range(count):
        for draw in _draws(make, f"{name}/{split}/{seed}/{index}", split, difficulty):
            if (key := _content_key(draw.task)) in seen:
                continue
            seen.add(key)
            task, level = draw.task, draw.level
            if reword is not None:
                task = _with_texts_of(_make_task(reword, draw.seed, difficulty)[0], task)
            label = "mix" if difficulty is None else f"{difficulty:g}"
            update = {"id": f"{name}-{split}-{seed}-{label}-{index}", "difficulty": level}
            tasks.append(task.model_copy(update=update))
            break
        else:
            raise ConfigError(
                f"the {name} generator found no new {split} task after {2 * ATTEMPTS} draws; "
                f"ask for fewer than {count} or leave the difficulty open"
            )
    return tasks


class _Draw(NamedTuple):
    task: Task
    level: float
    seed: str


def _draws(make: TaskMaker, name: str, split: str, difficulty: float | None) -> Iterator[_Draw]:
    """Draws of one task with a set of skills of ``split``, until one is new."""
    needs_several = False
    for attempt in range(2 * ATTEMPTS):
        seed = f"{name}/{attempt}"
        task, level = _make_task(make, seed, difficulty)
        if task is None:
            continue
        if not allows_skills(task.skills, split):
            needs_several = True
        elif len(task.skills) > 1 or not needs_several or attempt >= ATTEMPTS:
            yield _Draw(task, level, seed)


def _make_task(make: TaskMaker, seed: str, difficulty: float | None) -> tuple[Task | None, float]:
    rng = Random(seed)
    level = rng.random() if difficulty is None else difficulty
    return make(rng, level), level


def _with_texts_of(reworded: Task | None, task: Task) -> Task:
    assert reworded is not None, "both makers draw the same task"
    texts = {"user_scenario": reworded.user_scenario, "ticket": reworded.ticket}
    return task.model_copy(update=texts)


def agent_task(spec: TaskSpec, *, domain: str, skills: Iterable[str] = ()) -> Task:
    """A task scored on the database and on the facts that the agent states to the user."""
    return Task(
        id="",
        domain=domain,
        description=Description(purpose=spec.purpose),
        user_scenario=UserScenario(
            instructions=StructuredInstructions(
                domain=domain,
                reason_for_call=spec.reason_for_call,
                known_info=spec.known_info,
                unknown_info=spec.unknown_info,
                task_instructions=spec.task_instructions,
            )
        ),
        ticket=spec.ticket,
        evaluation_criteria=EvaluationCriteria(
            actions=tuple(
                Action(action_id=f"{number}", name=name, arguments=arguments)
                for number, (name, arguments) in enumerate(spec.actions)
            ),
            communicate_info=tuple(spec.communicate_info),
            reward_basis=(RewardType.DB, RewardType.COMMUNICATE),
        ),
        is_refusal=spec.is_refusal,
        skills=skill_set(skills),
    )


def _content_key(task: Task) -> str:
    start = task.initial_state.model_dump(mode="json") if task.initial_state else None
    actions = [(action.name, action.arguments) for action in task.gold_actions]
    instructions = task.user_scenario.instructions
    reason = instructions if isinstance(instructions, str) else instructions.reason_for_call
    return json.dumps([start, actions, reason if task.is_refusal else None], sort_keys=True)
