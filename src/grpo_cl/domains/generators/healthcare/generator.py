"""Callers with requests the clinics' policy allows, and some it forbids."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from grpo_cl.domains.generators.draft import TaskMaker, agent_task, in_split
from grpo_cl.domains.generators.healthcare.case import ADULT, Case, Request
from grpo_cl.domains.generators.healthcare.draft import draft
from grpo_cl.domains.generators.healthcare.errands import refill, update
from grpo_cl.domains.generators.healthcare.refusals import (
    TRAPS,
    either,
    strange_visit,
    unoffered,
)
from grpo_cl.domains.generators.healthcare.visits import book, cancel, move, rebook
from grpo_cl.domains.healthcare.database import TODAY, HealthcareDB, Patient, age_on
from grpo_cl.types import Task

Maker = Callable[[Case], Request | None]

REFUSAL_SHARE = 0.15
"""Tasks at difficulty 1 in which everything asked for is forbidden."""
TRAP_SHARE = 0.4
"""Other tasks at difficulty 1 in which one request is forbidden."""
BEHALF_SHARE = 0.4
"""Tasks at difficulty 1 in which somebody calls for another patient."""
MORE_WRITES = 2.5
"""Requests at difficulty 1 beyond the first, on average."""
CALLERS_TRIED = 40
"""Callers tried for what was drawn before the draw is given up."""

_KINDS: Mapping[Maker, int] = {book: 4, move: 3, cancel: 3, refill: 3, update: 1}
"""How often each request is drawn."""
_HARD_KINDS: Mapping[Maker, int] = {rebook: 1, either: 2}
"""Requests with a condition, drawn besides from the middle of the dial on."""
_HARD_LEVEL = 0.5


class Half(NamedTuple):
    """The patients of one half; a household is never divided."""

    database: HealthcareDB
    patients: Sequence[Patient]
    adults: Sequence[Patient]
    represented: Sequence[Patient]


def task_maker(database: HealthcareDB, split: str) -> TaskMaker:
    """What draws a task about a patient of ``split``, its gold calls obeying the policy."""
    patients = [each for each in database.patients.values() if in_split(each.address, split)]
    half = Half(
        database,
        patients,
        [each for each in patients if age_on(each, TODAY) >= ADULT],
        [each for each in patients if each.representatives],
    )
    return partial(_make, half)


def _make(half: Half, rng: Random, level: float) -> Task | None:
    plan = _forbidden if rng.random() < REFUSAL_SHARE * level else _errand
    drawn = plan(half, rng, level)
    return agent_task(draft(*drawn), domain="healthcare") if drawn else None


def _forbidden(half: Half, rng: Random, level: float) -> tuple[Case, list[Request]] | None:
    trap = rng.choice((*TRAPS, unoffered))
    for _ in range(CALLERS_TRIED):
        case = _case(half, rng, level)
        if request := trap(case):
            return case, [request]
    return None


def _errand(half: Half, rng: Random, level: float) -> tuple[Case, list[Request]] | None:
    more = MORE_WRITES * level
    count = 1 + int(more) + (rng.random() < more % 1)
    kinds = {**_KINDS, **(_HARD_KINDS if level >= _HARD_LEVEL else {})}
    drawn = rng.choices(list(kinds), list(kinds.values()), k=4 * count)
    has_trap = rng.random() < TRAP_SHARE * level
    for _ in range(CALLERS_TRIED):
        case = _case(half, rng, level)
        requests = _requests(case, drawn, count)
        if len(requests) < count:
            continue
        if has_trap and (trap := _trap(case)):
            requests.insert(rng.randint(0, count), trap)
        return case, requests
    return None


def _requests(case: Case, kinds: Sequence[Maker], count: int) -> list[Request]:
    """As many requests as wanted, the first of the first kind."""
    first = kinds[0](case)
    requests = [first] if first else []
    for kind in kinds[1:] if requests else ():
        if len(requests) < count and (request := kind(case)):
            requests.append(request)
    return requests


def _trap(case: Case) -> Request | None:
    # A stranger can always be asked about, so that comes after what needs a fitting record.
    traps = sorted(case.rng.sample(TRAPS, 3), key=lambda trap: trap is strange_visit)
    return next((request for trap in traps if (request := trap(case))), None)


def _case(half: Half, rng: Random, level: float) -> Case:
    patient = caller = rng.choice(half.adults)
    if rng.random() < BEHALF_SHARE * level:
        patient = rng.choice(half.represented)
        caller = half.database.patients[rng.choice(patient.representatives)]
    return Case(
        database=half.database,
        caller=caller,
        patient=patient,
        strangers=half.patients,
        rng=rng,
        level=level,
    )
