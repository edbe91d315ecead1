"""The policy's numbers and conditions, for the tools that apply them and the tasks that test them.

The tools work out money and refuse what makes no sense; most conditions are for the agent to check.
"""

from datetime import datetime, timedelta

from grpo_cl.domains.doordash.database import (
    NOW,
    TODAY,
    Customer,
    MenuItem,
    Order,
    Reason,
    Restaurant,
)

SERVICE_RATE, PASS_SERVICE_RATE = 0.10, 0.05
PASS_FREE_DELIVERY = 12.0
"""Subtotal from which a pass waives the delivery fee."""
CANCELLATION_RATE = 0.20
"""Share of the subtotal that is kept once a restaurant has confirmed."""
REFUND_SHARES: dict[Reason, float] = {"missing": 1.0, "wrong": 1.0, "damaged": 0.5}
REFUND_WINDOW_H, PASS_REFUND_WINDOW_H = 48, 72
REFUNDS_PER_MONTH = 2
REFUND_LIMIT = 60.0
"""Dollars above which a person decides."""
TIP_WINDOW_H = 24
"""Hours after delivery in which a tip may still be raised."""


def cents(amount: float) -> float:
    """An amount of money without the noise of arithmetic."""
    return round(amount, 2)


def has_pass(customer: Customer) -> bool:
    """Whether the customer's pass is valid today."""
    return customer.pass_until is not None and customer.pass_until >= NOW[:10]


def unit_price(item: MenuItem, options: dict[str, str]) -> float:
    """What one of the item costs with these choices."""
    return cents(item.price + sum(item.options[name][pick] for name, pick in options.items()))


def settle(order: Order, restaurant: Restaurant, customer: Customer) -> None:
    """Work out the order's amounts from its items and tip."""
    member = has_pass(customer)
    order.subtotal = cents(sum(item.unit_price * item.quantity for item in order.items))
    is_free = member and order.subtotal >= PASS_FREE_DELIVERY
    order.delivery_fee = 0.0 if is_free else restaurant.delivery_fee
    order.service_fee = cents(order.subtotal * (PASS_SERVICE_RATE if member else SERVICE_RATE))
    order.total = cents(order.subtotal + order.delivery_fee + order.service_fee + order.tip)


def cancellation_fee(order: Order) -> float:
    """What is kept if the order is cancelled now."""
    return 0.0 if order.status == "placed" else cents(order.subtotal * CANCELLATION_RATE)


def refund_amount(order: Order, quantities: dict[str, int], reason: Reason) -> float:
    """What is given back for so many of each item."""
    prices = {item.item_id: item.unit_price for item in order.items}
    price = sum(prices[item_id] * quantity for item_id, quantity in quantities.items())
    return cents(price * REFUND_SHARES[reason])


def is_open(restaurant: Restaurant) -> bool:
    """Whether the restaurant takes orders now."""
    hours = restaurant.hours[TODAY]
    if restaurant.is_paused or hours is None:
        return False
    # A place that closes after midnight has a closing time before its opening time.
    is_late = hours.closes < hours.opens
    return hours.opens <= NOW[11:] and (is_late or NOW[11:] < hours.closes)


def hours_since_delivery(order: Order) -> float | None:
    """How long ago the order came; None if it has not."""
    if order.delivered_at is None:
        return None
    passed = datetime.fromisoformat(NOW) - datetime.fromisoformat(order.delivered_at)
    return passed / timedelta(hours=1)


def is_in_refund_window(order: Order, customer: Customer) -> bool:
    """Whether a refund of the order may still be asked for."""
    passed = hours_since_delivery(order)
    window = PASS_REFUND_WINDOW_H if has_pass(customer) else REFUND_WINDOW_H
    return passed is not None and passed <= window


def refunds_left(customer: Customer) -> int:
    """How many more refunds the customer may get this month."""
    used = sum(entry.date[:7] == NOW[:7] for entry in customer.refund_history)
    return max(0, REFUNDS_PER_MONTH - used)
