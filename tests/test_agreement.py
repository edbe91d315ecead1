import json
from collections.abc import Callable, Mapping

import pytest

from grpo_cl.domains import DOMAINS, Domain
from grpo_cl.domains.base import State
from grpo_cl.domains.toy import ToyEnvironment
from grpo_cl.rewards.agreement import Changes, agreement, changed, changes
from grpo_cl.rewards.criteria import goal_of
from grpo_cl.types import ToolCall

GetDomain = Callable[[str], Domain]
ORDER = ("orders", "1")
START = {"status": "open", "items": ["a", "b"], "paid": 3, "notes": []}


def after(record: object) -> Changes:
    """What an episode changed that left the order as ``record``; None deletes it."""
    text = None if record is None else json.dumps(record)
    found = changed({ORDER: json.dumps(START)}, {ORDER: text})
    return {("agent", *place): text for place, text in found.items()}


def held(record: object) -> Mapping[tuple[str | int, ...], str | None]:
    return {path: text for (_, _, path), text in after(record).items()}


def test_a_place_is_a_leaf_and_a_change_is_what_it_holds_afterwards() -> None:
    assert held(START) == {}
    assert held(START | {"status": "shut"}) == {("status",): "'shut'"}
    assert held(START | {"items": ["a"]}) == {("items", 1): None}
    assert held(START | {"items": ["a", "b", {"c": 1}]}) == {("items", 2, "c"): "1"}
    assert held(START | {"notes": ["x"]}) == {("notes",): None, ("notes", 0): "'x'"}


def test_numbers_that_a_database_tells_apart_are_different_places() -> None:
    assert held(START | {"paid": 3.0}) == {("paid",): "3.0"}
    assert agreement(after(START | {"paid": 1}), after(START | {"paid": True})) == 0.0


def test_a_record_that_is_deleted_or_made_counts_with_all_its_leaves() -> None:
    gone = held(None)
    assert gone == dict.fromkeys([("status",), ("items", 0), ("items", 1), ("paid",), ("notes",)])
    made = changed({ORDER: None}, {ORDER: json.dumps(START)})
    assert {path for _, path in made} == gone.keys()
    assert changed({ORDER: None}, {ORDER: None}) == {}


def test_agreement_is_the_share_of_changed_places_that_are_as_gold_leaves_them() -> None:
    gold = after(START | {"status": "shut", "paid": 0, "items": ["a", "c"]})
    assert agreement(gold, gold) == 1.0
    assert agreement(gold, {}) == 0.0
    assert agreement(gold, after(START | {"status": "shut"})) == 1 / 3
    assert agreement(gold, after(START | {"status": "shut", "paid": 9})) == 1 / 3
    # One right, two of gold's missing, one that gold does not touch.
    assert agreement(gold, after(START | {"status": "shut", "notes": "x"})) == 1 / 4
    assert agreement(gold, after(None)) == 0.0


def test_where_nothing_is_to_be_changed_only_nothing_agrees() -> None:
    assert agreement({}, {}) == 1.0
    assert agreement({}, after(START | {"paid": 4})) == 0.0


def test_both_sides_count_and_what_a_state_does_not_name_is_as_in_the_base(
    domain: GetDomain,
) -> None:
    telecom = domain("telecom")
    broken = ("airplane_mode_on", "data_usage_exceeded")
    task = next(task for task in telecom.tasks("test") if all(what in task.id for what in broken))
    world = telecom.environment(task)
    start = world.state()
    assert start.user  # the task's own changes are where it begins, not what was done
    assert changes(world, start, start) == {}
    world.call(ToolCall(name="toggle_airplane_mode", requestor="user"))
    found = changes(world, start, world.state())
    assert found["user", ("device", ""), ("airplane_mode",)] == "False"
    undone = changes(world, start, State({}, {}))
    assert undone["user", ("device", ""), ("airplane_mode",)] == "False"
    assert {side for side, _, _ in undone} == {"agent", "user"}


def test_a_world_of_plain_text_is_compared_as_text() -> None:
    right, wrong = ToyEnvironment("left-00"), ToyEnvironment("left-00")
    start = right.state()
    right.call(ToolCall(name="choose", arguments={"option": "left"}))
    wrong.call(ToolCall(name="choose", arguments={"option": "up"}))
    gold, made = (changes(world, start, world.state()) for world in (right, wrong))
    assert (agreement(gold, gold), agreement(gold, made)) == (1.0, 0.0)


@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_every_domain_knows_what_its_tasks_begin_with(domain: GetDomain, name: str) -> None:
    known = domain(name)
    for task in known.tasks(next(iter(known.splits)))[:3]:
        goal = goal_of(known, task)
        world = known.environment(task)
        assert bool(changes(world, goal.start, goal.end)) == (goal.start != goal.end)
        assert goal.agreement(world, goal.end) == 1.0
        assert goal.agreement(world, world.state()) == float(goal.start == goal.end)
