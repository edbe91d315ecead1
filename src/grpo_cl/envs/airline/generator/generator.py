"""Airline tasks: customers of the database with requests that the policy allows or forbids."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from inspect_evals.tau2.airline.data_model import FlightDB

from grpo_cl.envs.airline.generator.bookings import book
from grpo_cl.envs.airline.generator.cancellations import cancel, cancel_and_compensate, compensate
from grpo_cl.envs.airline.generator.case import AirlineCase, AirlineRequest
from grpo_cl.envs.airline.generator.changes import (
    add_bags,
    change_cabin,
    change_passenger,
    upgrade_and_add_bags,
)
from grpo_cl.envs.airline.generator.flights import change_flights
from grpo_cl.envs.airline.generator.index import AirlineIndex
from grpo_cl.envs.airline.generator.refusals import FORBIDDEN, cancel_after_take_off
from grpo_cl.envs.airline.generator.scenario import write_spec
from grpo_cl.envs.generation.tasks import TaskMaker, TaskSpec, agent_task
from grpo_cl.types import Task

REFUSAL_SHARE = 0.12
"""Share of tasks at difficulty 1 that contain forbidden requests only."""

FORBIDDEN_SHARE = 0.6
"""Share of the other tasks at difficulty 1 that contain one forbidden request."""

CUSTOMERS_TRIED = 40
REQUESTS_TRIED = 12

AirlineRequestMaker = Callable[[AirlineCase], AirlineRequest | None]
AirlineSpecWriter = Callable[[AirlineCase], TaskSpec]


class _Kind(NamedTuple):
    make: AirlineRequestMaker
    num_writes: int
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
"""Larger weights compensate for requests that few customers can make."""


def task_maker(
    database: FlightDB, split: str, *, write: AirlineSpecWriter = write_spec
) -> TaskMaker:
    """The function that draws tasks about customers of ``split``."""
    return partial(_make, AirlineIndex.build(database, split), write)


def _make(index: AirlineIndex, write: AirlineSpecWriter, rng: Random, level: float) -> Task | None:
    is_refusal = rng.random() < REFUSAL_SHARE * level
    num_writes = int(1 + 2.5 * level + rng.random())
    for _ in range(CUSTOMERS_TRIED):
        case = AirlineCase.open(index, rng.choice(index.users), rng, level)
        complete = _only_forbidden(case) if is_refusal else _with_writes(case, num_writes)
        if complete is not None:
            skills = (_skill(request) for request in complete.requests)
            task = agent_task(write(complete), domain="airline", skills=skills)
            return _match_any_summary(task)
    return None


def _skill(request: AirlineRequest) -> str:
    """The kind of request, marked if the policy forbids it."""
    return request.kind if request.writes else f"refuse: {request.kind}"


def _with_writes(case: AirlineCase, num_writes: int) -> AirlineCase | None:
    for _ in range(REQUESTS_TRIED):
        missing = num_writes - len(case.writes)
        fitting = [kind for kind in _KINDS if kind.num_writes <= missing]
        if not fitting:
            return _with_forbidden(case) if case.chance(FORBIDDEN_SHARE) else case
        weights = [kind.weight for kind in fitting]
        request = case.rng.choices(fitting, weights)[0].make(case)
        case = case.with_request(request) if request else case
    return None


def _with_forbidden(case: AirlineCase) -> AirlineCase:
    request = _first(case, FORBIDDEN)
    index = case.rng.randint(0, len(case.requests))
    return case.with_request(request, at=index) if request else case


def _only_forbidden(case: AirlineCase) -> AirlineCase | None:
    request = _first(case, (*FORBIDDEN, cancel_after_take_off))
    if request is None:
        return None
    case = case.with_request(request)
    is_over = request.kind == "cancellation after take-off"  # a transfer ends the conversation
    return _with_forbidden(case) if not is_over and case.chance(0.4) else case


def _first(case: AirlineCase, makers: Sequence[AirlineRequestMaker]) -> AirlineRequest | None:
    for make in case.rng.sample(makers, len(makers)):
        request = make(case)
        if request is not None:
            return request
    return None


def _match_any_summary(task: Task) -> Task:
    """The task with transfers that match whatever their summary."""
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
