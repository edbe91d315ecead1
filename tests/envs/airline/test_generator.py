import json
import re

import pytest

from airline_tasks import (
    WRITES,
    airline,
    customer,
    new_environment,
    read_tool,
    replay,
    tasks,
    user_text,
    write_calls,
)
from grpo_cl.errors import ConfigError
from grpo_cl.types import ToolCall


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("difficulty", [None, 0.0, 1.0])
def test_gold_calls_succeed_and_change_the_database_unless_the_task_is_a_refusal(
    split: str, difficulty: float | None
):
    for task in tasks(split=split, difficulty=difficulty):
        environment = new_environment(task)
        assert list(replay(environment, task))
        assert bool(environment.state().agent) == (not task.is_refusal), task.id
        assert bool(write_calls(task)) == (not task.is_refusal)


def test_the_order_of_the_requests_does_not_change_the_final_state():
    for task in tasks(difficulty=1.0):
        by_subject: dict[str, list[ToolCall]] = {}
        for call in write_calls(task):
            subject = str(call.arguments.get("reservation_id", call.name))
            by_subject.setdefault(subject, []).append(call)
        states: list[object] = []
        for order in (list(by_subject.values()), list(by_subject.values())[::-1]):
            environment = new_environment(task)
            results = [environment.call(call) for calls in order for call in calls]
            assert not any(result.error for result in results), task.id
            states.append(environment.state())
        assert states[0] == states[1], task.id


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_thousands_of_tasks_are_solved_by_their_gold_calls(seed: int):
    for task in tasks(seed=seed, count=1500):
        environment = new_environment(task)
        assert list(replay(environment, task))
        assert bool(environment.state().agent) == (not task.is_refusal), task.id


def test_tasks_depend_on_the_seed_only():
    fresh = airline().generate(seed=1, count=30, split="train")
    assert fresh == tasks()[:30]
    assert [task.gold_actions for task in tasks(seed=2, count=30)] != [
        task.gold_actions for task in fresh
    ]


def test_a_larger_count_keeps_the_first_tasks():
    assert tasks(count=40) == tasks()[:40]


def test_ids_contain_generator_split_seed_and_index():
    task = tasks(seed=2, count=30, difficulty=0.0)[3]
    assert task.id.startswith("airline-gen-train-2-")
    assert task.id.endswith("-3")
    assert task.domain == "airline"
    assert task.difficulty == 0.0


def test_train_and_test_share_no_customer_and_touch_only_their_reservations():
    customers = {
        split: {customer(task) for task in tasks(split=split)} for split in ("train", "test")
    }
    assert customers["train"].isdisjoint(customers["test"])
    for task in tasks(split="test")[:60]:
        owned = read_tool(new_environment(task), "get_user_details", user_id=customer(task))[
            "reservations"
        ]
        named = [action.arguments.get("reservation_id") for action in task.gold_actions]
        assert all(key in owned for key in named if key is not None)


@pytest.mark.slow
def test_all_tasks_have_different_requests():
    distinct = {
        json.dumps([(action.name, action.arguments) for action in task.gold_actions])
        for task in tasks(count=2000, seed=3)
        if not task.is_refusal
    }
    refused = [task for task in tasks(count=2000, seed=3) if task.is_refusal]
    assert len(distinct) == 2000 - len(refused)
    assert len({user_text(task) for task in refused}) == len(refused)


def test_the_easiest_tasks_have_one_write_and_no_refusal():
    for task in tasks(difficulty=0.0):
        assert not task.is_refusal
        assert len(write_calls(task)) == 1
        for action in task.gold_actions:
            named = action.arguments.get("reservation_id")
            assert named is None or str(named) in user_text(task)


def test_harder_tasks_have_more_writes():
    means = [
        sum(len(write_calls(task)) for task in tasks(difficulty=level) if not task.is_refusal)
        / sum(not task.is_refusal for task in tasks(difficulty=level))
        for level in (0.0, 0.5, 1.0)
    ]
    assert means[0] == 1 < 2 <= means[1] < 3 <= means[2] <= 4


@pytest.mark.slow
def test_refusals_are_a_small_share():
    hard = tasks(difficulty=1.0, count=600, seed=5)
    assert 0 < sum(task.is_refusal for task in hard) <= 0.15 * len(hard)


def test_every_kind_of_write_and_many_kinds_of_refusal_occur():
    names = {call.name for task in tasks() for call in write_calls(task)}
    assert names == WRITES
    purposes = "; ".join(
        task.description.purpose or "" for task in tasks(difficulty=1.0) if task.description
    )
    assert len(set(re.findall(r"refuse: [^;]+", purposes))) >= 8


def test_requested_amounts_have_three_digits_and_match_the_payment_history():
    num_checked = 0
    for task in tasks(difficulty=0.3):
        for number in task.communicate_info if len(task.skills) == 1 else ():
            num_checked += 1
            assert re.fullmatch(r"\d{3,}", number)
            environment = new_environment(task)
            *reads, write = replay(environment, task)
            assert reads
            key = str(write.arguments.get("reservation_id", "HATHAT"))
            after = read_tool(environment, "get_reservation_details", reservation_id=key)
            payments = after["payment_history"]
            is_booking = write.name == "book_reservation"
            amount = sum(entry["amount"] for entry in (payments if is_booking else payments[-1:]))
            assert abs(amount) == int(number)
    assert num_checked


def test_texts_have_no_placeholders_and_tickets_are_short():
    for task in tasks():
        assert "$" not in user_text(task)
        ticket = task.ticket or ""
        assert customer(task) in ticket
        assert "$" not in ticket
        assert 1 <= ticket.count(". ") + 1 <= 6
        assert not any(action.name in ticket for action in task.gold_actions)


def test_a_transfer_matches_with_any_summary():
    transfers = [
        action
        for task in tasks(difficulty=1.0, count=600, seed=5)
        for action in task.gold_actions
        if action.name == "transfer_to_human_agents"
    ]
    assert transfers
    assert all(action.compare_args == () for action in transfers)


def test_an_unknown_split_is_rejected_with_its_name():
    with pytest.raises(ConfigError, match="'base'"):
        airline().generate(seed=1, count=1, split="base")
