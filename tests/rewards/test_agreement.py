import json
from collections.abc import Callable, Mapping

import pytest

from grpo_cl.envs import DOMAINS, Domain
from grpo_cl.envs.base import State
from grpo_cl.envs.toy.domain import ToyEnvironment
from grpo_cl.rewards.agreement import Changes, agreement, changed_leaves, changes
from grpo_cl.rewards.criteria import goal_state
from grpo_cl.types import ToolCall

GetDomain = Callable[[str], Domain]
ORDER = ("orders", "1")
START = {"status": "open", "items": ["a", "b"], "paid": 3, "notes": []}


def after(record: object) -> Changes:
    """The changes of an episode that ends with the order ``record``; None deletes it."""
    text = None if record is None else json.dumps(record)
    leaves = changed_leaves({ORDER: json.dumps(START)}, {ORDER: text})
    return {("agent", *leaf): text for leaf, text in leaves.items()}


def changed_values(record: object) -> Mapping[tuple[str | int, ...], str | None]:
    return {path: text for (_, _, path), text in after(record).items()}


def test_change_of_a_leaf_is_its_new_value() -> None:
    assert changed_values(START) == {}
    assert changed_values(START | {"status": "shut"}) == {("status",): "'shut'"}
    assert changed_values(START | {"items": ["a"]}) == {("items", 1): None}
    assert changed_values(START | {"items": ["a", "b", {"c": 1}]}) == {("items", 2, "c"): "1"}
    assert changed_values(START | {"notes": ["x"]}) == {("notes",): None, ("notes", 0): "'x'"}


def test_numbers_of_different_type_differ() -> None:
    assert changed_values(START | {"paid": 3.0}) == {("paid",): "3.0"}
    assert agreement(after(START | {"paid": 1}), after(START | {"paid": True})) == 0.0


def test_deleted_or_created_record_counts_with_all_its_leaves() -> None:
    deleted = changed_values(None)
    assert deleted == dict.fromkeys(
        [("status",), ("items", 0), ("items", 1), ("paid",), ("notes",)]
    )
    created = changed_leaves({ORDER: None}, {ORDER: json.dumps(START)})
    assert {path for _, path in created} == deleted.keys()
    assert changed_leaves({ORDER: None}, {ORDER: None}) == {}


def test_agreement_is_the_fraction_of_changed_leaves_with_the_gold_value() -> None:
    gold = after(START | {"status": "shut", "paid": 0, "items": ["a", "c"]})
    assert agreement(gold, gold) == 1.0
    assert agreement(gold, {}) == 0.0
    assert agreement(gold, after(START | {"status": "shut"})) == 1 / 3
    assert agreement(gold, after(START | {"status": "shut", "paid": 9})) == 1 / 3
    # One right, two gold changes missing, one leaf that gold does not change.
    assert agreement(gold, after(START | {"status": "shut", "notes": "x"})) == 1 / 4
    assert agreement(gold, after(None)) == 0.0


def test_without_gold_changes_only_an_episode_without_changes_agrees() -> None:
    assert agreement({}, {}) == 1.0
    assert agreement({}, after(START | {"paid": 4})) == 0.0


def test_changes_cover_agent_and_user_side_relative_to_the_base_state(
    domain: GetDomain,
) -> None:
    telecom = domain("telecom")
    broken = ("airplane_mode_on", "data_usage_exceeded")
    task = next(task for task in telecom.tasks("test") if all(what in task.id for what in broken))
    environment = telecom.environment(task)
    start = environment.state()
    assert start.user  # the task's initialization is part of the start, not a change
    assert changes(environment, start, start) == {}
    environment.call(ToolCall(name="toggle_airplane_mode", requestor="user"))
    found = changes(environment, start, environment.state())
    assert found["user", ("device", ""), ("airplane_mode",)] == "False"
    undone = changes(environment, start, State({}, {}))
    assert undone["user", ("device", ""), ("airplane_mode",)] == "False"
    assert {side for side, _, _ in undone} == {"agent", "user"}


def test_plain_text_state_is_compared_as_text() -> None:
    right, wrong = ToyEnvironment("left-00"), ToyEnvironment("left-00")
    start = right.state()
    right.call(ToolCall(name="choose", arguments={"option": "left"}))
    wrong.call(ToolCall(name="choose", arguments={"option": "up"}))
    gold, other = (changes(env, start, env.state()) for env in (right, wrong))
    assert (agreement(gold, gold), agreement(gold, other)) == (1.0, 0.0)


@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_goal_state_is_consistent_in_every_domain(domain: GetDomain, name: str) -> None:
    loaded = domain(name)
    for task in loaded.tasks(next(iter(loaded.splits)))[:3]:
        goal = goal_state(loaded, task)
        environment = loaded.environment(task)
        assert bool(changes(environment, goal.start, goal.end)) == (goal.start != goal.end)
        assert goal.agreement(environment, goal.end) == 1.0
        assert goal.agreement(environment, environment.state()) == float(goal.start == goal.end)
