"""Doordash domain: database, tools and tasks."""

import hashlib
import json
import re
from collections import Counter
from typing import Any

import pytest

from grpo_cl.config import RolloutConfig
from grpo_cl.envs.database import to_json
from grpo_cl.envs.doordash import rules
from grpo_cl.envs.doordash.arguments import MAX_TIP
from grpo_cl.envs.doordash.database import ALLERGENS, ZONES, DoordashDB, Order
from grpo_cl.envs.doordash.database_builder import build_database
from grpo_cl.envs.doordash.domain import DoordashDomain
from grpo_cl.envs.tau2 import Tau2Environment
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.rollout.demonstrations import demonstrate
from grpo_cl.types import StructuredInstructions, Task, ToolCall


@pytest.fixture
def environment(doordash: DoordashDomain) -> Tau2Environment:
    return doordash.environment(doordash.tasks("base")[0])


def call_tool(environment: Tau2Environment, name: str, /, **arguments: Any) -> Any:
    result = environment.call(ToolCall(id="1", name=name, arguments=arguments))
    assert not result.error, result.content
    return json.loads(result.content) if result.content.startswith(("{", "[")) else result.content


def tool_error(environment: Tau2Environment, name: str, /, **arguments: Any) -> str:
    before = environment.state()
    result = environment.call(ToolCall(id="1", name=name, arguments=arguments))
    assert result.error, result.content
    assert environment.state() == before
    return result.content


def find_order(database: DoordashDB, status: str, *, source: str = "card") -> Order:
    return next(
        order
        for order in database.orders.values()
        if order.status == status
        and order.refund is None
        and payment_method(database, order).source == source
        and len(order.items) > 2
    )


def payment_method(database: DoordashDB, order: Order) -> Any:
    return database.customers[order.customer_id].payment_methods[order.payment_id]


# Database.


def test_database_has_realistic_size_and_orders_of_every_status(database: DoordashDB):
    assert len(database.customers) == 400
    assert len(database.restaurants) == 60
    assert len(database.items) > 500
    assert len(database.orders) > 1000
    statuses = Counter(order.status for order in database.orders.values())
    assert set(statuses) == {
        "placed", "confirmed", "preparing", "picked_up", "delivered", "cancelled",
    }  # fmt: skip
    assert min(statuses.values()) > 50
    assert sum(order.refund is not None for order in database.orders.values()) > 50


def test_built_database_is_reproducible():
    text = to_json(build_database())
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "2c0068192415"


def test_emails_and_phone_numbers_are_unique(database: DoordashDB):
    customers = database.customers.values()
    assert len({customer.email for customer in customers}) == len(customers)
    assert len({customer.phone for customer in customers}) == len(customers)


def test_existing_orders_satisfy_the_rules_of_new_orders(database: DoordashDB):
    for order in database.orders.values():
        restaurant = database.restaurants[order.restaurant_id]
        customer = database.customers[order.customer_id]
        assert order.order_id in customer.orders
        assert order.address.zone in restaurant.delivers_to
        assert order.subtotal >= restaurant.minimum_order
        assert order.allergies == customer.allergies
        for line in order.items:
            item = database.items[line.item_id]
            assert not set(item.allergens) & set(order.allergies)
            assert line.unit_price == rules.unit_price(item, line.options)


def test_refund_history_of_a_customer_lists_the_refunds_of_their_orders(database: DoordashDB):
    for customer in database.customers.values():
        history = {entry.order_id: entry.amount for entry in customer.refund_history}
        refunds = {
            key: refund.amount
            for key in customer.orders
            if (refund := database.orders[key].refund) is not None
        }
        assert history == refunds


def test_orders_and_dashers_refer_to_each_other(database: DoordashDB):
    for order in database.orders.values():
        assert (order.dasher_id is not None) == (order.status in {"preparing", "picked_up"})
        if order.dasher_id:
            assert database.dashers[order.dasher_id].order_id == order.order_id


# Rules.


def test_policy_states_the_amounts_and_limits_of_the_rules(doordash: DoordashDomain):
    policy = " ".join(doordash.policy_text().split())
    assert "2025-03-14 18:30" in policy
    assert f"service fee of {rules.SERVICE_RATE:.0%}".replace("%", " %") in policy
    assert f"the service fee is {rules.PASS_SERVICE_RATE:.0%}".replace("%", " %") in policy
    assert f"no delivery fee from {rules.PASS_FREE_DELIVERY:.0f} dollars" in policy
    assert f"fee of {rules.CANCELLATION_RATE:.0%}".replace("%", " %") in policy
    assert f"no more than {rules.REFUND_WINDOW_H} hours ago" in policy
    assert f"{rules.PASS_REFUND_WINDOW_H} hours with an active pass" in policy
    assert f"fewer than {rules.REFUNDS_PER_MONTH} refunds" in policy
    assert f"at most {rules.REFUND_LIMIT:.0f} dollars" in policy
    assert f"until {rules.TIP_WINDOW_H} hours after delivery" in policy
    for zone, code in ZONES.items():
        assert f"| {zone} | {code} |" in policy


def test_pass_lowers_service_and_delivery_fees(database: DoordashDB):
    for order in database.orders.values():
        customer = database.customers[order.customer_id]
        fee = database.restaurants[order.restaurant_id].delivery_fee
        if customer.pass_until and customer.pass_until >= "2025-03-14":
            assert order.service_fee == pytest.approx(order.subtotal * 0.05, abs=0.0051)
            assert order.delivery_fee == (0.0 if order.subtotal >= 12 else fee)
        else:
            assert order.service_fee == pytest.approx(order.subtotal * 0.10, abs=0.0051)
            assert order.delivery_fee == fee


def test_restaurant_that_closes_after_midnight_is_open_in_the_evening(database: DoordashDB):
    late = [
        r for r in database.restaurants.values() if (h := r.hours["friday"]) and h.opens == "16:00"
    ]
    early = [
        r
        for r in database.restaurants.values()
        if (h := r.hours["friday"]) and h.closes < "17:00" and h.opens < h.closes
    ]
    assert late
    assert early
    assert all(rules.is_open(restaurant) or restaurant.is_paused for restaurant in late)
    assert not any(rules.is_open(restaurant) for restaurant in early)


# Tools.


def test_customer_is_found_by_email_and_phone_in_any_format(
    environment: Tau2Environment, database: DoordashDB
):
    customer = next(iter(database.customers.values()))
    customer_id = call_tool(
        environment, "find_customer_by_email", email=f" {customer.email.upper()} "
    )
    digits = customer.phone.replace("-", " ")
    assert (
        customer_id
        == call_tool(environment, "find_customer_by_phone", phone=digits)
        == customer.customer_id
    )
    assert "no customer has the email" in tool_error(
        environment, "find_customer_by_email", email="x@y.z"
    )


def test_restaurant_search_combines_all_criteria(environment: Tau2Environment):
    all_restaurants = call_tool(environment, "search_restaurants")
    thai = call_tool(environment, "search_restaurants", cuisine="Thai", name=None)
    near = call_tool(environment, "search_restaurants", cuisine="thai", delivers_to="Old Town")
    assert (len(all_restaurants), len(thai)) == (60, 5)
    assert len(near) < len(thai)
    [siam] = call_tool(environment, "search_restaurants", name="siam")
    assert siam["name"] == "Siam Lantern"


def test_menu_omits_unavailable_items(environment: Tau2Environment, database: DoordashDB):
    unavailable = next(item for item in database.items.values() if not item.is_available)
    menu = call_tool(environment, "get_menu", restaurant_id=unavailable.restaurant_id)
    assert menu
    assert unavailable.item_id not in {entry["item_id"] for entry in menu}


def test_new_order_is_priced_charged_and_listed_in_the_profile(
    environment: Tau2Environment, database: DoordashDB
):
    customer, card = next(
        (customer, payment_method)
        for customer in database.customers.values()
        for payment_method in customer.payment_methods.values()
        if payment_method.balance and payment_method.balance > 60 and not rules.has_pass(customer)
    )
    item = next(
        item
        for item in database.items.values()
        if not item.options and item.is_available and item.price > 5
    )
    order = call_tool(
        environment,
        "create_order",
        customer_id=customer.customer_id,
        restaurant_id=item.restaurant_id,
        items=[{"item_id": item.item_id, "quantity": 2}],
        address_label="home",
        payment_id=card.payment_id,
        tip=3,
        allergies=["Soy", "egg", "soy"],
    )
    fee = database.restaurants[item.restaurant_id].delivery_fee
    assert order["total"] == pytest.approx(2.2 * item.price + fee + 3, abs=0.006)
    assert order["allergies"] == ["egg", "soy"]
    assert order["order_id"] == "D90001"
    after = call_tool(environment, "get_customer_details", customer_id=customer.customer_id)
    assert after["orders"][-1] == "D90001"
    left = after["payment_methods"][card.payment_id]["balance"]
    assert left == pytest.approx((card.balance or 0) - order["total"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"items": []}, "every item_id stands once"),
        ({"items": [{"item_id": "item_1000", "quantity": 0}]}, "whole number"),
        ({"items": [{"item_id": "item_9999", "quantity": 1}]}, "get_menu lists the ids"),
        ({"address_label": "moon"}, "add_address"),
        ({"payment_id": "pay_1"}, "no payment method"),
        ({"tip": -1}, f"0 to {MAX_TIP}"),
        ({"allergies": ["pollen"]}, "unknown allergens"),
        ({"restaurant_id": "rest_99"}, "search_restaurants"),
    ],
)
def test_invalid_order_returns_an_error_and_changes_nothing(
    environment: Tau2Environment, database: DoordashDB, change: dict[str, Any], text: str
):
    customer = next(iter(database.customers.values()))
    item = next(i for i in database.items.values() if not i.options and i.is_available)
    arguments = {
        "customer_id": customer.customer_id,
        "restaurant_id": item.restaurant_id,
        "items": [{"item_id": item.item_id, "quantity": 1}],
        "address_label": "home",
        "payment_id": next(iter(customer.payment_methods)),
    }
    assert text in tool_error(environment, "create_order", **(arguments | change))


def test_every_option_of_an_item_needs_a_choice(environment: Tau2Environment, database: DoordashDB):
    order, item = next(
        (order, item)
        for order in database.orders.values()
        if order.status == "placed"
        for item in database.items.values()
        if item.restaurant_id == order.restaurant_id
        and item.options
        and item.is_available
        and item.item_id not in {line.item_id for line in order.items}
        and payment_method(database, order).source == "card"
    )
    arguments = {"order_id": order.order_id, "item_id": item.item_id, "quantity": 1}
    assert "needs one choice" in tool_error(environment, "add_item", **arguments)
    chosen = {name: next(iter(choices)) for name, choices in item.options.items()}
    added = call_tool(environment, "add_item", **arguments, options=chosen)
    assert added["subtotal"] == pytest.approx(order.subtotal + item.price)
    assert "use modify_item" in tool_error(environment, "add_item", **arguments, options=chosen)


def test_removing_and_adding_the_same_item_restores_the_state(
    environment: Tau2Environment, database: DoordashDB
):
    order = find_order(database, "placed")
    line = next(line for line in order.items if database.items[line.item_id].is_available)
    where = {"order_id": order.order_id, "item_id": line.item_id}
    removed = call_tool(environment, "remove_item", **where)
    assert removed["subtotal"] == pytest.approx(order.subtotal - line.unit_price * line.quantity)
    assert "is not in order" in tool_error(environment, "remove_item", **where)
    call_tool(environment, "add_item", **where, quantity=line.quantity, options=line.options)
    assert not environment.state().agent


def test_last_item_of_an_order_cannot_be_removed(
    environment: Tau2Environment, database: DoordashDB
):
    order = find_order(database, "placed")
    for line in order.items[1:]:
        call_tool(environment, "remove_item", order_id=order.order_id, item_id=line.item_id)
    last = {"order_id": order.order_id, "item_id": order.items[0].item_id}
    assert "use cancel_order" in tool_error(environment, "remove_item", **last)


def test_cancellation_is_free_before_confirmation_and_costs_a_fifth_afterwards(
    environment: Tau2Environment, database: DoordashDB
):
    for status, rate in (("placed", 0.0), ("confirmed", 0.2)):
        order = find_order(database, status, source="gift_card")
        cancellation = call_tool(environment, "cancel_order", order_id=order.order_id)[
            "cancellation"
        ]
        assert cancellation["fee"] == pytest.approx(order.subtotal * rate, abs=0.0051)
        assert cancellation["refunded"] == pytest.approx(order.total - cancellation["fee"])
        owner = call_tool(environment, "get_customer_details", customer_id=order.customer_id)
        balance = owner["payment_methods"][order.payment_id]["balance"]
        assert balance == pytest.approx(
            payment_method(database, order).balance + cancellation["refunded"]
        )
        assert "cannot be changed" in tool_error(
            environment, "cancel_order", order_id=order.order_id
        )


@pytest.mark.parametrize(("reason", "share"), [("missing", 1.0), ("wrong", 1.0), ("damaged", 0.5)])
def test_refund_amount_depends_on_the_reason_and_a_second_refund_is_an_error(
    environment: Tau2Environment, database: DoordashDB, reason: str, share: float
):
    order = find_order(database, "delivered")
    line = order.items[0]
    claim = {
        "order_id": order.order_id,
        "items": [{"item_id": line.item_id, "quantity": line.quantity}],
        "reason": reason,
        "destination": "credits",
    }
    amount = call_tool(environment, "request_refund", **claim)["refund"]["amount"]
    assert amount == pytest.approx(line.unit_price * line.quantity * share, abs=0.0051)
    before = database.customers[order.customer_id]
    after = call_tool(environment, "get_customer_details", customer_id=order.customer_id)
    assert after["credits"] == pytest.approx(before.credits + amount)
    assert len(after["refund_history"]) == len(before.refund_history) + 1
    assert "refunded already" in tool_error(environment, "request_refund", **claim)


def test_invalid_refunds_return_an_error(environment: Tau2Environment, database: DoordashDB):
    order = find_order(database, "delivered")
    line = order.items[0]
    claim = {"order_id": order.order_id, "reason": "missing", "destination": "original"}
    many = [{"item_id": line.item_id, "quantity": line.quantity + 1}]
    assert "whole number" in tool_error(environment, "request_refund", items=many, **claim)
    single = [{"item_id": line.item_id, "quantity": 1}]
    assert "stands once" in tool_error(environment, "request_refund", items=single * 2, **claim)
    taste = claim | {"reason": "taste"}
    assert "known are missing" in tool_error(environment, "request_refund", items=single, **taste)
    open_order = find_order(database, "confirmed").order_id
    late = claim | {"order_id": open_order}
    assert "only a delivered one" in tool_error(environment, "request_refund", items=single, **late)


def test_new_address_gets_the_zone_of_its_zip_code_and_can_be_used_for_an_order(
    environment: Tau2Environment, database: DoordashDB
):
    order = find_order(database, "placed")
    place = {"customer_id": order.customer_id, "street": "1 Test Lane"}
    added = call_tool(environment, "add_address", **place, label="Attic", zip="40216")
    assert (added["label"], added["zone"]) == ("attic", "Lakeview")
    assert "no delivery zone" in tool_error(
        environment, "add_address", **place, label="far", zip="99999"
    )
    moved = call_tool(
        environment, "change_delivery_address", order_id=order.order_id, address_label="attic"
    )
    assert moved["address"] == added


def test_tip_changes_the_total_and_is_an_error_for_cancelled_orders(
    environment: Tau2Environment, database: DoordashDB
):
    order = find_order(database, "picked_up")
    tipped = call_tool(environment, "update_tip", order_id=order.order_id, tip=9)
    assert tipped["total"] == pytest.approx(order.total - order.tip + 9)
    cancelled = find_order(database, "cancelled").order_id
    assert "nobody to tip" in tool_error(environment, "update_tip", order_id=cancelled, tip=9)


def test_gift_card_cannot_pay_more_than_its_balance(
    environment: Tau2Environment, database: DoordashDB
):
    order = next(
        order
        for order in database.orders.values()
        if order.status == "placed" and (payment_method(database, order).balance or 99) < 90
    )
    tip = {"order_id": order.order_id, "tip": 100}
    assert "needed is" in tool_error(environment, "update_tip", **tip)


def test_cancellation_releases_the_dasher_of_an_order(
    environment: Tau2Environment, database: DoordashDB
):
    order = find_order(database, "preparing")
    shown = call_tool(environment, "get_dasher_status", order_id=order.order_id)
    assert shown["order_id"] == order.order_id
    assert shown["minutes_away"] > 0
    call_tool(environment, "cancel_order", order_id=order.order_id)
    assert "has no dasher" in tool_error(environment, "get_dasher_status", order_id=order.order_id)


# Tasks of the domain.


def test_tasks_are_reproducible_and_match_the_published_release_hash():
    first, second = (DoordashDomain() for _ in range(2))
    assert first.tasks("base") == second.tasks("base")
    assert first.release == second.release
    assert first.release.endswith("doordash tasks sha256:bcec7a34cbd3")


def test_task_is_found_by_its_id(doordash: DoordashDomain):
    assert doordash.has_task("doordash-17")
    assert doordash.task("doordash-17") == doordash.tasks("train")[17]
    assert not doordash.has_task("doordash-114")


def customer_names(tasks: list[Task]) -> set[str]:
    names: set[str] = set()
    for task in tasks:
        scenario = task.user_scenario.instructions
        assert isinstance(scenario, StructuredInstructions)
        names |= set(re.findall(r"You are (\w+ \w+) and", scenario.known_info or ""))
    return names


def test_train_and_test_tasks_share_no_customer_and_no_order(doordash: DoordashDomain):
    train, test = list(doordash.tasks("train")), list(doordash.tasks("test"))
    train += doordash.generate(seed=9, count=100, split="train")
    assert customer_names(train)
    assert not customer_names(train) & customer_names(test)
    orders = [
        set(re.findall(r"\bD\d{5}\b", " ".join(task.model_dump_json() for task in tasks)))
        for tasks in (train, test)
    ]
    assert not orders[0] & orders[1]


def test_tasks_cover_every_write_tool_and_include_forbidden_requests(doordash: DoordashDomain):
    tasks = doordash.tasks("base")
    used = {action.name for task in tasks for action in task.gold_actions}
    writes = doordash.environment(tasks[0]).tools.writes
    assert writes <= used
    purposes = " ".join(str(task.description) for task in tasks)
    assert purposes.count("refused:") >= 15
    assert sum(task.is_refusal for task in tasks) <= 12


@pytest.mark.parametrize("user", ["scripted", "solo"])
def test_gold_calls_solve_every_training_task_with_and_without_a_user(
    doordash: DoordashDomain, user: str
):
    tasks = doordash.tasks("train")
    actor = ScriptedActor(
        lambda task: [action.call for action in task.gold_actions], closing=_communicated_text
    )
    domains = {"doordash": doordash}
    oracle = RewardOracle(domains)
    for trajectory in run_episodes(actor, domains, tasks, RolloutConfig(user=user)):
        # Without a user, facts cannot be communicated, so these tasks fail.
        is_unsolvable = user == "solo" and bool(_communicated_text(trajectory.task))
        assert oracle.score(trajectory).value == float(not is_unsolvable), trajectory.task.id


def _communicated_text(task: Task) -> str:
    return " ".join(task.communicate_info)


def test_solo_demonstration_exists_unless_the_task_requires_communication(doordash: DoordashDomain):
    for task in doordash.tasks("test"):
        solved = demonstrate(doordash, task)
        assert (solved is None) == bool(_communicated_text(task)), task.id


def test_demonstration_reads_what_the_ticket_omits(doordash: DoordashDomain):
    tasks = doordash.generate(seed=4, count=40, difficulty=0.0)
    ordered = [task for task in tasks if task.gold_actions[-1].name == "create_order"]
    assert ordered
    for task in ordered:
        solved = demonstrate(doordash, task)
        assert solved is not None
        names = {call.name for call in solved.tool_calls}
        assert {"get_customer_details", "search_restaurants", "get_menu"} <= names


def test_environments_do_not_share_state(doordash: DoordashDomain, database: DoordashDB):
    task = doordash.tasks("base")[0]
    environments = [doordash.environment(task) for _ in range(3000)]
    order = find_order(database, "placed")
    call_tool(environments[0], "cancel_order", order_id=order.order_id)
    assert environments[0].state().agent
    assert not any(environment.state().agent for environment in environments[1:])
    assert environments[0].state_hash() != environments[1].state_hash()
    serialised = json.dumps(database.model_dump(), sort_keys=True, default=str)
    assert environments[1].state_hash().agent == hashlib.sha256(serialised.encode()).hexdigest()


def test_menus_and_allergy_notes_use_the_same_allergens(database: DoordashDB):
    used = {allergen for item in database.items.values() for allergen in item.allergens}
    assert used == set(ALLERGENS)
