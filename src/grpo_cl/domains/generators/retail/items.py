"""Requests the shop grants about single items: other variants and returns."""

from collections.abc import Sequence
from typing import NamedTuple

from inspect_evals.tau2.retail.data_model import GiftCard, Order, OrderItem, PaymentMethod

from grpo_cl.domains.generators.retail.case import Call, Case, Request, read_order
from grpo_cl.domains.generators.retail.goods import Choice, choose_variant, name_item, single_items
from grpo_cl.domains.generators.retail.wording import listing, word

EXCHANGE_WORDS = (
    "exchange {swaps}, with any price difference settled through {method}",
    "swap {swaps}, using {method} for the price difference",
    "trade in {swaps}, and the price difference goes through {method}",
)
ALTER_WORDS = (
    "change {swaps}, with any price difference settled through {method}",
    "modify {swaps}, using {method} for the price difference",
    "switch {swaps}, and the price difference goes through {method}",
)


class Swap(NamedTuple):
    """One item that becomes another variant."""

    item: OrderItem
    choice: Choice

    @property
    def price_change(self) -> float:
        """What the new variant costs more; negative where it costs less."""
        return self.choice.variant.price - self.item.price


def read_products(items: Sequence[OrderItem]) -> list[Call]:
    """The calls that show all variants of the items' products."""
    return [("get_product_details", {"product_id": item.product_id}) for item in items]


def alter(case: Case) -> Request | None:
    """Change one item of a pending order.

    One item only: with several, the shop's tool writes the last variant into all of them.
    """
    for order in case.free_orders({"pending"}, beside="redirect"):
        for item in case.shuffled(single_items(order)):
            choice = choose_variant(case, item)
            if choice and (request := _swap(case, order, [Swap(item, choice)])):
                return request
    return None


def exchange(case: Case) -> Request | None:
    """Exchange one or two items of a delivered order."""
    for order in case.free_orders({"delivered"}):
        count = 2 if case.hides() else 1
        swaps = [
            Swap(item, choice)
            for item in case.shuffled(single_items(order))[:count]
            if (choice := choose_variant(case, item))
        ]
        if swaps and (request := _swap(case, order, swaps)):
            return request
    return None


def send_back(case: Case) -> Request | None:
    """Return some items of a delivered order."""
    for order in case.free_orders({"delivered"}):
        items = case.shuffled(single_items(order))
        if items:
            return _return(case, order, items[: case.rng.randint(1, 3 if case.hides() else 1)])
    return None


def either(case: Case) -> Request | None:
    """Ask for an exchange and a return in one order, which allows one of them, and prefer one."""
    for order in case.free_orders({"delivered"}) if case.hides() else ():
        items = case.shuffled(single_items(order))
        choice = choose_variant(case, items[0]) if len(items) > 1 else None
        if not choice:
            continue
        swap, returned = Swap(items[0], choice), items[1]
        exchanged = _swap(case, order, [swap])
        if exchanged is None:
            continue
        sent_back = _return(case, order, [returned])
        chosen = case.rng.choice((exchanged, sent_back))
        preferred = "exchange" if chosen is exchanged else "return"
        return Request(
            f"exchange and return in one order, of which only the {preferred} is wanted",
            exchanged.wording._replace(
                asked=f"{exchanged.wording.asked}, and also to {sent_back.wording.asked}",
                filed=f"{exchanged.wording.filed}, and also to {sent_back.wording.filed}",
            ),
            [*exchanged.reads, *sent_back.reads],
            chosen.writes,
            closing=f"if not both can be done, {{you}} want only the {preferred}",
        )
    return None


def _swap(case: Case, order: Order, swaps: Sequence[Swap]) -> Request | None:
    change = round(sum(swap.price_change for swap in swaps), 2)
    methods = case.payers(change)
    if not methods:
        return None
    is_pending = order.status == "pending"
    case.used[order.order_id] = "alter" if is_pending else "exchange"
    case.charge(methods[0], change)
    items = [swap.item for swap in swaps]
    templates = ALTER_WORDS if is_pending else EXCHANGE_WORDS
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
        word(case.rng, templates, **facts),
        [read_order(order), *read_products(items)],
        [(tool, arguments)],
        amount=abs(change),
        amount_name="the exact price difference in total",
    )


def _swap_words(case: Case, order: Order, swaps: Sequence[Swap]) -> str:
    link = "to" if order.status == "pending" else "for"
    places = [case.place(order, {swap.item.name for swap in swaps})]
    places += [" in the same order"] * (len(swaps) - 1)
    return " and also ".join(
        f"{name_item(case, order, swap.item)}{place} {link} {swap.choice.words}"
        for swap, place in zip(swaps, places, strict=True)
    )


def _return(case: Case, order: Order, items: Sequence[OrderItem]) -> Request:
    case.used[order.order_id] = "return"
    method = case.rng.choice(refund_methods(case, order))
    templates = (
        "return {items}{place}, with the refund going to {method}",
        "send back {items}{place} and get the refund to {method}",
        "return {items}{place} and have the money refunded to {method}",
    )
    facts = {
        "items": listing([name_item(case, order, item) for item in items]),
        "place": case.place(order, {item.name for item in items}),
        "method": case.name_method(method, order),
    }
    arguments = {
        "order_id": order.order_id,
        "item_ids": [item.item_id for item in items],
        "payment_method_id": method.id,
    }
    return Request(
        "return delivered items",
        word(case.rng, templates, **facts),
        [read_order(order)],
        [("return_delivered_order_items", arguments)],
        amount=round(sum(item.price for item in items), 2),
        amount_name="the exact refund for it in total",
    )


def refund_methods(case: Case, order: Order) -> list[PaymentMethod]:
    """Where a return of the order may be refunded to."""
    original = case.original_method(order)
    return [
        method
        for method in case.user.payment_methods.values()
        if method.id == original.id or isinstance(method, GiftCard)
    ]
