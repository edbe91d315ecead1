"""Requests about the items of an order under way, allowed and forbidden."""

from grpo_cl.domains.doordash.database import Order, OrderItem
from grpo_cl.domains.doordash.rules import cents, settle
from grpo_cl.domains.generators.doordash.case import (
    Case,
    Request,
    forbidden,
    having,
    read_item,
    read_menu,
    read_order,
    read_restaurant,
)
from grpo_cl.domains.generators.doordash.goods import Pick, pick, safe_items
from grpo_cl.domains.generators.doordash.wording import number, word

_NEW_TOTAL = "the exact new total of that order"
_ADD_WORDS = ("add {item} to {order}", "put {item} into {order} as well")


def add(case: Case) -> Request | None:
    """Add an item to an order that the restaurant has not confirmed."""
    order = case.take(having("placed"))
    if order is None:
        return None
    restaurant = case.restaurant(order)
    there = {line.item_id for line in order.items}
    allergies = {*order.allergies, *case.customer.allergies}
    items = [i for i in safe_items(case, restaurant, allergies) if i.item_id not in there]
    if not items:
        return None
    added = pick(case, items[0], case.rng.randint(1, 2))
    total = _new_total(case, order, [*order.items, added.line])
    if not case.can_pay(order.payment_id, total - order.total):
        return None
    case.charge(order.payment_id, total - order.total)
    return Request(
        "add an item",
        word(case.rng, _ADD_WORDS, item=added.words, order=case.name_order(order)),
        [
            read_order(order),
            read_restaurant(restaurant),
            read_menu(restaurant),
            read_item(added.item.item_id),
        ],
        [("add_item", {"order_id": order.order_id, **added.arguments})],
        subject=_NEW_TOTAL,
        answer=number(total),
    )


def add_allergen(case: Case) -> Request | None:
    """Add an item with an allergen of the profile."""
    own = set(case.customer.allergies)
    order = case.take(having("placed")) if own else None
    if order is None:
        return None
    risky = [item for item in case.menu(case.restaurant(order)) if own & set(item.allergens)]
    if not risky:
        return None
    added = pick(case, case.rng.choice(risky), 1)
    wording = word(case.rng, _ADD_WORDS, item=added.words, order=case.name_order(order))
    menu = read_menu(case.restaurant(order))
    reads = [read_order(order), menu, read_item(added.item.item_id)]
    tells = {"which of {your} allergens is in it, if any": min(own & set(added.item.allergens))}
    case.profile_needed = True
    return forbidden("add an allergen", wording, reads, tells=tells)


def change(case: Case) -> Request | None:
    """Change the quantity or an option of an item while that is allowed."""
    order = case.take(having("placed"))
    if order is None:
        return None
    lines = [line for line in order.items if case.database.items[line.item_id].is_available]
    if not lines:
        return None
    line = case.rng.choice(lines)
    changed, wish = _altered(case, line)
    rest = [other for other in order.items if other.item_id != line.item_id]
    lines = [*rest, changed.line]
    total = _new_total(case, order, lines)
    is_enough = _subtotal(lines) >= case.restaurant(order).minimum_order
    if not is_enough or not case.can_pay(order.payment_id, total - order.total):
        return None
    case.charge(order.payment_id, total - order.total)
    templates = ("change {order} so that {wish}", "modify {order} so that {wish}")
    return Request(
        "change an item",
        word(case.rng, templates, order=case.name_order(order), wish=wish),
        [read_order(order), read_restaurant(case.restaurant(order)), read_item(line.item_id)],
        [("modify_item", {"order_id": order.order_id, **changed.arguments})],
        subject=_NEW_TOTAL,
        answer=number(total),
    )


def _altered(case: Case, line: OrderItem) -> tuple[Pick, str]:
    item = case.database.items[line.item_id]
    if item.options and case.rng.random() < 0.6:
        name = case.rng.choice(list(item.options))
        others = [other for other in item.options[name] if other != line.options[name]]
        choice = case.rng.choice(others)
        options = {**line.options, name: choice}
        return Pick(item, options, line.quantity), f"the {line.name} comes with {name} {choice}"
    quantity = case.rng.choice([count for count in (1, 2, 3, 4) if count != line.quantity])
    return Pick(item, line.options, quantity), f"it has {quantity} {line.name} in all"


def drop(case: Case) -> Request | None:
    """Remove an item where enough is left."""
    return _drop(case, is_allowed=True)


def drop_too_much(case: Case) -> Request | None:
    """Remove an item without which the order is too small."""
    return _drop(case, is_allowed=False)


def _drop(case: Case, *, is_allowed: bool) -> Request | None:
    order = case.take(having("placed"))
    if order is None:
        return None
    restaurant = case.restaurant(order)
    for line in case.shuffled(order.items):
        rest = [other for other in order.items if other.item_id != line.item_id]
        if not rest or (_subtotal(rest) >= restaurant.minimum_order) is not is_allowed:
            continue
        templates = ("remove the {item} from {order}", "take the {item} out of {order}")
        wording = word(case.rng, templates, item=line.name, order=case.name_order(order))
        reads = [read_order(order), read_restaurant(restaurant)]
        if not is_allowed:
            short = number(restaurant.minimum_order - _subtotal(rest))
            tells = {"by how many dollars the rest misses the minimum, if it does": short}
            return forbidden("remove too much", wording, reads, tells=tells)
        arguments = {"order_id": order.order_id, "item_id": line.item_id}
        total = number(_new_total(case, order, rest))
        return Request(
            "remove an item",
            wording,
            reads,
            [("remove_item", arguments)],
            subject=_NEW_TOTAL,
            answer=total,
        )
    return None


def change_late(case: Case) -> Request | None:
    """Change the items of an order that the restaurant has confirmed."""
    order = case.take(having("confirmed", "preparing", "picked_up"))
    if order is None:
        return None
    line = case.rng.choice(order.items)
    templates = (
        "remove the {item} from {order}",
        "change {order} so that it has {count} {item} in all",
    )
    wording = word(
        case.rng,
        templates,
        item=line.name,
        count=f"{line.quantity + 1}",
        order=case.name_order(order),
    )
    return forbidden("change the items too late", wording, [read_order(order)])


def _subtotal(lines: list[OrderItem]) -> float:
    return cents(sum(line.unit_price * line.quantity for line in lines))


def _new_total(case: Case, order: Order, lines: list[OrderItem]) -> float:
    changed = order.model_copy(update={"items": lines})
    settle(changed, case.restaurant(order), case.customer)
    return changed.total
