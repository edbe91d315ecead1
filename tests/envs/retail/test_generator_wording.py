"""The texts of generated retail tasks determine their gold actions."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from inspect_evals.tau2.retail.data_model import Order, OrderItem, Product, RetailDB, User

from generation import retail as generate
from grpo_cl.types import Task
from retail_tasks import customer, instructions_of, writes


def orders_with(database: RetailDB, user: User, names: Sequence[str]) -> list[Order]:
    orders = [database.orders[number] for number in user.orders]
    return [order for order in orders if set(names) <= {item.name for item in order.items}]


def fitting_variants(product: Product, item: OrderItem, text: str) -> list[str]:
    """The variants that fit the sentence ``text``."""
    stock = [variant for variant in product.variants.values() if variant.available]
    others = [variant for variant in stock if variant.item_id != item.item_id]
    superlative = r"the (cheapest|most expensive) available one(?: with ([^:]+): (.+?))?, "
    if match := re.search(superlative, text):
        word, option, value = match.groups()
        fitting = [v for v in stock if option is None or v.options[option] == value]
        best = (min if word == "cheapest" else max)(v.price for v in fitting)
        return [v.item_id for v in fitting if v.price == best]
    if match := re.search(r" one with ([^:]+): (.+?) and everything else unchanged", text):
        wanted = item.options | {match[1]: match[2]}
        return [v.item_id for v in others if v.options == wanted]
    if match := re.search(r"whichever available one has ([^:]+): (.+?) \(the other", text):
        return [v.item_id for v in others if v.options[match[1]] == match[2]]
    words = {v.item_id: ", ".join(f"{k}: {o}" for k, o in v.options.items()) for v in others}
    return [number for number, options in words.items() if f"the one with {options}" in text]


def test_an_order_described_by_its_contents_is_unique(
    database: RetailDB, hardest: list[Task]
) -> None:
    names = "|".join(sorted({product.name for product in database.products.values()}))
    pattern = re.compile(rf"your order with the ({names})(?: and the ({names}))?\b")
    num_checked = 0
    for task in hardest:
        user = customer(database, task)
        for match in pattern.finditer(instructions_of(task).reason_for_call):
            contents = [name for name in match.groups() if name]
            assert len(orders_with(database, user, contents)) == 1
            num_checked += 1
    assert num_checked > 200


def test_an_item_named_without_its_order_is_in_one_order_only(
    database: RetailDB, hardest: list[Task]
) -> None:
    names = "|".join(sorted({product.name for product in database.products.values()}))
    pattern = re.compile(rf"the ({names})(?: \([^)]*\))? you ordered\b")
    num_checked = 0
    for task in hardest:
        user = customer(database, task)
        for name in pattern.findall(instructions_of(task).reason_for_call):
            assert len(orders_with(database, user, [name])) == 1
            num_checked += 1
    assert num_checked > 50


def test_the_description_of_a_new_item_fits_one_variant_only(
    database: RetailDB, mixed: list[Task], hardest: list[Task]
) -> None:
    num_checked = 0
    for task in mixed + hardest:
        purposes = task.description and (task.description.purpose or "").split("; ")
        sentences = re.split(r"(?<=\.) ", instructions_of(task).reason_for_call)
        steps = iter(writes(task))
        for purpose, sentence in zip(purposes or (), sentences, strict=True):
            arguments: Any = {} if "refused" in purpose else next(steps).arguments
            if purpose != "change an item of a pending order":
                continue
            items = {item.item_id: item for item in database.orders[arguments["order_id"]].items}
            item = items[arguments["item_ids"][0]]
            fitting = fitting_variants(database.products[item.product_id], item, sentence)
            assert fitting == arguments["new_item_ids"], sentence
            num_checked += 1
    assert num_checked > 200


def test_tickets_name_the_customer_and_are_short(
    database: RetailDB, mixed: list[Task], hardest: list[Task]
) -> None:
    for task in mixed + hardest:
        user, ticket = customer(database, task), task.ticket or ""
        assert f"{user.name.first_name} {user.name.last_name}" in ticket
        assert (user.email in ticket) or (user.address.zip in ticket)
        assert 2 <= len(re.findall(r"\.(?: |$)", ticket)) <= 6
        assert not re.search(r"\byour?\b|[{}]", ticket, re.IGNORECASE)


def test_instructions_are_in_the_second_person(mixed: list[Task]) -> None:
    for task in mixed:
        instructions = instructions_of(task)
        assert instructions.reason_for_call.startswith("You ")
        assert instructions.known_info
        assert instructions.known_info.startswith("You are ")
        assert not re.search(
            r"\btheir\b|\bthey\b|[{}]", instructions.reason_for_call, re.IGNORECASE
        )


def test_new_addresses_are_stated_or_in_the_database(
    database: RetailDB, hardest: list[Task]
) -> None:
    for task in hardest:
        text, user = instructions_of(task).reason_for_call, customer(database, task)
        known = [user.address, *(database.orders[number].address for number in user.orders)]
        for action in writes(task):
            if "address1" not in action.arguments:
                continue
            fields = {k: v for k, v in action.arguments.items() if not k.endswith("_id")}
            is_known = any(address.model_dump() == fields for address in known)
            assert is_known or all(str(value) in text for value in fields.values())


def test_requested_amounts_are_not_stated_in_the_texts(hardest: list[Task]) -> None:
    asked = [task for task in hardest if task.communicate_info]
    assert asked
    for task in asked:
        for number in task.communicate_info:
            assert re.fullmatch(r"\d+(\.\d{1,2})?", number)
            assert len(number) >= 4
            assert number not in f"{instructions_of(task)} {task.ticket}"
            assert "exact" in instructions_of(task).reason_for_call
            assert "exact" in (task.ticket or "")


@pytest.mark.slow
def test_the_requested_refund_of_a_return_is_the_sum_of_its_item_prices(
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
        arguments: Any = writes(task)[0].arguments
        prices = {i.item_id: i.price for i in database.orders[arguments["order_id"]].items}
        assert float(numbers[0]) == round(sum(prices[item] for item in arguments["item_ids"]), 2)
        checked += 1
    assert checked
