"""Requests of retail customers that the policy forbids; the database must not change."""

from collections.abc import Sequence

from inspect_evals.tau2.retail.data_model import GiftCard, Order, OrderItem

from grpo_cl.envs.generation.requests import Request, RequestMaker
from grpo_cl.envs.generation.wording import Wording, draw_wording
from grpo_cl.envs.retail.generator.case import RetailCase, read_order
from grpo_cl.envs.retail.generator.items import read_products, refund_methods
from grpo_cl.envs.retail.generator.variants import (
    name_item,
    options_words,
    single_items,
    variants_of,
)

_INVALID_REASONS = (
    "{you} found it cheaper in another shop",
    "the delivery takes too long",
    "{you} want to place the same order again with a discount code",
    "{your} partner does not like the shop",
)
_UNSUPPORTED = (
    "add a new credit card to {your} profile",
    "change the email address of {your} account",
    "apply a discount code to an order that was already paid",
    "place a new order for an item of type {product} by phone",
    "report that someone else used {your} account and have it investigated",
    "change the name on {your} account",
)
_STATUS_RULES: tuple[tuple[str, Sequence[str], Sequence[str]], ...] = (
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
            "return {item}{location}, with the refund going to {method}",
            "send back {item}{location} and get the refund to {method}",
        ),
    ),
    (
        "swap an item of",
        ("processed", "cancelled"),
        (
            "exchange {item}{location} for {choice}, using {method} for the price difference",
            "swap {item}{location} for {choice}, with {method} for the price difference",
        ),
    ),
)
"""Purpose, order statuses that forbid the request, and templates."""


def wrong_status(case: RetailCase) -> Request | None:
    """Ask for something that the order's status does not allow."""
    candidates = [
        (name, templates, order)
        for name, statuses, templates in _STATUS_RULES
        for order in case.free_orders(statuses)
    ]
    if not candidates:
        return None
    name, templates, order = case.rng.choice(candidates)
    if "{item}" in templates[0]:
        item = case.rng.choice(order.items)
        variant = case.rng.choice(list(case.products[item.product_id].variants.values()))
        facts = _item_facts(case, order, item)
        facts["choice"] = f"the one with {options_words(variant.options)}"
    else:
        facts = {"order": case.name_order(order), "address": case.spell_address()[0]}
    return _refused(case, f"{name} a {order.status} order", order, (templates, facts))


def cancel_for_invalid_reason(case: RetailCase) -> Request | None:
    """Cancel a pending order for a reason that the policy does not accept."""
    for order in case.free_orders({"pending"}):
        templates = (
            "cancel {order} because {why}, which is the only reason {you} will give",
            "have {order} cancelled for the one reason that {why}",
        )
        facts = {"order": case.name_order(order), "why": case.rng.choice(_INVALID_REASONS)}
        return _refused(case, "cancel for another reason", order, (templates, facts))
    return None


def cancel_one_item(case: RetailCase) -> Request | None:
    """Cancel one item of a pending order and keep the rest."""
    for order in case.free_orders({"pending"}):
        if len(order.items) < 2:
            continue
        templates = (
            "cancel only {item}{location} and keep everything else in that order",
            "drop just {item}{location} without cancelling the rest of that order",
        )
        facts = _item_facts(case, order, case.rng.choice(order.items))
        return _refused(case, "cancel a part of an order", order, (templates, facts))
    return None


def swap_for_other_product(case: RetailCase) -> Request | None:
    """Swap an item for something of another product type."""
    for order in case.free_orders({"pending", "delivered"}):
        item = case.rng.choice(order.items)
        products = [p for p in case.products.values() if p.product_id != item.product_id]
        templates = (
            "swap {item}{location} for an item of type {product}, "
            "using {method} for the price difference",
            "get an item of type {product} in place of {item}{location}, "
            "with {method} for the price difference",
        )
        facts = _item_facts(case, order, item) | {"product": case.rng.choice(products).name}
        return _refused(case, "swap for another product", order, (templates, facts))
    return None


def swap_for_unavailable(case: RetailCase) -> Request | None:
    """Swap an item for a variant that is not available."""
    for order in case.free_orders({"pending", "delivered"}):
        candidates = [
            (item, variant)
            for item in single_items(order)
            for variant in variants_of(case, item).unavailable
        ]
        if not candidates:
            continue
        item, variant = case.rng.choice(candidates)
        templates = (
            "swap {item}{location} for the one with {choice} and no other, "
            "using {method} for the price difference",
            "get exactly the one with {choice} in place of {item}{location}, "
            "with {method} for the price difference",
        )
        facts = _item_facts(case, order, item) | {"choice": options_words(variant.options)}
        request = _refused(case, "swap for what is not available", order, (templates, facts))
        return request._replace(reads=[*request.reads, *read_products([item])])
    return None


def refund_to_other_method(case: RetailCase) -> Request | None:
    """Refund a return to a method that neither paid the order nor is a gift card."""
    for order in case.free_orders({"delivered"}):
        allowed = {method.id for method in refund_methods(case, order)}
        methods = [m for m in case.user.payment_methods.values() if m.id not in allowed]
        if not methods:
            continue
        templates = (
            "return {item}{location}, with the refund going to {method} and nowhere else",
            "send back {item}{location}, but only if the refund goes to {method}",
        )
        facts = _item_facts(case, order, case.rng.choice(order.items))
        facts["method"] = case.name_method(case.rng.choice(methods))
        return _refused(case, "refund to another payment method", order, (templates, facts))
    return None


def pay_with_insufficient_card(case: RetailCase) -> Request | None:
    """Pay a pending order with a gift card whose balance is too low."""
    cards = [m for m in case.user.payment_methods.values() if isinstance(m, GiftCard)]
    if not cards or case.uses_gift_card:
        return None  # an earlier refund of the call could raise the balance
    for order in case.free_orders({"pending"}):
        amount, previous = order.payment_history[0].amount, case.original_method(order)
        if previous.id == cards[0].id or cards[0].balance >= amount:
            continue
        templates = (
            "pay for {order} with {method} instead",
            "change the payment method of {order} to {method}",
        )
        facts = {"order": case.name_order(order), "method": case.name_method(cards[0])}
        return _refused(case, "pay with too small a gift card", order, (templates, facts))
    return None


def cancel_order_of_other_customer(case: RetailCase) -> Request | None:
    """Cancel an order of another customer."""
    order = case.rng.choice(case.pending_orders)
    if order.user_id == case.user.user_id or "other customer" in case.used:
        return None
    case.used["other customer"] = "refused"
    case.needs_profile = True
    templates = (
        "cancel order {order}, which a friend placed and no longer needs",
        "have order {order} cancelled for {your} sister, who ordered it by mistake",
        "cancel order {order} of a neighbour because it is no longer needed",
    )
    wording = draw_wording(case.rng, templates, order=order.order_id)
    return Request("act on the order of another customer", wording, [])


def unsupported(case: RetailCase) -> Request | None:
    """Ask for something that no tool does, which is transferred to a human."""
    product = case.rng.choice(list(case.products.values())).name
    template = case.rng.choice(_UNSUPPORTED)
    wording = draw_wording(case.rng, [template], product=product)
    summary = f"The customer wants to {template.format(your='their', product=product)}."
    fallback = "if a person has to do that, being passed on is fine"
    return Request(
        "be handed over",
        wording.then(Wording(fallback, fallback), "; "),
        [("transfer_to_human_agents", {"summary": summary})],
        has_fallback=True,
    )


def _item_facts(case: RetailCase, order: Order, item: OrderItem) -> dict[str, str]:
    return {
        "item": name_item(case, order, item),
        "location": case.name_location(order, {item.name}),
        "method": case.name_method(case.original_method(order), order),
    }


def _refused(
    case: RetailCase, purpose: str, order: Order, text: tuple[Sequence[str], dict[str, str]]
) -> Request:
    case.used[order.order_id] = "refused"
    templates, facts = text
    return Request(purpose, draw_wording(case.rng, templates, **facts), [read_order(order)])


FORBIDDEN: tuple[RequestMaker[RetailCase], ...] = (
    wrong_status,
    cancel_for_invalid_reason,
    cancel_one_item,
    swap_for_other_product,
    swap_for_unavailable,
    refund_to_other_method,
    pay_with_insufficient_card,
    cancel_order_of_other_customer,
)
"""Forbidden requests that can be combined with allowed ones."""
