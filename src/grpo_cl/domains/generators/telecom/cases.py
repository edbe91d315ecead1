"""Draws what a telecom task is about: faults, what the customer agrees to, and distractions."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.domains.generators.telecom import words
from grpo_cl.domains.generators.telecom.callers import Caller
from grpo_cl.domains.generators.telecom.faults import (
    FAULTS,
    HOLD_SPARE,
    INTENTS,
    LINE,
    ROAMING,
    ROAMING_IN_ORDER,
    SERVICE,
    SPARE_HELD,
    SPARE_NOT_REFUELLED,
    TRAPS,
    USAGE,
    USE_UP_SPARE,
    Call,
    Check,
    Fault,
)

TRAP_SHARE = 0.1
"""Share of hard tasks that can only be handed to a human; easy ones have fewer."""

MAX_REFUEL_GB = 2.0
"""What the policy allows to add to a line."""


class Trouble(NamedTuple):
    """What the call is about and what is wrong."""

    intent: str
    faults: tuple[Fault, ...]

    @property
    def signature(self) -> str:
        """The same for two tasks that differ in caller, amounts and words only."""
        return f"{self.intent}: {' | '.join(sorted(fault.name for fault in self.faults))}"

    @property
    def trap(self) -> Fault | None:
        """The fault that only a human may deal with."""
        return next((fault for fault in self.faults if not fault.fixes), None)

    def fault_in(self, group: str) -> Fault | None:
        """The fault of one group."""
        return next((fault for fault in self.faults if fault.group == group), None)


class Decoy(NamedTuple):
    """Something that is so, but needs nothing done."""

    phrase: words.Phrase
    breaks: tuple[Call, ...] = ()
    checks: tuple[Check, ...] = ()
    values: Mapping[str, JsonValue] = {}


class Wish(NamedTuple):
    """What the customer agrees to."""

    pays: bool
    asks_gb: float
    """Data to add if it is used up; zero for a customer who refuses."""


class Case(NamedTuple):
    """Everything a task is made from."""

    trouble: Trouble
    wish: Wish
    decoys: tuple[Decoy, ...]
    values: Mapping[str, JsonValue]
    """What calls and texts refer to."""


def draw_trouble(caller: Caller, rng: Random, level: float) -> Trouble:
    """One fault at level 0, four to seven at level 1; traps in a small share above level 0."""
    wanted = 1 + round(level * rng.uniform(3, 6))
    is_trap = rng.random() < TRAP_SHARE * min(1.0, 2 * level)
    fixable = {intent: _fitting(FAULTS, caller, intent) for intent in INTENTS}
    # An intent all of whose groups were needed would give the same fault set again and again.
    intent = rng.choice([i for i in INTENTS if len(_groups(fixable[i])) > wanted - is_trap])
    chosen = [rng.choice(_fitting(TRAPS, caller, intent))] if is_trap else []
    groups = [group for group in _groups(fixable[intent]) if group not in _groups(chosen)]
    for group in rng.sample(groups, min(wanted - len(chosen), len(groups))):
        chosen.append(rng.choice([f for f in fixable[intent] if f.group == group]))
    order = (*FAULTS, *TRAPS)
    return Trouble(intent, tuple(sorted(chosen, key=order.index)))


def draw_case(caller: Caller, trouble: Trouble, rng: Random, level: float) -> Case:
    """The rest of a case once it is known who calls and what is wrong."""
    wish = _draw_wish(trouble, rng, level)
    decoys = _draw_decoys(caller, trouble, rng, level)
    values = _draw_values(caller, trouble, wish, rng)
    for decoy in decoys:
        values |= decoy.values
    return Case(trouble, wish, decoys, values)


def _fitting(faults: Sequence[Fault], caller: Caller, intent: str) -> list[Fault]:
    return [
        fault
        for fault in faults
        if intent in fault.intents and (fault.needs is None or fault.needs in caller.traits)
    ]


def _groups(faults: Sequence[Fault]) -> list[str]:
    return list(dict.fromkeys(fault.group for fault in faults))


def _draw_wish(trouble: Trouble, rng: Random, level: float) -> Wish:
    def agrees(group: str) -> bool:
        if fault := trouble.fault_in(group):
            return not fault.is_refused
        # Customers who refuse what nobody needs keep a refusal from giving a trap away.
        return rng.random() >= level / 4

    is_greedy = rng.random() < level / 4
    asks_gb = rng.choice((3.0, 4.0, 5.0, 10.0) if is_greedy else (0.5, 1.0, 1.5, 2.0))
    return Wish(pays=agrees(LINE), asks_gb=asks_gb if agrees(USAGE) else 0.0)


def _draw_values(caller: Caller, trouble: Trouble, wish: Wish, rng: Random) -> dict[str, JsonValue]:
    refuel_gb = min(wish.asks_gb, MAX_REFUEL_GB)
    # More than the plan holds, but less than what may be added covers.
    excess_gb = rng.randrange(1, round(10 * (refuel_gb or MAX_REFUEL_GB))) / 10
    most_gb = min(caller.data_limit_gb, 40.0)  # believable on an unlimited plan too
    is_abroad = trouble.fault_in(ROAMING) is not None
    return {
        "customer_id": caller.customer_id,
        "line_id": caller.line_id,
        "name": caller.name,
        "phone_number": caller.phone_number,
        "phone_model": caller.phone_model,
        "birth_date": caller.birth_date,
        "place": _abroad(rng) if is_abroad else f"at home in {caller.home}",
        # Six digits, so that it meets none of the database's own four-digit ids.
        "bill_id": caller.overdue_bill_id or f"B{rng.randrange(10**5, 10**6)}",
        "used_gb": rng.randrange(1, round(10 * most_gb)) / 10,
        "over_gb": round(caller.data_limit_gb + excess_gb, 1),
        "asks_gb": wish.asks_gb,
        "refuel_gb": refuel_gb if trouble.fault_in(USAGE) else 0.0,
        "summary": f"The policy leaves this to a human. {trouble.signature}",
    }


def _abroad(rng: Random) -> str:
    return f"abroad in {rng.choice(words.COUNTRIES)}"


def _draw_decoys(caller: Caller, trouble: Trouble, rng: Random, level: float) -> tuple[Decoy, ...]:
    decoys: list[Decoy] = []
    if caller.spares and rng.random() < level / 2:
        decoys.append(_draw_spare_decoy(caller, rng))
    could_roam = trouble.intent != SERVICE and trouble.fault_in(ROAMING) is None
    if could_roam and rng.random() < level / 2:
        decoys.append(Decoy(words.TRAVELLING, ROAMING_IN_ORDER, values={"place": _abroad(rng)}))
    chatter = rng.sample(words.SMALL_TALK, round(level * rng.uniform(0, 3)))
    return (*decoys, *(Decoy(phrase) for phrase in chatter))


def _draw_spare_decoy(caller: Caller, rng: Random) -> Decoy:
    spare = rng.choice(caller.spares)
    values: dict[str, JsonValue] = {
        "spare_line_id": spare.line_id,
        "spare_phone": spare.phone_number,
        "spare_over_gb": round(spare.data_limit_gb + rng.randrange(1, 30) / 10, 1),
    }
    if not spare.is_active:
        return Decoy(words.SPARE_ON_HOLD, (), (SPARE_HELD,), values)
    if rng.random() < 1 / 2:
        return Decoy(words.SPARE_ON_HOLD, (HOLD_SPARE,), (SPARE_HELD,), values)
    return Decoy(words.SPARE_OUT_OF_DATA, (USE_UP_SPARE,), (SPARE_NOT_REFUELLED,), values)
