"""Generated delivery tasks: solvable by their gold, within the policy, reproducible."""

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

import pytest

from grpo_cl.domains import load_domain
from grpo_cl.domains.doordash.database import Customer, DoordashDB, Order
from grpo_cl.domains.doordash.domain import DoordashDomain
from grpo_cl.domains.doordash.rules import is_open, refund_amount, settle, unit_price
from grpo_cl.domains.generators.doordash.generator import (
    HANDED_OVER,
    KINDS,
    TRAPS,
    Maker,
    clientele_of,
    open_case,
)
from grpo_cl.domains.generators.draft import in_split
from grpo_cl.errors import ConfigError
from grpo_cl.types import Action, StructuredInstructions, Task
from grpo_cl.users.ticket import ticket
from test_users import talk


@pytest.fixture(scope="module")
def doordash() -> DoordashDomain:
    domain = load_domain("doordash")
    assert isinstance(domain, DoordashDomain)
    return domain


@pytest.fixture(scope="module")
def database(doordash: DoordashDomain) -> DoordashDB:
    model = doordash.database.model
    assert isinstance(model, DoordashDB)
    return model


@pytest.fixture(scope="module")
def hardest(doordash: DoordashDomain) -> list[Task]:
    return doordash.generate(seed=12, count=250, difficulty=1.0)


@pytest.fixture(scope="module")
def mixed(doordash: DoordashDomain) -> list[Task]:
    return doordash.generate(seed=11, count=250)


def writes(task: Task) -> list[Action]:
    reads = ("find_", "get_", "search_", "transfer_")
    return [action for action in task.gold_actions if not action.name.startswith(reads)]


def made(tasks: Sequence[Task], *names: str) -> Iterator[dict[str, Any]]:
    found = [action for task in tasks for action in writes(task) if action.name in names]
    assert found
    return (dict(action.arguments) for action in found)


def with_owner(database: DoordashDB, arguments: dict[str, Any]) -> tuple[Order, Customer]:
    order = database.orders[arguments["order_id"]]
    return order, database.customers[order.customer_id]


def caller(database: DoordashDB, task: Task) -> Customer:
    given = task.gold_actions[0].arguments.values()
    [value] = given
    return next(each for each in database.customers.values() if value in (each.email, each.phone))


def after(doordash: DoordashDomain, task: Task, actions: Sequence[Action]) -> dict[Any, Any]:
    environment = doordash.environment(task)
    for action in actions:
        result = environment.call(action.call)
        assert not result.error, (task.id, action, result.content)
    return dict(environment.state().agent)


def test_gold_calls_succeed_and_change_the_world_unless_refusal_is_right(
    doordash: DoordashDomain, mixed: list[Task], hardest: list[Task]
) -> None:
    for task in mixed + hardest:
        assert (after(doordash, task, task.gold_actions) == {}) == task.is_refusal


def test_the_order_in_which_an_agent_handles_the_requests_does_not_matter(
    doordash: DoordashDomain, hardest: list[Task]
) -> None:
    for task in hardest:
        steps = writes(task)
        # An address must be saved before something is sent there.
        backwards = steps[::-1]
        backwards.sort(key=_is_no_address)
        assert after(doordash, task, steps) == after(doordash, task, backwards)


def _is_no_address(action: Action) -> bool:
    return action.name != "add_address"


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others(
    doordash: DoordashDomain,
) -> None:
    first, again, other = (doordash.generate(seed=seed, count=20) for seed in (3, 3, 4))
    assert first == again
    assert not {task.ticket for task in first} & {task.ticket for task in other}


def test_a_longer_list_begins_with_the_shorter(doordash: DoordashDomain) -> None:
    short = doordash.generate(seed=5, count=10, difficulty=0.5)
    assert doordash.generate(seed=5, count=30, difficulty=0.5)[:10] == short


def test_a_generated_task_is_found_again_by_its_id(doordash: DoordashDomain) -> None:
    task = doordash.generate(seed=3, count=4, split="test")[3]
    assert task.id == "doordash-gen-test-3-mix-3"
    assert doordash.task(task.id) == task


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_task_speaks_of_customers_and_orders_of_its_half_alone(
    doordash: DoordashDomain, database: DoordashDB, split: str
) -> None:
    for task in doordash.generate(seed=8, count=60, split=split):
        assert in_split(caller(database, task).customer_id, split)
        named = [word for word in ticket(task).replace(",", " ").split() if word in database.orders]
        assert all(in_split(database.orders[word].customer_id, split) for word in named)


def test_the_easiest_tasks_have_one_request_and_nothing_to_refuse(
    doordash: DoordashDomain,
) -> None:
    for task in doordash.generate(seed=2, count=150, difficulty=0.0):
        assert len(writes(task)) == 1
        assert not task.is_refusal
        assert "refused" not in str(task.description)


def test_writes_grow_with_difficulty(doordash: DoordashDomain) -> None:
    means: list[float] = []
    for difficulty in (0.0, 0.5, 1.0):
        tasks = doordash.generate(seed=6, count=80, difficulty=difficulty)
        counts = [len(writes(task)) for task in tasks if not task.is_refusal]
        means.append(sum(counts) / len(counts))
    assert means == sorted(means)
    assert means[0] == 1
    assert 3 <= means[-1] <= 5


def test_refusals_stay_a_small_share_and_traps_stand_beside_requests(
    mixed: list[Task], hardest: list[Task]
) -> None:
    assert 0.02 < sum(task.is_refusal for task in mixed) / len(mixed) < 0.12
    assert 0.08 < sum(task.is_refusal for task in hardest) / len(hardest) < 0.2
    trapped = [t for t in hardest if not t.is_refusal and "refused:" in str(t.description)]
    assert 0.2 < len(trapped) / len(hardest) < 0.45


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("maker", [*KINDS, *TRAPS, *HANDED_OVER])
def test_every_kind_of_request_is_found_in_each_half_and_writes_only_if_it_is_allowed(
    database: DoordashDB, maker: Maker, split: str
) -> None:
    clientele = clientele_of(database, split)
    cases = (open_case(clientele, Random(number), 1.0) for number in range(400))
    found = list(islice(filter(None, map(maker, cases)), 3))
    assert len(found) == 3
    assert all(bool(request.writes) == (maker in KINDS) for request in found)
    assert all(request.closing for request in found) == (maker in HANDED_OVER)


# What the gold actions do, held against the policy.


def test_new_orders_keep_every_rule(database: DoordashDB, hardest: list[Task]) -> None:
    for order in made(hardest, "create_order"):
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


def test_food_is_sent_only_where_the_restaurant_delivers(
    doordash: DoordashDomain, database: DoordashDB, hardest: list[Task]
) -> None:
    for task in hardest:
        world = doordash.environment(task)
        for action in task.gold_actions:
            result = world.call(action.call)
            if action.name in {"create_order", "change_delivery_address"}:
                order = Order.model_validate_json(result.content)
                assert order.address.zone in database.restaurants[order.restaurant_id].delivers_to


def test_items_change_only_before_the_restaurant_confirms_and_enough_is_left(
    doordash: DoordashDomain, database: DoordashDB, hardest: list[Task]
) -> None:
    names = {"add_item", "modify_item", "remove_item"}
    for task in hardest:
        world = doordash.environment(task)
        for action in task.gold_actions:
            result = world.call(action.call)
            if action.name in names:
                order = Order.model_validate_json(result.content)
                assert database.orders[order.order_id].status == "placed"
                minimum = database.restaurants[order.restaurant_id].minimum_order
                assert order.subtotal >= minimum
                for line in order.items:
                    assert not set(database.items[line.item_id].allergens) & set(order.allergies)


def test_orders_are_cancelled_and_redirected_in_time(
    database: DoordashDB, hardest: list[Task]
) -> None:
    for given in made(hardest, "cancel_order"):
        assert with_owner(database, given)[0].status in {"placed", "confirmed"}
    for given in made(hardest, "change_delivery_address"):
        assert with_owner(database, given)[0].status in {"placed", "confirmed", "preparing"}


def test_a_cancellation_with_a_fee_was_agreed_to(database: DoordashDB, hardest: list[Task]) -> None:
    charged = [
        task
        for task in hardest
        for action in writes(task)
        if action.name == "cancel_order"
        and with_owner(database, dict(action.arguments))[0].status == "confirmed"
    ]
    assert charged
    for task in charged:
        scenario = task.user_scenario.instructions
        assert isinstance(scenario, StructuredInstructions)
        assert "accept the fee" in scenario.reason_for_call
        assert "accept the fee" in ticket(task)


def test_refunds_keep_every_rule(database: DoordashDB, hardest: list[Task]) -> None:
    for task in hardest:
        refunds = [dict(a.arguments) for a in writes(task) if a.name == "request_refund"]
        for given in refunds:
            order, customer = with_owner(database, given)
            has_pass = (customer.pass_until or "") >= "2025-03-14"
            earliest = "2025-03-11 18:30" if has_pass else "2025-03-12 18:30"
            assert order.delivered_at is not None
            assert order.delivered_at >= earliest
            assert order.refund is None
            items: Any = given["items"]
            reason: Any = given["reason"]
            quantities = {item["item_id"]: item["quantity"] for item in items}
            assert 0 < refund_amount(order, quantities, reason) <= 60
            before = [e for e in customer.refund_history if e.date.startswith("2025-03")]
            assert len(before) + len(refunds) <= 2


def test_tips_are_lowered_only_before_pick_up_and_raised_within_a_day(
    database: DoordashDB, hardest: list[Task], mixed: list[Task]
) -> None:
    for given in made(hardest + mixed, "update_tip"):
        order, _ = with_owner(database, given)
        if given["tip"] < order.tip:
            assert order.status in {"placed", "confirmed", "preparing"}
        elif order.delivered_at:
            assert order.delivered_at >= "2025-03-13 18:30"


def test_only_own_orders_are_touched_and_each_once(
    database: DoordashDB, hardest: list[Task]
) -> None:
    for task in hardest:
        own = caller(database, task)
        touched = [action.arguments.get("order_id") for action in writes(task)]
        orders = [order for order in touched if order]
        assert set(orders) <= set(own.orders)
        assert len(set(orders)) == len(orders)


def test_what_must_be_told_is_the_number_that_the_tools_show(
    doordash: DoordashDomain, hardest: list[Task]
) -> None:
    asked = [task for task in hardest if (c := task.evaluation_criteria) and c.communicate_info]
    assert len(asked) > 20
    shown = 0
    for task in asked:
        world = doordash.environment(task)
        answers = " ".join(world.call(action.call).content for action in task.gold_actions)
        assert task.evaluation_criteria is not None
        assert task.evaluation_criteria.communicate_info is not None
        shown += all(info in answers for info in task.evaluation_criteria.communicate_info)
    # A fee or a shortfall of something refused has to be worked out.
    assert shown / len(asked) > 0.85


def test_a_new_total_is_worked_out_as_the_tools_do(database: DoordashDB) -> None:
    order = next(iter(database.orders.values())).model_copy()
    total = order.total
    settle(order, database.restaurants[order.restaurant_id], database.customers[order.customer_id])
    assert order.total == total


def test_an_impossible_dial_is_refused(doordash: DoordashDomain) -> None:
    with pytest.raises(ConfigError, match=r"1\.5"):
        doordash.generate(seed=0, count=1, difficulty=1.5)
    with pytest.raises(ConfigError, match="dev"):
        doordash.generate(seed=0, count=1, split="dev")


# The texts.


def test_the_ticket_speaks_of_the_customer_and_the_scenario_to_them(mixed: list[Task]) -> None:
    for task in mixed:
        words = {word.strip(".,;()").lower() for word in ticket(task).split()}
        assert not words & {"you", "your"}, ticket(task)
        scenario = task.user_scenario.instructions
        assert isinstance(scenario, StructuredInstructions)
        told = f"{scenario.reason_for_call} {ticket(task)}"
        assert "{" not in told
        assert "their" not in scenario.reason_for_call.split()


def test_a_scripted_customer_says_what_they_want_who_they_are_and_stops(mixed: list[Task]) -> None:
    for task in mixed[:80]:
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
