"""Generated doordash tasks: solved by their gold calls, allowed by the policy, reproducible."""

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

import pytest

from grpo_cl.envs.doordash.database import Customer, DoordashDB, Order
from grpo_cl.envs.doordash.domain import DoordashDomain
from grpo_cl.envs.doordash.generator.case import DoordashCase
from grpo_cl.envs.doordash.generator.generator import (
    MIX,
    build_index,
)
from grpo_cl.envs.doordash.rules import is_open, refund_amount, unit_price, update_amounts
from grpo_cl.envs.generation.requests import RequestMaker
from grpo_cl.envs.generation.tasks import in_split
from grpo_cl.errors import ConfigError
from grpo_cl.types import Action, StructuredInstructions, Task
from grpo_cl.users.scripted.ticket import ticket
from user_dialogues import talk


@pytest.fixture(scope="module")
def hard_tasks(doordash: DoordashDomain) -> list[Task]:
    return doordash.generate(seed=12, count=250, difficulty=1.0)


@pytest.fixture(scope="module")
def mixed_tasks(doordash: DoordashDomain) -> list[Task]:
    return doordash.generate(seed=11, count=250)


def writes(task: Task) -> list[Action]:
    reads = ("find_", "get_", "search_", "transfer_")
    return [action for action in task.gold_actions if not action.name.startswith(reads)]


def gold_arguments(tasks: Sequence[Task], *names: str) -> Iterator[dict[str, Any]]:
    actions = [action for task in tasks for action in writes(task) if action.name in names]
    assert actions
    return (dict(action.arguments) for action in actions)


def order_and_customer(database: DoordashDB, arguments: dict[str, Any]) -> tuple[Order, Customer]:
    order = database.orders[arguments["order_id"]]
    return order, database.customers[order.customer_id]


def caller(database: DoordashDB, task: Task) -> Customer:
    [value] = task.gold_actions[0].arguments.values()
    return next(
        customer
        for customer in database.customers.values()
        if value in (customer.email, customer.phone)
    )


def final_changes(
    doordash: DoordashDomain, task: Task, actions: Sequence[Action]
) -> dict[Any, Any]:
    environment = doordash.environment(task)
    for action in actions:
        result = environment.call(action.call)
        assert not result.error, (task.id, action, result.content)
    return dict(environment.state().agent)


def test_gold_calls_succeed_and_change_the_database_unless_the_task_is_a_refusal(
    doordash: DoordashDomain, mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    for task in mixed_tasks + hard_tasks:
        assert (final_changes(doordash, task, task.gold_actions) == {}) == task.is_refusal


def test_final_state_does_not_depend_on_the_order_of_requests(
    doordash: DoordashDomain, hard_tasks: list[Task]
) -> None:
    for task in hard_tasks:
        steps = writes(task)
        # An address must be saved before an order uses it.
        reversed_steps = steps[::-1]
        reversed_steps.sort(key=_is_not_new_address)
        assert final_changes(doordash, task, steps) == final_changes(doordash, task, reversed_steps)


def _is_not_new_address(action: Action) -> bool:
    return action.name != "add_address"


def test_tasks_are_reproducible_and_differ_between_seeds(
    doordash: DoordashDomain,
) -> None:
    first, again, other = (doordash.generate(seed=seed, count=20) for seed in (3, 3, 4))
    assert first == again
    assert not {task.ticket for task in first} & {task.ticket for task in other}


def test_larger_count_appends_tasks(doordash: DoordashDomain) -> None:
    short = doordash.generate(seed=5, count=10, difficulty=0.5)
    assert doordash.generate(seed=5, count=30, difficulty=0.5)[:10] == short


def test_generated_task_is_found_by_its_id(doordash: DoordashDomain) -> None:
    task = doordash.generate(seed=3, count=4, split="test")[3]
    assert task.id == "doordash-gen-test-3-mix-3"
    assert doordash.task(task.id) == task


@pytest.mark.parametrize("split", ["train", "test"])
def test_tasks_name_only_customers_and_orders_of_their_split(
    doordash: DoordashDomain, database: DoordashDB, split: str
) -> None:
    for task in doordash.generate(seed=8, count=60, split=split):
        assert in_split(caller(database, task).customer_id, split)
        order_ids = [
            word for word in ticket(task).replace(",", " ").split() if word in database.orders
        ]
        assert all(in_split(database.orders[word].customer_id, split) for word in order_ids)


def test_easiest_tasks_have_one_allowed_request(
    doordash: DoordashDomain,
) -> None:
    for task in doordash.generate(seed=2, count=150, difficulty=0.0):
        assert len(writes(task)) == 1
        assert not task.is_refusal
        assert "refused" not in str(task.description)


def test_number_of_writes_grows_with_difficulty(doordash: DoordashDomain) -> None:
    means: list[float] = []
    for difficulty in (0.0, 0.5, 1.0):
        tasks = doordash.generate(seed=6, count=80, difficulty=difficulty)
        counts = [len(writes(task)) for task in tasks if not task.is_refusal]
        means.append(sum(counts) / len(counts))
    assert means == sorted(means)
    assert means[0] == 1
    assert 3 <= means[-1] <= 5


def test_shares_of_refusal_tasks_and_of_forbidden_requests(
    mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    assert 0.02 < sum(task.is_refusal for task in mixed_tasks) / len(mixed_tasks) < 0.12
    assert 0.08 < sum(task.is_refusal for task in hard_tasks) / len(hard_tasks) < 0.2
    combined = [t for t in hard_tasks if not t.is_refusal and "refused:" in str(t.description)]
    assert 0.2 < len(combined) / len(hard_tasks) < 0.45


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("maker", [*MIX.allowed, *MIX.forbidden, *MIX.handed_over])
def test_every_request_maker_works_in_each_split_and_writes_only_if_allowed(
    database: DoordashDB, maker: RequestMaker[DoordashCase], split: str
) -> None:
    index = build_index(database, split)
    cases = (index.open_case(Random(seed), 1.0) for seed in range(400))
    requests = list(islice(filter(None, map(maker, cases)), 3))
    assert len(requests) == 3
    assert all(bool(request.writes) == (maker in MIX.allowed) for request in requests)
    assert all(request.has_fallback for request in requests) == (maker in MIX.handed_over)


# Gold calls follow the policy.


def test_new_orders_follow_the_policy(database: DoordashDB, hard_tasks: list[Task]) -> None:
    for order in gold_arguments(hard_tasks, "create_order"):
        customer = database.customers[order["customer_id"]]
        restaurant = database.restaurants[order["restaurant_id"]]
        assert is_open(restaurant)
        assert set(customer.allergies) <= set(order["allergies"])
        subtotal = 0.0
        for line in order["items"]:
            item = database.items[line["item_id"]]
            assert not set(item.allergens) & set(order["allergies"])
            subtotal += unit_price(item, line.get("options", {})) * line["quantity"]
        assert subtotal >= restaurant.minimum_order


def test_delivery_addresses_are_in_the_zones_of_the_restaurant(
    doordash: DoordashDomain, database: DoordashDB, hard_tasks: list[Task]
) -> None:
    for task in hard_tasks:
        environment = doordash.environment(task)
        for action in task.gold_actions:
            result = environment.call(action.call)
            if action.name in {"create_order", "change_delivery_address"}:
                order = Order.model_validate_json(result.content)
                assert order.address.zone in database.restaurants[order.restaurant_id].delivers_to


def test_items_change_only_in_placed_orders_and_stay_above_the_minimum(
    doordash: DoordashDomain, database: DoordashDB, hard_tasks: list[Task]
) -> None:
    names = {"add_item", "modify_item", "remove_item"}
    for task in hard_tasks:
        environment = doordash.environment(task)
        for action in task.gold_actions:
            result = environment.call(action.call)
            if action.name in names:
                order = Order.model_validate_json(result.content)
                assert database.orders[order.order_id].status == "placed"
                minimum = database.restaurants[order.restaurant_id].minimum_order
                assert order.subtotal >= minimum
                for line in order.items:
                    assert not set(database.items[line.item_id].allergens) & set(order.allergies)


def test_cancellations_and_address_changes_are_in_time(
    database: DoordashDB, hard_tasks: list[Task]
) -> None:
    for arguments in gold_arguments(hard_tasks, "cancel_order"):
        assert order_and_customer(database, arguments)[0].status in {"placed", "confirmed"}
    for arguments in gold_arguments(hard_tasks, "change_delivery_address"):
        assert order_and_customer(database, arguments)[0].status in {
            "placed",
            "confirmed",
            "preparing",
        }


def test_customer_accepts_the_fee_of_a_cancellation(
    database: DoordashDB, hard_tasks: list[Task]
) -> None:
    charged = [
        task
        for task in hard_tasks
        for action in writes(task)
        if action.name == "cancel_order"
        and order_and_customer(database, dict(action.arguments))[0].status == "confirmed"
    ]
    assert charged
    for task in charged:
        scenario = task.user_scenario.instructions
        assert isinstance(scenario, StructuredInstructions)
        assert "accept the fee" in scenario.reason_for_call
        assert "accept the fee" in ticket(task)


def test_refunds_follow_the_policy(database: DoordashDB, hard_tasks: list[Task]) -> None:
    for task in hard_tasks:
        refunds = [dict(a.arguments) for a in writes(task) if a.name == "request_refund"]
        for arguments in refunds:
            order, customer = order_and_customer(database, arguments)
            has_pass = (customer.pass_until or "") >= "2025-03-14"
            earliest = "2025-03-11 18:30" if has_pass else "2025-03-12 18:30"
            assert order.delivered_at is not None
            assert order.delivered_at >= earliest
            assert order.refund is None
            items: Any = arguments["items"]
            reason: Any = arguments["reason"]
            quantities = {item["item_id"]: item["quantity"] for item in items}
            assert 0 < refund_amount(order, quantities, reason) <= 60
            before = [e for e in customer.refund_history if e.date.startswith("2025-03")]
            assert len(before) + len(refunds) <= 2


def test_tips_are_lowered_only_before_pick_up_and_raised_within_a_day(
    database: DoordashDB, hard_tasks: list[Task], mixed_tasks: list[Task]
) -> None:
    for arguments in gold_arguments(hard_tasks + mixed_tasks, "update_tip"):
        order, _ = order_and_customer(database, arguments)
        if arguments["tip"] < order.tip:
            assert order.status in {"placed", "confirmed", "preparing"}
        elif order.delivered_at:
            assert order.delivered_at >= "2025-03-13 18:30"


def test_gold_calls_change_each_order_once_and_only_orders_of_the_caller(
    database: DoordashDB, hard_tasks: list[Task]
) -> None:
    for task in hard_tasks:
        changed = [action.arguments.get("order_id") for action in writes(task)]
        orders = [order for order in changed if order]
        assert set(orders) <= set(caller(database, task).orders)
        assert len(set(orders)) == len(orders)


def test_facts_to_communicate_occur_in_tool_results(
    doordash: DoordashDomain, hard_tasks: list[Task]
) -> None:
    with_question = [
        task for task in hard_tasks if (c := task.evaluation_criteria) and c.communicate_info
    ]
    assert len(with_question) > 20
    shown = 0
    for task in with_question:
        environment = doordash.environment(task)
        answers = " ".join(environment.call(action.call).content for action in task.gold_actions)
        assert task.evaluation_criteria is not None
        assert task.evaluation_criteria.communicate_info is not None
        shown += all(info in answers for info in task.evaluation_criteria.communicate_info)
    # The fee or the shortfall of a forbidden request has to be computed.
    assert shown / len(with_question) > 0.85


def test_update_amounts_reproduces_the_total_of_an_order(database: DoordashDB) -> None:
    order = next(iter(database.orders.values())).model_copy()
    total = order.total
    update_amounts(
        order, database.restaurants[order.restaurant_id], database.customers[order.customer_id]
    )
    assert order.total == total


def test_invalid_difficulty_or_split_is_an_error(doordash: DoordashDomain) -> None:
    with pytest.raises(ConfigError, match=r"1\.5"):
        doordash.generate(seed=0, count=1, difficulty=1.5)
    with pytest.raises(ConfigError, match="dev"):
        doordash.generate(seed=0, count=1, split="dev")


# Texts.


def test_ticket_uses_the_third_person_and_the_scenario_the_second(mixed_tasks: list[Task]) -> None:
    for task in mixed_tasks:
        words = {word.strip(".,;()").lower() for word in ticket(task).split()}
        assert not words & {"you", "your"}, ticket(task)
        scenario = task.user_scenario.instructions
        assert isinstance(scenario, StructuredInstructions)
        assert "{" not in f"{scenario.reason_for_call} {ticket(task)}"
        assert "their" not in scenario.reason_for_call.split()


def test_scripted_user_states_request_and_identity_confirms_and_stops(
    mixed_tasks: list[Task],
) -> None:
    for task in mixed_tasks[:80]:
        opening, identity, yes, *ends = talk(
            task,
            "Hi! How can I help you today?",
            "What is the email or the phone number of your account?",
            "I will do exactly that. Do you confirm (yes/no)?",
            *["It is done. Is there anything else I can help you with?"] * 4,
        )
        assert opening.startswith("I "), opening
        assert "@example.com" in identity or "555-" in identity, identity
        assert yes.startswith("Yes"), yes
        assert any("###STOP###" in reply for reply in ends)
