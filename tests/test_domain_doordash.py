"""The delivery service: its records, its tools, its own tasks."""

import hashlib
import json
import re
from collections import Counter
from typing import Any

import pytest

from grpo_cl.config import RolloutConfig
from grpo_cl.demonstrations import demonstrate
from grpo_cl.domains import load_domain
from grpo_cl.domains.doordash import rules
from grpo_cl.domains.doordash.arguments import LARGEST_TIP
from grpo_cl.domains.doordash.database import ALLERGENS, ZONES, DoordashDB, Order
from grpo_cl.domains.doordash.domain import DoordashDomain
from grpo_cl.domains.doordash.seed import build_database
from grpo_cl.domains.overlay import to_json
from grpo_cl.domains.tau2 import Tau2Environment
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.types import StructuredInstructions, Task, ToolCall


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


@pytest.fixture
def world(doordash: DoordashDomain) -> Tau2Environment:
    return doordash.environment(doordash.tasks("base")[0])


def use(world: Tau2Environment, name: str, /, **arguments: Any) -> Any:
    result = world.call(ToolCall(id="1", name=name, arguments=arguments))
    assert not result.error, result.content
    return json.loads(result.content) if result.content.startswith(("{", "[")) else result.content


def refusal(world: Tau2Environment, name: str, /, **arguments: Any) -> str:
    before = world.state()
    result = world.call(ToolCall(id="1", name=name, arguments=arguments))
    assert result.error, result.content
    assert world.state() == before
    return result.content


def an_order(database: DoordashDB, status: str, *, source: str = "card") -> Order:
    return next(
        order
        for order in database.orders.values()
        if order.status == status
        and order.refund is None
        and method(database, order).source == source
        and len(order.items) > 2
    )


def method(database: DoordashDB, order: Order) -> Any:
    return database.customers[order.customer_id].payment_methods[order.payment_id]


# The records.


def test_the_database_is_of_realistic_size_and_has_orders_in_every_state(database: DoordashDB):
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


def test_the_same_database_is_built_every_time():
    text = to_json(build_database())
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "2c0068192415"


def test_nobody_shares_an_email_or_a_phone_number(database: DoordashDB):
    customers = database.customers.values()
    assert len({customer.email for customer in customers}) == len(customers)
    assert len({customer.phone for customer in customers}) == len(customers)


def test_orders_keep_the_rules_that_new_orders_must_keep(database: DoordashDB):
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


def test_refunds_are_in_the_history_of_their_customers(database: DoordashDB):
    for customer in database.customers.values():
        listed = {entry.order_id: entry.amount for entry in customer.refund_history}
        made = {
            key: refund.amount
            for key in customer.orders
            if (refund := database.orders[key].refund) is not None
        }
        assert listed == made


def test_whoever_carries_an_order_knows_it(database: DoordashDB):
    for order in database.orders.values():
        assert (order.dasher_id is not None) == (order.status in {"preparing", "picked_up"})
        if order.dasher_id:
            assert database.dashers[order.dasher_id].order_id == order.order_id


# The rules.


def test_the_policy_states_the_numbers_that_the_tools_apply(doordash: DoordashDomain):
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


def test_fees_follow_the_pass(database: DoordashDB):
    for order in database.orders.values():
        customer = database.customers[order.customer_id]
        fee = database.restaurants[order.restaurant_id].delivery_fee
        if customer.pass_until and customer.pass_until >= "2025-03-14":
            assert order.service_fee == pytest.approx(order.subtotal * 0.05, abs=0.0051)
            assert order.delivery_fee == (0.0 if order.subtotal >= 12 else fee)
        else:
            assert order.service_fee == pytest.approx(order.subtotal * 0.10, abs=0.0051)
            assert order.delivery_fee == fee


def test_a_restaurant_that_closes_after_midnight_is_open_in_the_evening(database: DoordashDB):
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


# The tools.


def test_a_customer_is_found_by_email_and_by_phone_however_they_are_written(
    world: Tau2Environment, database: DoordashDB
):
    customer = next(iter(database.customers.values()))
    found = use(world, "find_customer_by_email", email=f" {customer.email.upper()} ")
    digits = customer.phone.replace("-", " ")
    assert found == use(world, "find_customer_by_phone", phone=digits) == customer.customer_id
    assert "no customer has the email" in refusal(world, "find_customer_by_email", email="x@y.z")


def test_restaurants_are_searched_by_every_criterion_at_once(world: Tau2Environment):
    everything = use(world, "search_restaurants")
    thai = use(world, "search_restaurants", cuisine="Thai", name=None)
    near = use(world, "search_restaurants", cuisine="thai", delivers_to="Old Town")
    assert (len(everything), len(thai)) == (60, 5)
    assert len(near) < len(thai)
    [one] = use(world, "search_restaurants", name="siam")
    assert one["name"] == "Siam Lantern"


def test_a_menu_leaves_out_what_is_sold_out(world: Tau2Environment, database: DoordashDB):
    gone = next(item for item in database.items.values() if not item.is_available)
    menu = use(world, "get_menu", restaurant_id=gone.restaurant_id)
    assert menu
    assert gone.item_id not in {entry["item_id"] for entry in menu}


def test_an_order_is_priced_charged_and_listed(world: Tau2Environment, database: DoordashDB):
    customer, card = next(
        (customer, method)
        for customer in database.customers.values()
        for method in customer.payment_methods.values()
        if method.balance and method.balance > 60 and not rules.has_pass(customer)
    )
    item = next(
        item
        for item in database.items.values()
        if not item.options and item.is_available and item.price > 5
    )
    order = use(
        world,
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
    after = use(world, "get_customer_details", customer_id=customer.customer_id)
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
        ({"tip": -1}, f"0 to {LARGEST_TIP}"),
        ({"allergies": ["pollen"]}, "unknown allergens"),
        ({"restaurant_id": "rest_99"}, "search_restaurants"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_changes_nothing(
    world: Tau2Environment, database: DoordashDB, change: dict[str, Any], text: str
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
    assert text in refusal(world, "create_order", **(arguments | change))


def test_every_option_of_an_item_must_be_chosen(world: Tau2Environment, database: DoordashDB):
    order, item = next(
        (order, item)
        for order in database.orders.values()
        if order.status == "placed"
        for item in database.items.values()
        if item.restaurant_id == order.restaurant_id
        and item.options
        and item.is_available
        and item.item_id not in {line.item_id for line in order.items}
        and method(database, order).source == "card"
    )
    where = {"order_id": order.order_id, "item_id": item.item_id, "quantity": 1}
    assert "needs one choice" in refusal(world, "add_item", **where)
    chosen = {name: next(iter(choices)) for name, choices in item.options.items()}
    added = use(world, "add_item", **where, options=chosen)
    assert added["subtotal"] == pytest.approx(order.subtotal + item.price)
    assert "use modify_item" in refusal(world, "add_item", **where, options=chosen)


def test_what_was_removed_can_be_added_again_and_leaves_no_trace(
    world: Tau2Environment, database: DoordashDB
):
    order = an_order(database, "placed")
    line = next(line for line in order.items if database.items[line.item_id].is_available)
    where = {"order_id": order.order_id, "item_id": line.item_id}
    removed = use(world, "remove_item", **where)
    assert removed["subtotal"] == pytest.approx(order.subtotal - line.unit_price * line.quantity)
    assert "is not in order" in refusal(world, "remove_item", **where)
    use(world, "add_item", **where, quantity=line.quantity, options=line.options)
    assert not world.state().agent


def test_the_last_item_is_not_removed(world: Tau2Environment, database: DoordashDB):
    order = an_order(database, "placed")
    for line in order.items[1:]:
        use(world, "remove_item", order_id=order.order_id, item_id=line.item_id)
    last = {"order_id": order.order_id, "item_id": order.items[0].item_id}
    assert "use cancel_order" in refusal(world, "remove_item", **last)


def test_cancelling_is_free_until_the_restaurant_confirms_and_costs_a_fifth_after(
    world: Tau2Environment, database: DoordashDB
):
    for status, rate in (("placed", 0.0), ("confirmed", 0.2)):
        order = an_order(database, status, source="gift_card")
        done = use(world, "cancel_order", order_id=order.order_id)["cancellation"]
        assert done["fee"] == pytest.approx(order.subtotal * rate, abs=0.0051)
        assert done["refunded"] == pytest.approx(order.total - done["fee"])
        owner = use(world, "get_customer_details", customer_id=order.customer_id)
        balance = owner["payment_methods"][order.payment_id]["balance"]
        assert balance == pytest.approx(method(database, order).balance + done["refunded"])
        assert "cannot be changed" in refusal(world, "cancel_order", order_id=order.order_id)


@pytest.mark.parametrize(("reason", "share"), [("missing", 1.0), ("wrong", 1.0), ("damaged", 0.5)])
def test_a_refund_is_worth_the_share_of_its_reason_and_is_given_once(
    world: Tau2Environment, database: DoordashDB, reason: str, share: float
):
    order = an_order(database, "delivered")
    line = order.items[0]
    claim = {
        "order_id": order.order_id,
        "items": [{"item_id": line.item_id, "quantity": line.quantity}],
        "reason": reason,
        "destination": "credits",
    }
    amount = use(world, "request_refund", **claim)["refund"]["amount"]
    assert amount == pytest.approx(line.unit_price * line.quantity * share, abs=0.0051)
    before = database.customers[order.customer_id]
    after = use(world, "get_customer_details", customer_id=order.customer_id)
    assert after["credits"] == pytest.approx(before.credits + amount)
    assert len(after["refund_history"]) == len(before.refund_history) + 1
    assert "refunded already" in refusal(world, "request_refund", **claim)


def test_no_more_is_refunded_than_was_ordered(world: Tau2Environment, database: DoordashDB):
    order = an_order(database, "delivered")
    line = order.items[0]
    claim = {"order_id": order.order_id, "reason": "missing", "destination": "original"}
    many = [{"item_id": line.item_id, "quantity": line.quantity + 1}]
    assert "whole number" in refusal(world, "request_refund", items=many, **claim)
    one = [{"item_id": line.item_id, "quantity": 1}]
    assert "stands once" in refusal(world, "request_refund", items=one * 2, **claim)
    taste = claim | {"reason": "taste"}
    assert "known are missing" in refusal(world, "request_refund", items=one, **taste)
    open_order = an_order(database, "confirmed").order_id
    late = claim | {"order_id": open_order}
    assert "only a delivered one" in refusal(world, "request_refund", items=one, **late)


def test_a_new_address_gets_the_zone_of_its_zip_code_and_can_be_delivered_to(
    world: Tau2Environment, database: DoordashDB
):
    order = an_order(database, "placed")
    place = {"customer_id": order.customer_id, "street": "1 Test Lane"}
    added = use(world, "add_address", **place, label="Attic", zip="40216")
    assert (added["label"], added["zone"]) == ("attic", "Lakeview")
    assert "no delivery zone" in refusal(world, "add_address", **place, label="far", zip="99999")
    moved = use(world, "change_delivery_address", order_id=order.order_id, address_label="attic")
    assert moved["address"] == added


def test_a_tip_changes_the_total_and_a_cancelled_order_has_none(
    world: Tau2Environment, database: DoordashDB
):
    order = an_order(database, "picked_up")
    tipped = use(world, "update_tip", order_id=order.order_id, tip=9)
    assert tipped["total"] == pytest.approx(order.total - order.tip + 9)
    gone = an_order(database, "cancelled").order_id
    assert "nobody to tip" in refusal(world, "update_tip", order_id=gone, tip=9)


def test_a_gift_card_pays_no_more_than_it_holds(world: Tau2Environment, database: DoordashDB):
    order = next(
        order
        for order in database.orders.values()
        if order.status == "placed" and (method(database, order).balance or 99) < 90
    )
    tip = {"order_id": order.order_id, "tip": 100}
    assert "needed is" in refusal(world, "update_tip", **tip)


def test_the_dasher_of_an_order_is_shown_and_freed_when_it_is_cancelled(
    world: Tau2Environment, database: DoordashDB
):
    order = an_order(database, "preparing")
    shown = use(world, "get_dasher_status", order_id=order.order_id)
    assert shown["order_id"] == order.order_id
    assert shown["minutes_away"] > 0
    use(world, "cancel_order", order_id=order.order_id)
    assert "has no dasher" in refusal(world, "get_dasher_status", order_id=order.order_id)


# The domain's own tasks.


def test_the_tasks_are_the_same_every_time_and_a_change_of_them_is_noticed():
    first, second = (DoordashDomain() for _ in range(2))
    assert first.tasks("base") == second.tasks("base")
    assert first.release == second.release
    assert first.release.endswith("doordash tasks sha256:9c9b718ce778")


def test_a_task_is_found_by_its_number(doordash: DoordashDomain):
    assert doordash.has_task("doordash-17")
    assert doordash.task("doordash-17") == doordash.tasks("train")[17]
    assert not doordash.has_task("doordash-114")


def people(tasks: list[Task]) -> set[str]:
    names: set[str] = set()
    for task in tasks:
        scenario = task.user_scenario.instructions
        assert isinstance(scenario, StructuredInstructions)
        names |= set(re.findall(r"You are (\w+ \w+) and", scenario.known_info or ""))
    return names


def test_train_and_test_share_no_customer_and_no_order(doordash: DoordashDomain):
    train, test = list(doordash.tasks("train")), list(doordash.tasks("test"))
    train += doordash.generate(seed=9, count=100, split="train")
    assert people(train)
    assert not people(train) & people(test)
    orders = [
        set(re.findall(r"\bD\d{5}\b", " ".join(task.model_dump_json() for task in tasks)))
        for tasks in (train, test)
    ]
    assert not orders[0] & orders[1]


def test_the_tasks_cover_every_write_and_every_part_of_the_policy(doordash: DoordashDomain):
    tasks = doordash.tasks("base")
    used = {action.name for task in tasks for action in task.gold_actions}
    writes = doordash.environment(tasks[0]).tools.writes
    assert writes <= used
    purposes = " ".join(str(task.description) for task in tasks)
    assert purposes.count("refused:") >= 15
    assert sum(task.is_refusal for task in tasks) <= 12


@pytest.mark.parametrize("user", ["scripted", "solo"])
def test_gold_solves_every_training_task_with_and_without_a_user(
    doordash: DoordashDomain, user: str
):
    tasks = doordash.tasks("train")
    actor = ScriptedActor(
        lambda task: [action.call for action in task.gold_actions], closing=_telling
    )
    domains = {"doordash": doordash}
    oracle = RewardOracle(domains)
    for trajectory in run_episodes(actor, domains, tasks, RolloutConfig(user=user)):
        is_silent = user == "solo" and bool(_telling(trajectory.task))  # nobody to tell
        assert oracle.score(trajectory).value == float(not is_silent), trajectory.task.id


def _telling(task: Task) -> str:
    criteria = task.evaluation_criteria
    return " ".join((criteria.communicate_info or ()) if criteria else ())


def test_every_silent_task_can_be_demonstrated_alone(doordash: DoordashDomain):
    for task in doordash.tasks("test"):
        solved = demonstrate(doordash, task)
        assert (solved is None) == bool(_telling(task)), task.id


def test_a_demonstration_looks_up_what_the_ticket_leaves_out(doordash: DoordashDomain):
    tasks = doordash.generate(seed=4, count=40, difficulty=0.0)
    ordered = [task for task in tasks if task.gold_actions[-1].name == "create_order"]
    assert ordered
    for task in ordered:
        solved = demonstrate(doordash, task)
        assert solved is not None
        names = {call.name for call in solved.tool_calls}
        assert {"get_customer_details", "search_restaurants", "get_menu"} <= names


def test_worlds_are_cheap_and_apart(doordash: DoordashDomain, database: DoordashDB):
    task = doordash.tasks("base")[0]
    worlds = [doordash.environment(task) for _ in range(3000)]
    order = an_order(database, "placed")
    use(worlds[0], "cancel_order", order_id=order.order_id)
    assert worlds[0].state().agent
    assert not any(world.state().agent for world in worlds[1:])
    assert worlds[0].state_hash() != worlds[1].state_hash()
    plain = json.dumps(database.model_dump(), sort_keys=True, default=str)
    assert worlds[1].state_hash().agent == hashlib.sha256(plain.encode()).hexdigest()


def test_every_allergen_of_a_menu_has_a_name_for_the_note(database: DoordashDB):
    found = {allergen for item in database.items.values() for allergen in item.allergens}
    assert found == set(ALLERGENS)
