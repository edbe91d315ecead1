from collections.abc import Callable, Sequence
from random import Random

import pytest
from pydantic import JsonValue

from grpo_cl.envs import Domain
from grpo_cl.policy.learner.sft_data import DemonstrationSpec, generate_examples
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout.demonstration_errors import (
    TRANSFER_CALL,
    AnsweredCall,
    _replace_value,
    _skip_write,
    _stop_early,
    _transfer_early,
    inject_error,
)
from grpo_cl.rollout.demonstrations import demonstrate
from grpo_cl.types import ToolCall, Trajectory


def read(name: str, answer: str) -> AnsweredCall:
    return AnsweredCall(ToolCall(name=name), answer, is_write=False)


def write(name: str, **arguments: str) -> AnsweredCall:
    return AnsweredCall(ToolCall(name=name, arguments=dict(arguments)), "done", is_write=True)


LOOK = read("get_order", '{"orders": ["#W12", "#W97"], "address": "12 Elm Street"}')
CANCEL = write("cancel", order_id="#W12", reason="mistake")
REFUND = write("refund", order_id="#W12")


def names(calls: Sequence[ToolCall] | None) -> list[str]:
    return [call.name for call in calls or ()]


def bookings(trajectory: Trajectory) -> list[dict[str, JsonValue]]:
    return [call.arguments for call in trajectory.tool_calls if call.name == "book_reservation"]


def test_stopping_early_drops_a_write_and_all_later_calls() -> None:
    assert names(_stop_early([LOOK, CANCEL], Random(0))) == ["get_order"]
    outcomes = {tuple(names(_stop_early([LOOK, CANCEL, REFUND], Random(n)))) for n in range(20)}
    assert outcomes == {("get_order",), ("get_order", "cancel")}


def test_early_transfer_replaces_a_write() -> None:
    calls = _transfer_early([LOOK, CANCEL], Random(0))
    assert names(calls) == ["get_order", TRANSFER_CALL.name]


def test_skipped_write_is_followed_by_the_remaining_calls() -> None:
    outcomes = {tuple(names(_skip_write([LOOK, CANCEL, REFUND], Random(n)))) for n in range(20)}
    assert outcomes == {("get_order", "refund"), ()}  # without the last, it would be stopping early
    assert _skip_write([LOOK, CANCEL], Random(0)) is None


def test_value_is_replaced_by_one_of_the_same_format() -> None:
    calls = _replace_value([LOOK, CANCEL], Random(0))
    assert calls is not None
    assert calls[0] == LOOK.call
    assert calls[1].arguments == {"order_id": "#W97", "reason": "mistake"} or (
        calls[1].arguments["order_id"] == "#W12" and calls[1].arguments["reason"] != "mistake"
    )


def test_value_with_a_unique_format_is_not_replaced() -> None:
    assert _replace_value([read("get_order", '{"order": "#W12"}'), REFUND], Random(0)) is None


def test_calls_without_a_write_get_no_error() -> None:
    assert inject_error([LOOK], Random(0)) is None


@pytest.mark.parametrize("seed", range(8))
def test_injected_error_changes_the_calls(seed: int) -> None:
    calls = [LOOK, CANCEL, REFUND]
    assert inject_error(calls, Random(seed)) not in (None, [answered.call for answered in calls])


def test_every_kind_of_error_occurs() -> None:
    calls = [LOOK, CANCEL, REFUND]
    outcomes = {tuple(names(inject_error(calls, Random(seed)))) for seed in range(40)}
    assert ("get_order", "cancel", "refund") in outcomes  # with a value replaced
    assert ("get_order", "refund") in outcomes
    assert ("get_order", "cancel", TRANSFER_CALL.name) in outcomes
    assert ("get_order", "cancel") in outcomes


@pytest.mark.parametrize("name", ["airline", "retail", "telecom"])
def test_demonstration_with_an_error_fails_and_one_without_succeeds(
    name: str, domain: Callable[[str], Domain]
) -> None:
    env = domain(name)
    oracle = RewardOracle({name: env})
    tasks = env.generate(seed=3, count=12, split="train", difficulty=0.0)
    correct = {task.id: demonstrate(env, task) for task in tasks}
    wrong = {task.id: demonstrate(env, task, error_rng=Random(task.id)) for task in tasks}
    num_errors = 0
    for task in tasks:
        solved, failed = correct[task.id], wrong[task.id]
        if solved is None or failed is None:
            assert solved is failed  # a task without a demonstration gets no error either
            continue
        assert oracle.score(solved).value == 1
        if failed != solved:
            num_errors += 1
            assert oracle.score(failed).value < 1
    assert num_errors >= len(tasks) // 2


def test_an_error_comes_after_a_booking_that_the_tool_refused(
    domain: Callable[[str], Domain],
) -> None:
    airline = domain("airline")
    oracle = RewardOracle({"airline": airline})
    num_refused = 0
    for task in airline.generate(seed=0, count=60, difficulty=0.0):
        solved = demonstrate(airline, task)
        if solved is None or not any(
            (m.content or "").startswith("Error") for m in solved.messages
        ):
            continue
        num_refused += 1
        refused, booked = bookings(solved)
        for seed in range(12):
            failed = demonstrate(airline, task, error_rng=Random(seed))
            assert failed is not None
            assert oracle.score(failed).value < 1
            assert bookings(failed)[:1] == [refused]
            assert booked not in bookings(failed)
    assert num_refused


def test_examples_have_the_configured_rate_of_errors() -> None:
    spec = DemonstrationSpec("retail", 0, 60, 0.0, is_compact=True)
    correct = generate_examples(spec)
    rates: list[float] = []
    for mistakes in (0.0, 0.5, 1.0):
        examples = generate_examples(spec._replace(mistakes=mistakes))
        assert [e.scene.task.id for e in examples] == [e.scene.task.id for e in correct]
        pairs = zip(correct, examples, strict=True)
        rates.append(sum(a.messages != b.messages for a, b in pairs) / len(correct))
    assert rates[0] == 0
    assert rates[1] == pytest.approx(rates[2] / 2, abs=0.2)
    assert rates[2] > 0.5
