"""Generated retail tasks say what their gold does, and leave no doubt about it."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from inspect_evals.tau2.retail.data_model import Order, OrderItem, Product, RetailDB, User

from generation import retail as generate
from grpo_cl.domains import load_domain
from grpo_cl.types import Task
from retail_stories import customer, story, writes


@pytest.fixture(scope="module")
def database() -> RetailDB:
    retail: Any = load_domain("retail")
    return retail.database.model


@pytest.fixture(scope="module")
def mixed(database: RetailDB) -> list[Task]:
    return generate(database, seed=11, count=400, split="train", difficulty=None)


@pytest.fixture(scope="module")
def hardest(database: RetailDB) -> list[Task]:
    return generate(database, seed=12, count=400, split="train", difficulty=1.0)


def orders_with(database: RetailDB, user: User, names: Sequence[str]) -> list[Order]:
    orders = [database.orders[number] for number in user.orders]
    return [order for order in orders if set(names) <= {item.name for item in order.items}]


def fitting_variants(product: Product, item: OrderItem, said: str) -> list[str]:
    """The variants a careful reader would take ``said`` to mean."""
    stock = [variant for variant in product.variants.values() if variant.available]
    others = [variant for variant in stock if variant.item_id != item.item_id]
    superlative = r"the (cheapest|most expensive) available one(?: with ([^:]+): (.+?))?, "
    if match := re.search(superlative, said):
        word, option, value = match.groups()
        fitting = [v for v in stock if option is None or v.options[option] == value]
        best = (min if word == "cheapest" else max)(v.price for v in fitting)
        return [v.item_id for v in fitting if v.price == best]
    if match := re.search(r" one with ([^:]+): (.+?) and everything else unchanged", said):
        wanted = item.options | {match[1]: match[2]}
        return [v.item_id for v in others if v.options == wanted]
    if match := re.search(r"whichever available one has ([^:]+): (.+?) \(the other", said):
        return [v.item_id for v in others if v.options[match[1]] == match[2]]
    words = {v.item_id: ", ".join(f"{k}: {o}" for k, o in v.options.items()) for v in others}
    return [number for number, options in words.items() if f"the one with {options}" in said]


def test_an_order_described_by_its_contents_is_the_only_such_order(
    database: RetailDB, hardest: list[Task]
) -> None:
    names = "|".join(sorted({product.name for product in database.products.values()}))
    pattern = re.compile(rf"your order with the ({names})(?: and the ({names}))?\b")
    found = 0
    for task in hardest:
        user = customer(database, task)
        for match in pattern.finditer(story(task).reason_for_call):
            contents = [name for name in match.groups() if name]
            assert len(orders_with(database, user, contents)) == 1
            found += 1
    assert found > 200


def test_an_item_without_an_order_occurs_in_one_order_only(
    database: RetailDB, hardest: list[Task]
) -> None:
    names = "|".join(sorted({product.name for product in database.products.values()}))
    pattern = re.compile(rf"the ({names})(?: \([^)]*\))? you ordered\b")
    found = 0
    for task in hardest:
        user = customer(database, task)
        for name in pattern.findall(story(task).reason_for_call):
            assert len(orders_with(database, user, [name])) == 1
            found += 1
    assert found > 50


def test_the_words_for_a_new_item_fit_one_variant_only(
    database: RetailDB, mixed: list[Task], hardest: list[Task]
) -> None:
    found = 0
    for task in mixed + hardest:
        purposes = task.description and (task.description.purpose or "").split("; ")
        sentences = re.split(r"(?<=\.) ", story(task).reason_for_call)
        steps = iter(writes(task))
        for purpose, sentence in zip(purposes or (), sentences, strict=True):
            given: Any = {} if "refused" in purpose else next(steps).arguments
            if purpose != "change an item of a pending order":
                continue
            items = {item.item_id: item for item in database.orders[given["order_id"]].items}
            item = items[given["item_ids"][0]]
            fitting = fitting_variants(database.products[item.product_id], item, sentence)
            assert fitting == given["new_item_ids"], sentence
            found += 1
    assert found > 200


def test_tickets_name_the_customer_and_stay_short(
    database: RetailDB, mixed: list[Task], hardest: list[Task]
) -> None:
    for task in mixed + hardest:
        user, ticket = customer(database, task), task.ticket or ""
        assert f"{user.name.first_name} {user.name.last_name}" in ticket
        assert (user.email in ticket) or (user.address.zip in ticket)
        assert 2 <= len(re.findall(r"\.(?: |$)", ticket)) <= 6
        assert not re.search(r"\byour?\b|[{}]", ticket, re.IGNORECASE)


def test_scenarios_speak_to_the_customer(mixed: list[Task]) -> None:
    for task in mixed:
        told = story(task)
        assert told.reason_for_call.startswith("You ")
        assert told.known_info
        assert told.known_info.startswith("You are ")
        assert not re.search(r"\btheir\b|\bthey\b|[{}]", told.reason_for_call, re.IGNORECASE)


def test_new_addresses_are_spelled_out_or_can_be_looked_up(
    database: RetailDB, hardest: list[Task]
) -> None:
    for task in hardest:
        told, user = story(task).reason_for_call, customer(database, task)
        known = [user.address, *(database.orders[number].address for number in user.orders)]
        for action in writes(task):
            if "address1" not in action.arguments:
                continue
            fields = {k: v for k, v in action.arguments.items() if not k.endswith("_id")}
            is_known = any(address.model_dump() == fields for address in known)
            assert is_known or all(str(value) in told for value in fields.values())


def test_numbers_to_be_told_are_asked_for_and_not_given_away(hardest: list[Task]) -> None:
    asked = [t for t in hardest if t.evaluation_criteria and t.evaluation_criteria.communicate_info]
    assert asked
    for task in asked:
        assert task.evaluation_criteria
        for number in task.evaluation_criteria.communicate_info or ():
            assert re.fullmatch(r"\d+(\.\d{1,2})?", number)
            assert len(number) >= 4
            assert number not in f"{story(task)} {task.ticket}"
            assert "exact" in story(task).reason_for_call
            assert "exact" in (task.ticket or "")


def test_a_return_that_asks_for_its_refund_expects_the_prices_of_its_items(
    database: RetailDB,
) -> None:
    tasks = generate(database, seed=9, count=1500, split="train", difficulty=0.35)
    checked = 0
    for task in tasks:
        numbers = task.evaluation_criteria and task.evaluation_criteria.communicate_info
        if not numbers or [action.name for action in writes(task)] != [
            "return_delivered_order_items"
        ]:
            continue
        given: Any = writes(task)[0].arguments
        prices = {i.item_id: i.price for i in database.orders[given["order_id"]].items}
        assert float(numbers[0]) == round(sum(prices[item] for item in given["item_ids"]), 2)
        checked += 1
    assert checked
