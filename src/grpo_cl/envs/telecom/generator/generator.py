"""Telecom tasks: a caller, faults of the line and the phone, and what the caller agrees to."""

import json
from collections.abc import Iterable
from functools import cache
from random import Random

from inspect_evals.tau2.telecom.data_model import TelecomDB
from inspect_evals.tau2.utils import TAU2_DATA_DIR

from grpo_cl.envs.generation.tasks import TaskMaker, skill_set
from grpo_cl.envs.telecom.generator import wording
from grpo_cl.envs.telecom.generator.callers import find_households
from grpo_cl.envs.telecom.generator.cases import (
    MAX_REFUEL_GB,
    Consent,
    Problem,
    TelecomCase,
    draw_case,
    draw_problem,
)
from grpo_cl.envs.telecom.generator.faults import (
    GOALS,
    INTRODUCE,
    REFUELLED,
    SERVICE,
    SET_USAGE,
    TRANSFER,
    USAGE,
    CallTemplate,
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


def task_maker(
    database: TelecomDB, split: str, *, write: wording.TextWriter = wording.write_texts
) -> TaskMaker:
    """The function that draws tasks about lines of ``split``, without τ²-bench's test faults."""
    households = find_households(database, split)

    def make(rng: Random, level: float) -> Task | None:
        caller = rng.choice(rng.choice(households))
        problem = draw_problem(caller, rng, level)
        if problem.signature in shipped_test_signatures():
            return None
        case = draw_case(caller, problem, rng, level)
        persona = rng.choice(wording.PERSONAS) if rng.random() < level else None
        return _make_task(case, persona, rng, write)

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


def _make_task(
    case: TelecomCase, persona: str | None, rng: Random, write: wording.TextWriter
) -> Task:
    problem = case.problem
    texts = write(
        [
            *_statements(problem, case.consent, rng),
            *(distractor.phrase for distractor in case.distractors),
        ],
        opening=rng.choice(wording.COMPLAINTS[problem.intent]),
        values=case.values,
        rng=rng,
    )
    return Task(
        id="",
        domain="telecom",
        description=Description(purpose=problem.signature),
        user_scenario=UserScenario(
            persona=persona,
            instructions=StructuredInstructions(
                domain="telecom",
                reason_for_call=texts.reason_for_call,
                known_info=texts.known_info,
                unknown_info=texts.unknown_info,
                task_instructions=texts.task_instructions,
            ),
        ),
        ticket=texts.ticket,
        initial_state=InitialState(
            initialization_actions=tuple(
                EnvFunctionCall(
                    env_type=call.side,
                    func_name=call.name,
                    arguments=call.arguments_for(case.values),
                )
                for call in _initial_calls(case)
            )
        ),
        evaluation_criteria=_criteria(case),
        skills=skill_set(fault.name for fault in problem.faults),
    )


def _statements(problem: Problem, consent: Consent, rng: Random) -> Iterable[wording.Phrase]:
    yield rng.choice(wording.RESOLVED[problem.intent])
    yield rng.choice(wording.PAYS if consent.pays else wording.REFUSES_TO_PAY)
    if problem.intent == SERVICE:
        return
    yield rng.choice(wording.KEEPS_PLAN)
    if not consent.asks_gb:
        yield rng.choice(wording.REFUSES_DATA)
    elif consent.asks_gb > MAX_REFUEL_GB:
        yield rng.choice(wording.REFUELS_TOO_MUCH)
    else:
        yield rng.choice(wording.REFUELS)


def _initial_calls(case: TelecomCase) -> Iterable[CallTemplate]:
    yield INTRODUCE
    if case.problem.fault_in(USAGE) is None:
        yield SET_USAGE
    for cause in (*case.distractors, *case.problem.faults):
        yield from cause.breaks


def _fixes(problem: Problem) -> list[CallTemplate]:
    fixes: list[CallTemplate] = []
    for fault in problem.faults:
        # Both APN faults are repaired by one reset.
        if not all(call in fixes for call in fault.fixes):
            fixes.extend(fault.fixes)
    return fixes


def _criteria(case: TelecomCase) -> EvaluationCriteria:
    problem = case.problem
    if fault := problem.unfixable:
        checks, calls = list(fault.checks), [TRANSFER]
        basis = (RewardType.ENV_ASSERTION, RewardType.ACTION)
    else:
        checks = [*GOALS[problem.intent], REFUELLED]
        checks += [check for fault in problem.faults for check in fault.checks]
        calls = _fixes(problem)
        basis = (RewardType.ENV_ASSERTION,)
    checks += [check for distractor in case.distractors for check in distractor.checks]
    return EvaluationCriteria(
        actions=tuple(_action(case, call, number) for number, call in enumerate(calls)),
        env_assertions=tuple(_assertion(case, check) for check in checks),
        reward_basis=basis,
    )


def _action(case: TelecomCase, call: CallTemplate, number: int) -> Action:
    return Action(
        action_id=f"{call.name}_{number}",
        requestor=call.side,
        name=call.name,
        arguments=call.arguments_for(case.values),
        # A transfer matches whatever its summary.
        compare_args=() if call == TRANSFER else None,
    )


def _assertion(case: TelecomCase, check: Check) -> EnvAssertion:
    return EnvAssertion(
        env_type=check.call.side,
        func_name=check.call.name,
        arguments=check.call.arguments_for(case.values),
        assert_value=check.expected,
    )
