"""Requests about whole orders under way and the address book, allowed and forbidden."""

from collections.abc import Collection

from grpo_cl.domains.doordash.database import ZONES, Order
from grpo_cl.domains.doordash.rules import (
    TIP_WINDOW_H,
    cancellation_fee,
    cents,
    hours_since_delivery,
)
from grpo_cl.domains.generators.doordash.case import (
    Case,
    Request,
    forbidden,
    having,
    read_order,
    read_restaurant,
)
from grpo_cl.domains.generators.doordash.wording import number, word

_CANCEL_WORDS = ("cancel {order}", "call off {order}", "have {order} cancelled")
_REDIRECT_WORDS = (
    "have {order} brought somewhere else, namely to {address}",
    "change the address of {order} to {address}",
)
_BEFORE_PICKUP = ("placed", "confirmed", "preparing")


def cancel(case: Case) -> Request | None:
    """Cancel an order, with its fee if there is one."""
    order = case.take(having("placed", "confirmed"))
    if order is None:
        return None
    fee = cancellation_fee(order)
    accepts = " and accept the fee for that" if fee else ""
    templates = [f"{template}{accepts}" for template in _CANCEL_WORDS]
    return Request(
        "cancel a confirmed order" if fee else "cancel a placed order",
        word(case.rng, templates, order=case.name_order(order)),
        [read_order(order)],
        [("cancel_order", {"order_id": order.order_id})],
        subject="the exact amount that comes back",
        answer=number(order.total - fee),
    )


def cancel_free(case: Case) -> Request | None:
    """Cancel a confirmed order, but not for a fee."""
    order = case.take(having("confirmed"))
    if order is None:
        return None
    templates = [f"{template}, but only if that costs nothing" for template in _CANCEL_WORDS]
    wording = word(case.rng, templates, order=case.name_order(order))
    tells = {"the exact fee": number(cancellation_fee(order))}
    return forbidden("cancel free of charge", wording, [read_order(order)], tells=tells)


def cancel_late(case: Case) -> Request | None:
    """Cancel an order that is being made or brought."""
    order = case.take(having("preparing", "picked_up"))
    if order is None:
        return None
    wording = word(case.rng, _CANCEL_WORDS, order=case.name_order(order))
    dasher = case.database.dashers[order.dasher_id or ""]
    reads = [read_order(order), ("get_dasher_status", {"order_id": order.order_id})]
    tells = {"the name of the dasher who brings it": dasher.name}
    return forbidden("cancel too late", wording, reads, tells=tells)


def redirect(case: Case) -> Request | None:
    """Send an order that is not under way yet to another address in reach."""
    order = case.take(having(*_BEFORE_PICKUP))
    if order is None:
        return None
    restaurant = case.restaurant(order)
    there = case.destination(restaurant.delivers_to, besides=order.address.label)
    if there is None:
        return None
    arguments = {"order_id": order.order_id, "address_label": there.address.label}
    return Request(
        "change the address",
        word(case.rng, _REDIRECT_WORDS, order=case.name_order(order), address=there.words),
        [read_order(order), read_restaurant(restaurant)],
        [*there.writes, ("change_delivery_address", arguments)],
    )


def redirect_late(case: Case) -> Request | None:
    """Change the address of an order that has been picked up."""
    order = case.take(having("picked_up"))
    if order is None:
        return None
    return _lost(case, order, "change the address too late", zones=ZONES)


def redirect_far(case: Case) -> Request | None:
    """Change the address to one that the restaurant does not deliver to."""
    order = case.take(having(*_BEFORE_PICKUP))
    if order is None:
        return None
    zones = set(ZONES) - set(case.restaurant(order).delivers_to)
    return _lost(case, order, "change the address beyond the zone", zones=zones)


def _lost(case: Case, order: Order, purpose: str, *, zones: Collection[str]) -> Request | None:
    there = case.saved_destination(zones, besides=order.address.label)
    if there is None:
        return None
    wording = word(case.rng, _REDIRECT_WORDS, order=case.name_order(order), address=there.words)
    return forbidden(purpose, wording, [read_order(order), read_restaurant(case.restaurant(order))])


def tip(case: Case) -> Request | None:
    """Raise a tip in time, or lower it before pick-up."""
    order = case.take(_may_be_tipped)
    if order is None:
        return None
    can_lower = order.status in _BEFORE_PICKUP and order.tip >= 2
    amount = order.tip + case.rng.randint(1, 6)
    if can_lower and case.hides():
        amount = order.tip - case.rng.randint(1, int(order.tip))
    if not case.can_pay(order.payment_id, amount - order.tip):
        return None
    case.charge(order.payment_id, amount - order.tip)
    templates = ("set the tip of {order} to {tip} dollars", "change the tip of {order} to ${tip}")
    return Request(
        "change a tip",
        word(case.rng, templates, order=case.name_order(order), tip=number(amount)),
        [read_order(order)],
        [("update_tip", {"order_id": order.order_id, "tip": amount})],
        subject="the exact new total of that order",
        answer=number(cents(order.total - order.tip + amount)),
    )


def _may_be_tipped(order: Order) -> bool:
    passed = hours_since_delivery(order)
    return order.status != "cancelled" and (passed is None or passed < TIP_WINDOW_H)


def tip_back(case: Case) -> Request | None:
    """Lower the tip of an order that has been picked up or delivered."""
    order = case.take(lambda o: o.status in {"picked_up", "delivered"} and o.tip >= 2)
    if order is None:
        return None
    templates = ("lower the tip of {order} to {tip} dollars", "reduce the tip of {order} to ${tip}")
    wording = word(case.rng, templates, order=case.name_order(order), tip=number(order.tip - 1))
    return forbidden("lower a tip too late", wording, [read_order(order)])


def move(case: Case) -> Request | None:
    """Save another address."""
    if not case.take_once("address"):
        return None
    there = case.new_address(list(ZONES))
    templates = ("add {address}", "extend {your} address book by {address}")
    wording = word(case.rng, templates, address=there.words)
    return Request("save an address", wording, [], there.writes)
