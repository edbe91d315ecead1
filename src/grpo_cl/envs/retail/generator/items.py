"""Allowed requests about single items: exchanges, changes and returns."""

from collections.abc import Sequence
from typing import NamedTuple

from inspect_evals.tau2.retail.data_model import GiftCard, Order, OrderItem, PaymentMethod

from grpo_cl.envs.generation.requests import Call, Request, question
from grpo_cl.envs.generation.wording import Wording, draw_wording, format_amount, join_words
from grpo_cl.envs.retail.generator.case import RetailCase, read_order
from grpo_cl.envs.retail.generator.variants import (
    VariantChoice,
    choose_variant,
    name_item,
    single_items,
)

EXCHANGE_TEMPLATES = (
    "exchange {swaps}, with any price difference settled through {method}",
    "swap {swaps}, using {method} for the price difference",
    "trade in {swaps}, and the price difference goes through {method}",
)
CHANGE_TEMPLATES = (
    "change {swaps}, with any price difference settled through {method}",
    "modify {swaps}, using {method} for the price difference",
    "switch {swaps}, and the price difference goes through {method}",
)


class Swap(NamedTuple):
    """One item and the variant that replaces it."""

    item: OrderItem
    choice: VariantChoice

    @property
    def price_change(self) -> float:
        """The price of the new variant minus that of the item."""
        return self.choice.variant.price - self.item.price


def read_products(items: Sequence[OrderItem]) -> list[Call]:
    """The calls that read the variants of the items' products."""
    return [("get_product_details", {"product_id": item.product_id}) for item in items]


def change_item(case: RetailCase) -> Request | None:
    """Change one item of a pending order.

    With several items, the upstream tool would write the last variant into all of them.
    """
    for order in case.free_orders({"pending"}, beside="change address"):
        for item in case.shuffled(single_items(order)):
            choice = choose_variant(case, item)
            if choice and (request := _swap(case, order, [Swap(item, choice)])):
                return request
    return None


def exchange(case: RetailCase) -> Request | None:
    """Exchange one or two items of a delivered order."""
    for order in case.free_orders({"delivered"}):
        count = 2 if case.omits_detail() else 1
        swaps = [
            Swap(item, choice)
            for item in case.shuffled(single_items(order))[:count]
            if (choice := choose_variant(case, item))
        ]
        if swaps and (request := _swap(case, order, swaps)):
            return request
    return None


def return_items(case: RetailCase) -> Request | None:
    """Return some items of a delivered order."""
    for order in case.free_orders({"delivered"}):
        items = case.shuffled(single_items(order))
        if items:
            return _return(
                case, order, items[: case.rng.randint(1, 3 if case.omits_detail() else 1)]
            )
    return None


def exchange_or_return(case: RetailCase) -> Request | None:
    """Ask for an exchange and a return in one order, which allows only one, and prefer one."""
    for order in case.free_orders({"delivered"}) if case.omits_detail() else ():
        items = case.shuffled(single_items(order))
        choice = choose_variant(case, items[0]) if len(items) > 1 else None
        if not choice:
            continue
        swap, returned_item = Swap(items[0], choice), items[1]
        exchanged = _swap(case, order, [swap])
        if exchanged is None:
            continue
        returned = _return(case, order, [returned_item])
        chosen = case.rng.choice((exchanged, returned))
        preferred = "exchange" if chosen is exchanged else "return"
        fallback = f"if not both can be done, {{you}} want only the {preferred}"
        both = exchanged.wording.then(returned.wording, ", and also to ")
        return Request(
            f"exchange and return in one order, of which only the {preferred} is wanted",
            both.then(Wording(fallback, fallback), "; "),
            [*exchanged.reads, *returned.reads],
            chosen.writes,
            has_fallback=True,
        )
    return None


def _swap(case: RetailCase, order: Order, swaps: Sequence[Swap]) -> Request | None:
    change = round(sum(swap.price_change for swap in swaps), 2)
    methods = case.payers(change)
    if not methods:
        return None
    is_pending = order.status == "pending"
    case.used[order.order_id] = "change item" if is_pending else "exchange"
    case.charge(methods[0], change)
    items = [swap.item for swap in swaps]
    templates = CHANGE_TEMPLATES if is_pending else EXCHANGE_TEMPLATES
    facts = {
        "swaps": _swap_words(case, order, swaps),
        "method": case.name_method(methods[0], order),
    }
    arguments = {
        "order_id": order.order_id,
        "item_ids": [item.item_id for item in items],
        "new_item_ids": [swap.choice.variant.item_id for swap in swaps],
        "payment_method_id": methods[0].id,
    }
    tool = "modify_pending_order_items" if is_pending else "exchange_delivered_order_items"
    return Request(
        "change an item of a pending order" if is_pending else "exchange delivered items",
        draw_wording(case.rng, templates, **facts),
        [read_order(order), *read_products(items)],
        [(tool, arguments)],
        questions=question("the exact price difference in total", format_amount(abs(change))),
    )


def _swap_words(case: RetailCase, order: Order, swaps: Sequence[Swap]) -> str:
    link = "to" if order.status == "pending" else "for"
    locations = [case.name_location(order, {swap.item.name for swap in swaps})]
    locations += [" in the same order"] * (len(swaps) - 1)
    return " and also ".join(
        f"{name_item(case, order, swap.item)}{location} {link} {swap.choice.words}"
        for swap, location in zip(swaps, locations, strict=True)
    )


def _return(case: RetailCase, order: Order, items: Sequence[OrderItem]) -> Request:
    case.used[order.order_id] = "return"
    method = case.rng.choice(refund_methods(case, order))
    templates = (
        "return {items}{location}, with the refund going to {method}",
        "send back {items}{location} and get the refund to {method}",
        "return {items}{location} and have the money refunded to {method}",
    )
    facts = {
        "items": join_words([name_item(case, order, item) for item in items]),
        "location": case.name_location(order, {item.name for item in items}),
        "method": case.name_method(method, order),
    }
    arguments = {
        "order_id": order.order_id,
        "item_ids": [item.item_id for item in items],
        "payment_method_id": method.id,
    }
    return Request(
        "return delivered items",
        draw_wording(case.rng, templates, **facts),
        [read_order(order)],
        [("return_delivered_order_items", arguments)],
        questions=question(
            "the exact refund for it in total",
            format_amount(round(sum(item.price for item in items), 2)),
        ),
    )


def refund_methods(case: RetailCase, order: Order) -> list[PaymentMethod]:
    """The payment methods that the refund of a return may go to."""
    original = case.original_method(order)
    return [
        method
        for method in case.user.payment_methods.values()
        if method.id == original.id or isinstance(method, GiftCard)
    ]
