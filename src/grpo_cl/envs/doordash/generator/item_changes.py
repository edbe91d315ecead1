"""Requests that change the items of an order, allowed and forbidden."""

from grpo_cl.envs.doordash.database import Order, OrderItem
from grpo_cl.envs.doordash.generator.case import (
    DoordashCase,
    has_status,
    read_item,
    read_menu,
    read_order,
    read_restaurant,
)
from grpo_cl.envs.doordash.generator.item_choices import ItemChoice, draw_choice, safe_items
from grpo_cl.envs.doordash.rules import cents, update_amounts
from grpo_cl.envs.generation.requests import Request, question
from grpo_cl.envs.generation.wording import draw_wording, format_amount

_NEW_TOTAL = "the exact new total of that order"
_ADD_TEMPLATES = ("add {item} to {order}", "put {item} into {order} as well")


def add_item(case: DoordashCase) -> Request | None:
    """Add an item to an order that the restaurant has not confirmed."""
    order = case.take_order(has_status("placed"))
    if order is None:
        return None
    restaurant = case.restaurant(order)
    ordered_ids = {line.item_id for line in order.items}
    allergies = {*order.allergies, *case.customer.allergies}
    items = [i for i in safe_items(case, restaurant, allergies) if i.item_id not in ordered_ids]
    if not items:
        return None
    added = draw_choice(case, items[0], case.rng.randint(1, 2))
    total = _new_total(case, order, [*order.items, added.line])
    if not case.can_pay(order.payment_id, total - order.total):
        return None
    case.charge(order.payment_id, total - order.total)
    return Request(
        "add an item",
        draw_wording(case.rng, _ADD_TEMPLATES, item=added.words, order=case.name_order(order)),
        [
            read_order(order),
            read_restaurant(restaurant),
            read_menu(restaurant),
            read_item(added.item.item_id),
        ],
        [("add_item", {"order_id": order.order_id, **added.arguments})],
        questions=question(_NEW_TOTAL, format_amount(total)),
    )


def add_allergen(case: DoordashCase) -> Request | None:
    """Add an item with an allergen of the profile."""
    allergies = set(case.customer.allergies)
    order = case.take_order(has_status("placed")) if allergies else None
    if order is None:
        return None
    risky = [item for item in case.menu(case.restaurant(order)) if allergies & set(item.allergens)]
    if not risky:
        return None
    added = draw_choice(case, case.rng.choice(risky), 1)
    wording = draw_wording(case.rng, _ADD_TEMPLATES, item=added.words, order=case.name_order(order))
    menu = read_menu(case.restaurant(order))
    reads = [read_order(order), menu, read_item(added.item.item_id)]
    allergen = min(allergies & set(added.item.allergens))
    questions = question("which of {your} allergens is in it, if any", allergen)
    case.needs_profile = True
    return Request("add an allergen", wording, reads, questions=questions)


def modify_item(case: DoordashCase) -> Request | None:
    """Change the quantity or an option of an item of a placed order."""
    order = case.take_order(has_status("placed"))
    if order is None:
        return None
    lines = [line for line in order.items if case.database.items[line.item_id].is_available]
    if not lines:
        return None
    line = case.rng.choice(lines)
    modified, wish = _draw_modification(case, line)
    remaining = [other for other in order.items if other.item_id != line.item_id]
    lines = [*remaining, modified.line]
    total = _new_total(case, order, lines)
    is_enough = _subtotal(lines) >= case.restaurant(order).minimum_order
    if not is_enough or not case.can_pay(order.payment_id, total - order.total):
        return None
    case.charge(order.payment_id, total - order.total)
    templates = ("change {order} so that {wish}", "modify {order} so that {wish}")
    return Request(
        "change an item",
        draw_wording(case.rng, templates, order=case.name_order(order), wish=wish),
        [read_order(order), read_restaurant(case.restaurant(order)), read_item(line.item_id)],
        [("modify_item", {"order_id": order.order_id, **modified.arguments})],
        questions=question(_NEW_TOTAL, format_amount(total)),
    )


def _draw_modification(case: DoordashCase, line: OrderItem) -> tuple[ItemChoice, str]:
    item = case.database.items[line.item_id]
    if item.options and case.rng.random() < 0.6:
        name = case.rng.choice(list(item.options))
        others = [other for other in item.options[name] if other != line.options[name]]
        choice = case.rng.choice(others)
        options = {**line.options, name: choice}
        return ItemChoice(
            item, options, line.quantity
        ), f"the {line.name} comes with {name} {choice}"
    quantity = case.rng.choice([count for count in (1, 2, 3, 4) if count != line.quantity])
    return ItemChoice(item, line.options, quantity), f"it has {quantity} {line.name} in all"


def remove_item(case: DoordashCase) -> Request | None:
    """Remove an item of an order that stays above the minimum."""
    return _remove(case, is_allowed=True)


def remove_below_minimum(case: DoordashCase) -> Request | None:
    """Remove an item of an order that then falls below the minimum."""
    return _remove(case, is_allowed=False)


def _remove(case: DoordashCase, *, is_allowed: bool) -> Request | None:
    order = case.take_order(has_status("placed"))
    if order is None:
        return None
    restaurant = case.restaurant(order)
    for line in case.shuffled(order.items):
        remaining = [other for other in order.items if other.item_id != line.item_id]
        if not remaining or (_subtotal(remaining) >= restaurant.minimum_order) is not is_allowed:
            continue
        templates = ("remove the {item} from {order}", "take the {item} out of {order}")
        wording = draw_wording(case.rng, templates, item=line.name, order=case.name_order(order))
        reads = [read_order(order), read_restaurant(restaurant)]
        if not is_allowed:
            shortfall = format_amount(restaurant.minimum_order - _subtotal(remaining))
            questions = question(
                "by how many dollars the rest misses the minimum, if it does", shortfall
            )
            return Request("remove too much", wording, reads, questions=questions)
        arguments = {"order_id": order.order_id, "item_id": line.item_id}
        total = format_amount(_new_total(case, order, remaining))
        return Request(
            "remove an item",
            wording,
            reads,
            [("remove_item", arguments)],
            questions=question(_NEW_TOTAL, total),
        )
    return None


def modify_items_too_late(case: DoordashCase) -> Request | None:
    """Change the items of an order that the restaurant has confirmed."""
    order = case.take_order(has_status("confirmed", "preparing", "picked_up"))
    if order is None:
        return None
    line = case.rng.choice(order.items)
    templates = (
        "remove the {item} from {order}",
        "change {order} so that it has {count} {item} in all",
    )
    wording = draw_wording(
        case.rng,
        templates,
        item=line.name,
        count=f"{line.quantity + 1}",
        order=case.name_order(order),
    )
    return Request("change the items too late", wording, [read_order(order)])


def _subtotal(lines: list[OrderItem]) -> float:
    return cents(sum(line.unit_price * line.quantity for line in lines))


def _new_total(case: DoordashCase, order: Order, lines: list[OrderItem]) -> float:
    updated = order.model_copy(update={"items": lines})
    update_amounts(updated, case.restaurant(order), case.customer)
    return updated.total
