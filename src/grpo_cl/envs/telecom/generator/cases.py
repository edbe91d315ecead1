"""Contents of a telecom task: faults, what the customer agrees to, and distractors."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.envs.telecom.generator import wording
from grpo_cl.envs.telecom.generator.callers import Caller
from grpo_cl.envs.telecom.generator.faults import (
    FAULTS,
    HOLD_SPARE,
    INTENTS,
    LINE,
    ROAMING,
    ROAMING_IN_ORDER,
    SERVICE,
    SPARE_HELD,
    SPARE_NOT_REFUELLED,
    UNFIXABLE,
    USAGE,
    USE_UP_SPARE,
    CallTemplate,
    Check,
    Fault,
)

UNFIXABLE_SHARE = 0.1
"""Share of hard tasks that require a transfer to a human; easy tasks have fewer."""

MAX_REFUEL_GB = 2.0
"""The largest amount of data that the policy allows to add to a line."""


class Problem(NamedTuple):
    """The customer's complaint and the faults behind it."""

    intent: str
    faults: tuple[Fault, ...]

    @property
    def signature(self) -> str:
        """Intent and fault names; tasks with equal ones differ in caller, amounts and words."""
        return f"{self.intent}: {' | '.join(sorted(fault.name for fault in self.faults))}"

    @property
    def unfixable(self) -> Fault | None:
        """The fault that requires a transfer to a human."""
        return next((fault for fault in self.faults if not fault.fixes), None)

    def fault_in(self, group: str) -> Fault | None:
        """The fault that belongs to ``group``."""
        return next((fault for fault in self.faults if fault.group == group), None)


class Distractor(NamedTuple):
    """A fact that requires no action."""

    phrase: wording.Phrase
    breaks: tuple[CallTemplate, ...] = ()
    checks: tuple[Check, ...] = ()
    values: Mapping[str, JsonValue] = {}


class Consent(NamedTuple):
    """What the customer agrees to."""

    pays: bool
    asks_gb: float
    """Data to buy if the allowance is used up; zero if the customer refuses."""


class TelecomCase(NamedTuple):
    """The contents of one task."""

    problem: Problem
    consent: Consent
    distractors: tuple[Distractor, ...]
    values: Mapping[str, JsonValue]
    """Values of the references in calls and texts."""


def draw_problem(caller: Caller, rng: Random, level: float) -> Problem:
    """One fault at level 0, four to seven at level 1; unfixable faults in a few tasks above 0."""
    count = 1 + round(level * rng.uniform(3, 6))
    is_unfixable = rng.random() < UNFIXABLE_SHARE * min(1.0, 2 * level)
    fixable = {intent: _fitting(FAULTS, caller, intent) for intent in INTENTS}
    # An intent with exactly ``count`` groups would always give the same fault set.
    intent = rng.choice([i for i in INTENTS if len(_groups(fixable[i])) > count - is_unfixable])
    chosen = [rng.choice(_fitting(UNFIXABLE, caller, intent))] if is_unfixable else []
    groups = [group for group in _groups(fixable[intent]) if group not in _groups(chosen)]
    for group in rng.sample(groups, min(count - len(chosen), len(groups))):
        chosen.append(rng.choice([f for f in fixable[intent] if f.group == group]))
    order = (*FAULTS, *UNFIXABLE)
    return Problem(intent, tuple(sorted(chosen, key=order.index)))


def draw_case(caller: Caller, problem: Problem, rng: Random, level: float) -> TelecomCase:
    """Consent, distractors and values for a caller with a problem."""
    consent = _draw_consent(problem, rng, level)
    distractors = _draw_distractors(caller, problem, rng, level)
    values = _draw_values(caller, problem, consent, rng)
    for distractor in distractors:
        values |= distractor.values
    return TelecomCase(problem, consent, distractors, values)


def _fitting(faults: Sequence[Fault], caller: Caller, intent: str) -> list[Fault]:
    return [
        fault
        for fault in faults
        if intent in fault.intents and (fault.needs is None or fault.needs in caller.traits)
    ]


def _groups(faults: Sequence[Fault]) -> list[str]:
    return list(dict.fromkeys(fault.group for fault in faults))


def _draw_consent(problem: Problem, rng: Random, level: float) -> Consent:
    def agrees(group: str) -> bool:
        if fault := problem.fault_in(group):
            return not fault.is_refused
        # Refusals of unnecessary actions, so that a refusal does not reveal an unfixable fault.
        return rng.random() >= level / 4

    is_greedy = rng.random() < level / 4
    asks_gb = rng.choice((3.0, 4.0, 5.0, 10.0) if is_greedy else (0.5, 1.0, 1.5, 2.0))
    return Consent(pays=agrees(LINE), asks_gb=asks_gb if agrees(USAGE) else 0.0)


def _draw_values(
    caller: Caller, problem: Problem, consent: Consent, rng: Random
) -> dict[str, JsonValue]:
    refuel_gb = min(consent.asks_gb, MAX_REFUEL_GB)
    # Above the plan's limit, but by less than the data that may be added.
    excess_gb = rng.randrange(1, round(10 * (refuel_gb or MAX_REFUEL_GB))) / 10
    most_gb = min(caller.data_limit_gb, 40.0)  # plausible on an unlimited plan too
    is_abroad = problem.fault_in(ROAMING) is not None
    return {
        "customer_id": caller.customer_id,
        "line_id": caller.line_id,
        "name": caller.name,
        "phone_number": caller.phone_number,
        "phone_model": caller.phone_model,
        "birth_date": caller.birth_date,
        "place": _abroad(rng) if is_abroad else f"at home in {caller.home}",
        # Six digits, so that it differs from the four-digit ids of the database.
        "bill_id": caller.overdue_bill_id or f"B{rng.randrange(10**5, 10**6)}",
        "used_gb": rng.randrange(1, round(10 * most_gb)) / 10,
        "over_gb": round(caller.data_limit_gb + excess_gb, 1),
        "asks_gb": consent.asks_gb,
        "refuel_gb": refuel_gb if problem.fault_in(USAGE) else 0.0,
        "summary": f"The policy leaves this to a human. {problem.signature}",
    }


def _abroad(rng: Random) -> str:
    return f"abroad in {rng.choice(wording.COUNTRIES)}"


def _draw_distractors(
    caller: Caller, problem: Problem, rng: Random, level: float
) -> tuple[Distractor, ...]:
    distractors: list[Distractor] = []
    if caller.spares and rng.random() < level / 2:
        distractors.append(_draw_spare_distractor(caller, rng))
    could_roam = problem.intent != SERVICE and problem.fault_in(ROAMING) is None
    if could_roam and rng.random() < level / 2:
        distractors.append(
            Distractor(wording.TRAVELLING, ROAMING_IN_ORDER, values={"place": _abroad(rng)})
        )
    small_talk = rng.sample(wording.SMALL_TALK, round(level * rng.uniform(0, 3)))
    return (*distractors, *(Distractor(phrase) for phrase in small_talk))


def _draw_spare_distractor(caller: Caller, rng: Random) -> Distractor:
    spare = rng.choice(caller.spares)
    values: dict[str, JsonValue] = {
        "spare_line_id": spare.line_id,
        "spare_phone": spare.phone_number,
        "spare_over_gb": round(spare.data_limit_gb + rng.randrange(1, 30) / 10, 1),
    }
    if not spare.is_active:
        return Distractor(wording.SPARE_ON_HOLD, (), (SPARE_HELD,), values)
    if rng.random() < 1 / 2:
        return Distractor(wording.SPARE_ON_HOLD, (HOLD_SPARE,), (SPARE_HELD,), values)
    return Distractor(wording.SPARE_OUT_OF_DATA, (USE_UP_SPARE,), (SPARE_NOT_REFUELLED,), values)
