"""Airline tasks without number: real customers ask for what the policy allows, or forbids."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from inspect_evals.tau2.airline.data_model import FlightDB

from grpo_cl.domains.generators.airline.bookings import book
from grpo_cl.domains.generators.airline.cancellations import (
    cancel,
    cancel_and_compensate,
    compensate,
)
from grpo_cl.domains.generators.airline.case import Case, Request
from grpo_cl.domains.generators.airline.changes import (
    add_bags,
    change_cabin,
    change_passenger,
    upgrade_and_add_bags,
)
from grpo_cl.domains.generators.airline.flights import change_flights
from grpo_cl.domains.generators.airline.refusals import FORBIDDEN, cancel_after_take_off
from grpo_cl.domains.generators.airline.scenario import write_up
from grpo_cl.domains.generators.airline.world import World
from grpo_cl.domains.generators.draft import TaskMaker, agent_task
from grpo_cl.types import Task

REFUSAL_SHARE = 0.12
"""Share of tasks at full difficulty that end without any change."""

TRAP_SHARE = 0.6
"""Share of the other tasks at full difficulty that hold a request to be refused."""

CUSTOMERS_TRIED = 40
REQUESTS_TRIED = 12

Maker = Callable[[Case], Request | None]


class _Kind(NamedTuple):
    make: Maker
    writes: int
    weight: int


_KINDS = (
    _Kind(cancel, 1, 3),
    _Kind(change_cabin, 1, 3),
    _Kind(change_flights, 1, 4),
    _Kind(add_bags, 1, 3),
    _Kind(change_passenger, 1, 2),
    _Kind(book, 1, 4),
    _Kind(compensate, 1, 4),
    _Kind(cancel_and_compensate, 2, 6),
    _Kind(upgrade_and_add_bags, 2, 2),
)
"""Weights make up for how rarely a customer can ask for it."""


def task_maker(database: FlightDB, split: str) -> TaskMaker:
    """What draws a task about a customer of ``split``."""
    return partial(_make, World.index(database, split))


def _make(world: World, rng: Random, level: float) -> Task | None:
    is_refusal = rng.random() < REFUSAL_SHARE * level
    num_writes = int(1 + 2.5 * level + rng.random())
    for _ in range(CUSTOMERS_TRIED):
        case = Case.open(world, rng.choice(world.users), rng, level)
        filled = _only_refused(case) if is_refusal else _with_writes(case, num_writes)
        if filled is not None:
            return _without_wording(agent_task(write_up(filled), domain="airline"))
    return None


def _with_writes(case: Case, num_writes: int) -> Case | None:
    for _ in range(REQUESTS_TRIED):
        room = num_writes - len(case.writes)
        fitting = [kind for kind in _KINDS if kind.writes <= room]
        if not fitting:
            return _with_trap(case) if case.lucky(TRAP_SHARE) else case
        weights = [kind.weight for kind in fitting]
        request = case.rng.choices(fitting, weights)[0].make(case)
        case = case.plus(request) if request else case
    return None


def _with_trap(case: Case) -> Case:
    trap = _first(case, FORBIDDEN)
    place = case.rng.randint(0, len(case.requests))
    return case.plus(trap, at=place) if trap else case


def _only_refused(case: Case) -> Case | None:
    trap = _first(case, (*FORBIDDEN, cancel_after_take_off))
    if trap is None:
        return None
    case = case.plus(trap)
    is_over = trap.kind == "cancellation after take-off"  # a transfer ends the conversation
    return _with_trap(case) if not is_over and case.lucky(0.4) else case


def _first(case: Case, makers: Sequence[Maker]) -> Request | None:
    for make in case.rng.sample(makers, len(makers)):
        request = make(case)
        if request is not None:
            return request
    return None


def _without_wording(task: Task) -> Task:
    """Let any summary of a transfer match."""
    criteria = task.evaluation_criteria
    assert criteria is not None
    actions = tuple(
        action.model_copy(update={"compare_args": ()})
        if action.name == "transfer_to_human_agents"
        else action
        for action in task.gold_actions
    )
    return task.model_copy(
        update={"evaluation_criteria": criteria.model_copy(update={"actions": actions})}
    )
