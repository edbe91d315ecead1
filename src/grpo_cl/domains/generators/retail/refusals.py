"""Requests of retail customers that the shop's rules forbid; answering them changes nothing."""

from collections.abc import Callable, Sequence

from inspect_evals.tau2.retail.data_model import GiftCard, Order, OrderItem

from grpo_cl.domains.generators.retail.case import Case, Request, read_order
from grpo_cl.domains.generators.retail.goods import (
    name_item,
    options_words,
    shelf,
    single_items,
)
from grpo_cl.domains.generators.retail.items import read_products, refund_methods
from grpo_cl.domains.generators.retail.wording import word

Trap = Callable[[Case], Request | None]

_POOR_REASONS = (
    "{you} found it cheaper in another shop",
    "the delivery takes too long",
    "{you} want to place the same order again with a discount code",
    "{your} partner does not like the shop",
)
_UNOFFERED = (
    "add a new credit card to {your} profile",
    "change the email address of {your} account",
    "apply a discount code to an order that was already paid",
    "place a new order for an item of type {product} by phone",
    "report that someone else used {your} account and have it investigated",
    "change the name on {your} account",
)
_TOO_LATE: tuple[tuple[str, Sequence[str], Sequence[str]], ...] = (
    (
        "cancel",
        ("processed", "delivered"),
        (
            "cancel {order} because {you} no longer need it",
            "have {order} cancelled, since {you} no longer need it",
        ),
    ),
    (
        "change the address of",
        ("processed",),
        (
            "have {order} shipped to a different address, namely {address}",
            "change the shipping address of {order} to {address}",
        ),
    ),
    (
        "return an item of",
        ("processed", "cancelled"),
        (
            "return {item}{place}, with the refund going to {method}",
            "send back {item}{place} and get the refund to {method}",
        ),
    ),
    (
        "swap an item of",
        ("processed", "cancelled"),
        (
            "exchange {item}{place} for {choice}, using {method} for the price difference",
            "swap {item}{place} for {choice}, with {method} for the price difference",
        ),
    ),
)
"""What is asked for, the statuses that rule it out, and words for it."""


def wrong_status(case: Case) -> Request | None:
    """Ask for something that the order's status no longer allows."""
    chances = [
        (name, templates, order)
        for name, statuses, templates in _TOO_LATE
        for order in case.free_orders(statuses)
    ]
    if not chances:
        return None
    name, templates, order = case.rng.choice(chances)
    if "{item}" in templates[0]:
        item = case.rng.choice(order.items)
        variant = case.rng.choice(list(case.products[item.product_id].variants.values()))
        facts = _item_facts(case, order, item)
        facts["choice"] = f"the one with {options_words(variant.options)}"
    else:
        facts = {"order": case.name_order(order), "address": case.spell_address()[0]}
    return _refused(case, f"{name} a {order.status} order", order, (templates, facts))


def poor_reason(case: Case) -> Request | None:
    """Cancel a pending order for a reason the shop does not accept."""
    for order in case.free_orders({"pending"}):
        templates = (
            "cancel {order} because {why}, which is the only reason {you} will give",
            "have {order} cancelled for the one reason that {why}",
        )
        facts = {"order": case.name_order(order), "why": case.rng.choice(_POOR_REASONS)}
        return _refused(case, "cancel for another reason", order, (templates, facts))
    return None


def part_cancel(case: Case) -> Request | None:
    """Cancel one item of a pending order and keep the rest."""
    for order in case.free_orders({"pending"}):
        if len(order.items) < 2:
            continue
        templates = (
            "cancel only {item}{place} and keep everything else in that order",
            "drop just {item}{place} without cancelling the rest of that order",
        )
        facts = _item_facts(case, order, case.rng.choice(order.items))
        return _refused(case, "cancel a part of an order", order, (templates, facts))
    return None


def other_product(case: Case) -> Request | None:
    """Swap an item for something of another product type."""
    for order in case.free_orders({"pending", "delivered"}):
        item = case.rng.choice(order.items)
        products = [p for p in case.products.values() if p.product_id != item.product_id]
        templates = (
            "swap {item}{place} for an item of type {product}, "
            "using {method} for the price difference",
            "get an item of type {product} in place of {item}{place}, "
            "with {method} for the price difference",
        )
        facts = _item_facts(case, order, item) | {"product": case.rng.choice(products).name}
        return _refused(case, "swap for another product", order, (templates, facts))
    return None


def out_of_stock(case: Case) -> Request | None:
    """Swap an item for a variant that is not available."""
    for order in case.free_orders({"pending", "delivered"}):
        wishes = [
            (item, variant) for item in single_items(order) for variant in shelf(case, item).missing
        ]
        if not wishes:
            continue
        item, variant = case.rng.choice(wishes)
        templates = (
            "swap {item}{place} for the one with {choice} and no other, "
            "using {method} for the price difference",
            "get exactly the one with {choice} in place of {item}{place}, "
            "with {method} for the price difference",
        )
        facts = _item_facts(case, order, item) | {"choice": options_words(variant.options)}
        request = _refused(case, "swap for what is not available", order, (templates, facts))
        return request._replace(reads=[*request.reads, *read_products([item])])
    return None


def foreign_refund(case: Case) -> Request | None:
    """Return an item to a payment method that neither paid for it nor is a gift card."""
    for order in case.free_orders({"delivered"}):
        allowed = {method.id for method in refund_methods(case, order)}
        methods = [m for m in case.user.payment_methods.values() if m.id not in allowed]
        if not methods:
            continue
        templates = (
            "return {item}{place}, with the refund going to {method} and nowhere else",
            "send back {item}{place}, but only if the refund goes to {method}",
        )
        facts = _item_facts(case, order, case.rng.choice(order.items))
        facts["method"] = case.name_method(case.rng.choice(methods))
        return _refused(case, "refund to another payment method", order, (templates, facts))
    return None


def poor_card(case: Case) -> Request | None:
    """Move a pending order to a gift card that cannot pay for it."""
    cards = [m for m in case.user.payment_methods.values() if isinstance(m, GiftCard)]
    if not cards or case.gift_touched:
        return None  # a refund earlier in the call could fill the card
    for order in case.free_orders({"pending"}):
        amount, old = order.payment_history[0].amount, case.original_method(order)
        if old.id == cards[0].id or cards[0].balance >= amount:
            continue
        templates = (
            "pay for {order} with {method} instead",
            "change the payment method of {order} to {method}",
        )
        facts = {"order": case.name_order(order), "method": case.name_method(cards[0])}
        return _refused(case, "pay with too small a gift card", order, (templates, facts))
    return None


def strange_order(case: Case) -> Request | None:
    """Cancel an order of somebody else."""
    order = case.rng.choice(case.strangers)
    if order.user_id == case.user.user_id or "stranger" in case.used:
        return None
    case.used["stranger"] = "refused"
    case.profile_needed = True
    templates = (
        "cancel order {order}, which a friend placed and no longer needs",
        "have order {order} cancelled for {your} sister, who ordered it by mistake",
        "cancel order {order} of a neighbour because it is no longer needed",
    )
    wording = word(case.rng, templates, order=order.order_id)
    return Request("act on the order of another customer", wording, [])


def unoffered(case: Case) -> Request | None:
    """Ask for something no tool does, which is handed to a person."""
    product = case.rng.choice(list(case.products.values())).name
    wish = case.rng.choice(_UNOFFERED)
    wording = word(case.rng, [wish], product=product)
    summary = f"The customer wants to {wish.format(your='their', product=product)}."
    return Request(
        "be handed over",
        wording,
        [("transfer_to_human_agents", {"summary": summary})],
        closing="if a person has to do that, being passed on is fine",
    )


def _item_facts(case: Case, order: Order, item: OrderItem) -> dict[str, str]:
    return {
        "item": name_item(case, order, item),
        "place": case.place(order, {item.name}),
        "method": case.name_method(case.original_method(order), order),
    }


def _refused(
    case: Case, purpose: str, order: Order, text: tuple[Sequence[str], dict[str, str]]
) -> Request:
    case.used[order.order_id] = "refused"
    templates, facts = text
    return Request(purpose, word(case.rng, templates, **facts), [read_order(order)])


TRAPS: tuple[Trap, ...] = (
    wrong_status,
    poor_reason,
    part_cancel,
    other_product,
    out_of_stock,
    foreign_refund,
    poor_card,
    strange_order,
)
"""Forbidden requests that can stand beside allowed ones."""
