"""Makes telecom tasks: a caller, what is wrong with the line and phone, and what may be done."""

import json
from collections.abc import Iterable
from functools import cache
from random import Random

from inspect_evals.tau2.telecom.data_model import TelecomDB
from inspect_evals.tau2.utils import TAU2_DATA_DIR

from grpo_cl.domains.generators.draft import TaskMaker, in_split
from grpo_cl.domains.generators.telecom import words
from grpo_cl.domains.generators.telecom.callers import find_households
from grpo_cl.domains.generators.telecom.cases import (
    MAX_REFUEL_GB,
    Case,
    Trouble,
    Wish,
    draw_case,
    draw_trouble,
)
from grpo_cl.domains.generators.telecom.faults import (
    GOALS,
    INTRODUCE,
    REFUELLED,
    SERVICE,
    SET_USAGE,
    TRANSFER,
    USAGE,
    Call,
    Check,
)
from grpo_cl.types import (
    Action,
    Description,
    EnvAssertion,
    EnvFunctionCall,
    EvaluationCriteria,
    InitialState,
    RewardType,
    StructuredInstructions,
    Task,
    UserScenario,
)


def task_maker(database: TelecomDB, split: str) -> TaskMaker:
    """What draws a task about a line; no fault set is in both splits or in τ²'s own test."""
    households = find_households(database)

    def make(rng: Random, level: float) -> Task | None:
        caller = rng.choice(rng.choice(households))
        trouble = draw_trouble(caller, rng, level)
        if trouble.signature in shipped_test_signatures():
            return None
        if not in_split(f"telecom/{trouble.signature}", split):
            return None
        case = draw_case(caller, trouble, rng, level)
        persona = rng.choice(words.PERSONAS) if rng.random() < level else None
        return _make_task(case, persona, rng)

    return make


@cache
def shipped_test_signatures() -> frozenset[str]:
    """The fault sets of τ²-bench's own test split, which no generated task repeats."""
    path = TAU2_DATA_DIR / "domains" / "telecom" / "split_tasks.json"
    ids: list[str] = json.loads(path.read_text(encoding="utf-8"))["test"]
    return frozenset(_signature(task_id) for task_id in ids)


def _signature(task_id: str) -> str:
    # A shipped id reads [intent]fault|fault[PERSONA:name].
    intent, faults = task_id.removeprefix("[").split("[")[0].split("]")
    return f"{intent}: {' | '.join(sorted(faults.split('|')))}"


def _make_task(case: Case, persona: str | None, rng: Random) -> Task:
    trouble = case.trouble
    story = words.tell(
        [*_terms(trouble, case.wish, rng), *(decoy.phrase for decoy in case.decoys)],
        opening=rng.choice(words.COMPLAINTS[trouble.intent]),
        values=case.values,
        rng=rng,
    )
    return Task(
        id="",
        domain="telecom",
        description=Description(purpose=trouble.signature),
        user_scenario=UserScenario(
            persona=persona,
            instructions=StructuredInstructions(
                domain="telecom",
                reason_for_call=story.reason_for_call,
                known_info=story.known_info,
                unknown_info=story.unknown_info,
                task_instructions=story.task_instructions,
            ),
        ),
        ticket=story.ticket,
        initial_state=InitialState(
            initialization_actions=tuple(
                EnvFunctionCall(
                    env_type=call.side,
                    func_name=call.name,
                    arguments=call.arguments_for(case.values),
                )
                for call in _breaks(case)
            )
        ),
        evaluation_criteria=_criteria(case),
    )


def _terms(trouble: Trouble, wish: Wish, rng: Random) -> Iterable[words.Phrase]:
    yield rng.choice(words.RESOLVED[trouble.intent])
    yield rng.choice(words.PAYS if wish.pays else words.PAYS_NOT)
    if trouble.intent == SERVICE:
        return
    yield rng.choice(words.KEEPS_PLAN)
    if not wish.asks_gb:
        yield rng.choice(words.REFUELS_NOT)
    elif wish.asks_gb > MAX_REFUEL_GB:
        yield rng.choice(words.REFUELS_TOO_MUCH)
    else:
        yield rng.choice(words.REFUELS)


def _breaks(case: Case) -> Iterable[Call]:
    yield INTRODUCE
    if case.trouble.fault_in(USAGE) is None:
        yield SET_USAGE
    for broken in (*case.decoys, *case.trouble.faults):
        yield from broken.breaks


def _fixes(trouble: Trouble) -> list[Call]:
    fixes: list[Call] = []
    for fault in trouble.faults:
        # Both APN faults are repaired by one reset.
        if not all(call in fixes for call in fault.fixes):
            fixes.extend(fault.fixes)
    return fixes


def _criteria(case: Case) -> EvaluationCriteria:
    trouble = case.trouble
    if trap := trouble.trap:
        checks, calls = list(trap.checks), [TRANSFER]
        basis = (RewardType.ENV_ASSERTION, RewardType.ACTION)
    else:
        checks = [*GOALS[trouble.intent], REFUELLED]
        checks += [check for fault in trouble.faults for check in fault.checks]
        calls = _fixes(trouble)
        basis = (RewardType.ENV_ASSERTION,)
    checks += [check for decoy in case.decoys for check in decoy.checks]
    return EvaluationCriteria(
        actions=tuple(_action(case, call, number) for number, call in enumerate(calls)),
        env_assertions=tuple(_assertion(case, check) for check in checks),
        reward_basis=basis,
    )


def _action(case: Case, call: Call, number: int) -> Action:
    return Action(
        action_id=f"{call.name}_{number}",
        requestor=call.side,
        name=call.name,
        arguments=call.arguments_for(case.values),
        # How an agent sums up a case it hands over is its own choice.
        compare_args=() if call == TRANSFER else None,
    )


def _assertion(case: Case, check: Check) -> EnvAssertion:
    return EnvAssertion(
        env_type=check.call.side,
        func_name=check.call.name,
        arguments=check.call.arguments_for(case.values),
        assert_value=check.expected,
    )
