from collections.abc import Callable, Sequence
from random import Random

import pytest

from grpo_cl.demonstrations import demonstrate
from grpo_cl.demonstrations.mistakes import (
    HAND_OVER,
    Answered,
    _confuse,
    _give_up,
    _leave_out,
    _stop_early,
    spoil,
)
from grpo_cl.domains import Domain
from grpo_cl.policy.sft import Lesson, examples
from grpo_cl.rewards import RewardOracle
from grpo_cl.types import ToolCall


def read(name: str, answer: str) -> Answered:
    return Answered(ToolCall(name=name), answer, is_write=False)


def write(name: str, **arguments: str) -> Answered:
    return Answered(ToolCall(name=name, arguments=dict(arguments)), "done", is_write=True)


LOOK = read("get_order", '{"orders": ["#W12", "#W97"], "address": "12 Elm Street"}')
CANCEL = write("cancel", order_id="#W12", reason="mistake")
REFUND = write("refund", order_id="#W12")


def names(calls: Sequence[ToolCall] | None) -> list[str]:
    return [call.name for call in calls or ()]


def test_whoever_stops_early_makes_neither_a_change_nor_what_follows() -> None:
    assert names(_stop_early([LOOK, CANCEL], Random(0))) == ["get_order"]
    found = {tuple(names(_stop_early([LOOK, CANCEL, REFUND], Random(n)))) for n in range(20)}
    assert found == {("get_order",), ("get_order", "cancel")}


def test_whoever_gives_up_hands_over_instead_of_a_change() -> None:
    calls = _give_up([LOOK, CANCEL], Random(0))
    assert names(calls) == ["get_order", HAND_OVER.name]


def test_a_change_that_is_left_out_is_followed_by_the_rest() -> None:
    found = {tuple(names(_leave_out([LOOK, CANCEL, REFUND], Random(n)))) for n in range(20)}
    assert found == {("get_order", "refund"), ()}  # without the last, it would be stopping early
    assert _leave_out([LOOK, CANCEL], Random(0)) is None


def test_a_value_is_confused_with_one_that_looks_like_it() -> None:
    calls = _confuse([LOOK, CANCEL], Random(0))
    assert calls is not None
    assert calls[0] == LOOK.call
    assert calls[1].arguments == {"order_id": "#W97", "reason": "mistake"} or (
        calls[1].arguments["order_id"] == "#W12" and calls[1].arguments["reason"] != "mistake"
    )


def test_a_value_like_no_other_cannot_be_confused() -> None:
    assert _confuse([read("get_order", '{"order": "#W12"}'), REFUND], Random(0)) is None


def test_nothing_is_spoiled_where_nothing_is_changed() -> None:
    assert spoil([LOOK], Random(0)) is None


@pytest.mark.parametrize("seed", range(8))
def test_spoiled_calls_are_not_the_calls_that_were_made(seed: int) -> None:
    played = [LOOK, CANCEL, REFUND]
    assert spoil(played, Random(seed)) not in (None, [answer.call for answer in played])


def test_every_kind_of_mistake_is_made_sometimes() -> None:
    played = [LOOK, CANCEL, REFUND]
    found = {tuple(names(spoil(played, Random(seed)))) for seed in range(40)}
    assert ("get_order", "cancel", "refund") in found  # with a value confused
    assert ("get_order", "refund") in found
    assert ("get_order", "cancel", HAND_OVER.name) in found
    assert ("get_order", "cancel") in found


@pytest.mark.parametrize("name", ["airline", "retail", "telecom"])
def test_a_careless_demonstration_is_not_solved_and_a_careful_one_is(
    name: str, domain: Callable[[str], Domain]
) -> None:
    played = domain(name)
    oracle = RewardOracle({name: played})
    tasks = played.generate(seed=3, count=12, split="train", difficulty=0.0)
    careful = {task.id: demonstrate(played, task) for task in tasks}
    careless = {task.id: demonstrate(played, task, careless=Random(task.id)) for task in tasks}
    spoiled = 0
    for task in tasks:
        right, wrong = careful[task.id], careless[task.id]
        if right is None or wrong is None:
            assert right is wrong  # what cannot be shown is not spoiled either
            continue
        assert oracle.score(right).value == 1
        if wrong != right:
            spoiled += 1
            assert oracle.score(wrong).value < 1
    assert spoiled >= len(tasks) // 2


def test_a_lesson_has_the_share_of_mistakes_it_is_asked_for() -> None:
    lesson = Lesson("retail", 0, 60, 0.0, is_compact=True)
    careful = examples(lesson)
    shares: list[float] = []
    for mistakes in (0.0, 0.5, 1.0):
        careless = examples(lesson._replace(mistakes=mistakes))
        assert [each.scene.task.id for each in careless] == [each.scene.task.id for each in careful]
        pairs = zip(careful, careless, strict=True)
        shares.append(sum(a.messages != b.messages for a, b in pairs) / len(careful))
    assert shares[0] == 0
    assert shares[1] == pytest.approx(shares[2] / 2, abs=0.2)
    assert shares[2] > 0.5
