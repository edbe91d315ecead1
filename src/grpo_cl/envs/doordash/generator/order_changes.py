"""Requests about existing orders, saved addresses and the account, allowed and forbidden."""

from collections.abc import Collection

from grpo_cl.envs.doordash.database import ZONES, Order
from grpo_cl.envs.doordash.generator.case import (
    DoordashCase,
    has_status,
    read_order,
    read_restaurant,
)
from grpo_cl.envs.doordash.rules import TIP_WINDOW_H, cancellation_fee, cents, hours_since_delivery
from grpo_cl.envs.generation.requests import Request, question
from grpo_cl.envs.generation.wording import Wording, draw_wording, format_amount

_CANCEL_TEMPLATES = ("cancel {order}", "call off {order}", "have {order} cancelled")
_ADDRESS_TEMPLATES = (
    "have {order} brought somewhere else, namely to {address}",
    "change the address of {order} to {address}",
)
_UNSUPPORTED = (
    "change the email of {your} account",
    "have the phone number of {your} account replaced",
    "add a new credit card to {your} profile",
    "end {your} pass before its last day",
    "complain that the dasher of {your} last order shouted at {you}",
    "report that the dasher of {your} last order threw the bag over the fence",
    "report that {you} had an allergic reaction to something {you} ordered",
    "report that {your} child fell ill after {your} last order",
)
_BEFORE_PICKUP = ("placed", "confirmed", "preparing")


def cancel_order(case: DoordashCase) -> Request | None:
    """Cancel an order, with the fee if one applies."""
    order = case.take_order(has_status("placed", "confirmed"))
    if order is None:
        return None
    fee = cancellation_fee(order)
    consent = " and accept the fee for that" if fee else ""
    templates = [f"{template}{consent}" for template in _CANCEL_TEMPLATES]
    return Request(
        "cancel a confirmed order" if fee else "cancel a placed order",
        draw_wording(case.rng, templates, order=case.name_order(order)),
        [read_order(order)],
        [("cancel_order", {"order_id": order.order_id})],
        questions=question("the exact amount that comes back", format_amount(order.total - fee)),
    )


def cancel_without_fee(case: DoordashCase) -> Request | None:
    """Cancel a confirmed order on the condition that there is no fee."""
    order = case.take_order(has_status("confirmed"))
    if order is None:
        return None
    templates = [f"{template}, but only if that costs nothing" for template in _CANCEL_TEMPLATES]
    wording = draw_wording(case.rng, templates, order=case.name_order(order))
    questions = question("the exact fee", format_amount(cancellation_fee(order)))
    return Request("cancel free of charge", wording, [read_order(order)], questions=questions)


def cancel_too_late(case: DoordashCase) -> Request | None:
    """Cancel an order that is being prepared or delivered."""
    order = case.take_order(has_status("preparing", "picked_up"))
    if order is None:
        return None
    wording = draw_wording(case.rng, _CANCEL_TEMPLATES, order=case.name_order(order))
    dasher = case.database.dashers[order.dasher_id or ""]
    reads = [read_order(order), ("get_dasher_status", {"order_id": order.order_id})]
    questions = question("the name of the dasher who brings it", dasher.name)
    return Request("cancel too late", wording, reads, questions=questions)


def change_address(case: DoordashCase) -> Request | None:
    """Change the address of an order before pick-up, within the delivery zones."""
    order = case.take_order(has_status(*_BEFORE_PICKUP))
    if order is None:
        return None
    restaurant = case.restaurant(order)
    new = case.draw_address(restaurant.delivers_to, except_label=order.address.label)
    if new is None:
        return None
    arguments = {"order_id": order.order_id, "address_label": new.address.label}
    return Request(
        "change the address",
        draw_wording(case.rng, _ADDRESS_TEMPLATES, order=case.name_order(order), address=new.words),
        [read_order(order), read_restaurant(restaurant)],
        [*new.writes, ("change_delivery_address", arguments)],
    )


def change_address_too_late(case: DoordashCase) -> Request | None:
    """Change the address of an order that has been picked up."""
    order = case.take_order(has_status("picked_up"))
    if order is None:
        return None
    return _forbidden_address_change(case, order, "change the address too late", zones=ZONES)


def change_address_outside_zone(case: DoordashCase) -> Request | None:
    """Change the address to one that the restaurant does not deliver to."""
    order = case.take_order(has_status(*_BEFORE_PICKUP))
    if order is None:
        return None
    zones = set(ZONES) - set(case.restaurant(order).delivers_to)
    return _forbidden_address_change(case, order, "change the address beyond the zone", zones=zones)


def _forbidden_address_change(
    case: DoordashCase, order: Order, purpose: str, *, zones: Collection[str]
) -> Request | None:
    new = case.draw_saved_address(zones, except_label=order.address.label)
    if new is None:
        return None
    wording = draw_wording(
        case.rng, _ADDRESS_TEMPLATES, order=case.name_order(order), address=new.words
    )
    return Request(purpose, wording, [read_order(order), read_restaurant(case.restaurant(order))])


def change_tip(case: DoordashCase) -> Request | None:
    """Raise a tip within the tip window, or lower it before pick-up."""
    order = case.take_order(_can_raise_tip)
    if order is None:
        return None
    can_lower = order.status in _BEFORE_PICKUP and order.tip >= 2
    amount = order.tip + case.rng.randint(1, 6)
    if can_lower and case.omits_detail():
        amount = order.tip - case.rng.randint(1, int(order.tip))
    if not case.can_pay(order.payment_id, amount - order.tip):
        return None
    case.charge(order.payment_id, amount - order.tip)
    templates = ("set the tip of {order} to {tip} dollars", "change the tip of {order} to ${tip}")
    return Request(
        "change a tip",
        draw_wording(case.rng, templates, order=case.name_order(order), tip=format_amount(amount)),
        [read_order(order)],
        [("update_tip", {"order_id": order.order_id, "tip": amount})],
        questions=question(
            "the exact new total of that order",
            format_amount(cents(order.total - order.tip + amount)),
        ),
    )


def _can_raise_tip(order: Order) -> bool:
    hours = hours_since_delivery(order)
    return order.status != "cancelled" and (hours is None or hours < TIP_WINDOW_H)


def lower_tip_too_late(case: DoordashCase) -> Request | None:
    """Lower the tip of an order that has been picked up or delivered."""
    order = case.take_order(lambda o: o.status in {"picked_up", "delivered"} and o.tip >= 2)
    if order is None:
        return None
    templates = ("lower the tip of {order} to {tip} dollars", "reduce the tip of {order} to ${tip}")
    wording = draw_wording(
        case.rng, templates, order=case.name_order(order), tip=format_amount(order.tip - 1)
    )
    return Request("lower a tip too late", wording, [read_order(order)])


def save_address(case: DoordashCase) -> Request | None:
    """Save a new address."""
    if not case.take_once("address"):
        return None
    new = case.draw_new_address(list(ZONES))
    templates = ("add {address}", "extend {your} address book by {address}")
    wording = draw_wording(case.rng, templates, address=new.words)
    return Request("save an address", wording, [], new.writes)


def cancel_order_of_other_customer(case: DoordashCase) -> Request | None:
    """Cancel an order of another customer."""
    order = case.rng.choice(case.placed_orders)
    if order.customer_id == case.customer.customer_id or not case.take_once("other customer"):
        return None
    case.needs_profile = True
    templates = (
        "cancel order number {order}, which a friend placed",
        "have order number {order} of {your} brother cancelled",
        "call off order number {order} for a neighbour",
    )
    wording = draw_wording(case.rng, templates, order=order.order_id)
    return Request("act on the order of another customer", wording, [])


def unsupported(case: DoordashCase) -> Request | None:
    """Ask for something that no tool does, which is transferred to a human."""
    template = case.rng.choice(_UNSUPPORTED)
    summary = f"The customer wants to {template.format(your='their', you='them')}."
    fallback = "if a person has to see to that, being passed on is fine"
    return Request(
        "be handed over",
        draw_wording(case.rng, [template]).then(Wording(fallback, fallback), "; "),
        [("transfer_to_human_agents", {"summary": summary})],
        has_fallback=True,
    )
