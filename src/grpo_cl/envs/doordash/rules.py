"""Amounts and conditions of the policy, shared by the tools and the task generator.

The tools compute amounts and reject invalid arguments; most conditions are left to the agent.
"""

from datetime import datetime, timedelta

from grpo_cl.envs.doordash.database import (
    NOW,
    TODAY,
    Customer,
    MenuItem,
    Order,
    RefundReason,
    Restaurant,
)

SERVICE_RATE, PASS_SERVICE_RATE = 0.10, 0.05
PASS_FREE_DELIVERY = 12.0
"""Subtotal from which a pass waives the delivery fee."""
CANCELLATION_RATE = 0.20
"""Share of the subtotal that is charged for cancelling after the restaurant has confirmed."""
REFUND_SHARES: dict[RefundReason, float] = {"missing": 1.0, "wrong": 1.0, "damaged": 0.5}
REFUND_WINDOW_H, PASS_REFUND_WINDOW_H = 48, 72
REFUNDS_PER_MONTH = 2
REFUND_LIMIT = 60.0
"""Refunds above this many dollars are decided by a human."""
TIP_WINDOW_H = 24
"""Hours after delivery in which a tip may still be raised."""


def cents(amount: float) -> float:
    """The amount rounded to whole cents."""
    return round(amount, 2)


def has_pass(customer: Customer) -> bool:
    """Whether the customer's pass is valid today."""
    return customer.pass_until is not None and customer.pass_until >= NOW[:10]


def unit_price(item: MenuItem, options: dict[str, str]) -> float:
    """The price of one unit of the item with these options."""
    return cents(item.price + sum(item.options[name][choice] for name, choice in options.items()))


def update_amounts(order: Order, restaurant: Restaurant, customer: Customer) -> None:
    """Set the order's subtotal, fees and total from its items and tip."""
    is_member = has_pass(customer)
    order.subtotal = cents(sum(item.unit_price * item.quantity for item in order.items))
    is_free = is_member and order.subtotal >= PASS_FREE_DELIVERY
    order.delivery_fee = 0.0 if is_free else restaurant.delivery_fee
    order.service_fee = cents(order.subtotal * (PASS_SERVICE_RATE if is_member else SERVICE_RATE))
    order.total = cents(order.subtotal + order.delivery_fee + order.service_fee + order.tip)


def cancellation_fee(order: Order) -> float:
    """The fee for cancelling the order now."""
    return 0.0 if order.status == "placed" else cents(order.subtotal * CANCELLATION_RATE)


def refund_amount(order: Order, quantities: dict[str, int], reason: RefundReason) -> float:
    """The refund for these quantities, by item id."""
    prices = {item.item_id: item.unit_price for item in order.items}
    price = sum(prices[item_id] * quantity for item_id, quantity in quantities.items())
    return cents(price * REFUND_SHARES[reason])


def is_open(restaurant: Restaurant) -> bool:
    """Whether the restaurant takes orders now."""
    hours = restaurant.hours[TODAY]
    if restaurant.is_paused or hours is None:
        return False
    # A restaurant that closes after midnight has a closing time before its opening time.
    closes_after_midnight = hours.closes < hours.opens
    return hours.opens <= NOW[11:] and (closes_after_midnight or NOW[11:] < hours.closes)


def hours_since_delivery(order: Order) -> float | None:
    """Hours since the order was delivered; None if it has not been delivered."""
    if order.delivered_at is None:
        return None
    elapsed = datetime.fromisoformat(NOW) - datetime.fromisoformat(order.delivered_at)
    return elapsed / timedelta(hours=1)


def is_in_refund_window(order: Order, customer: Customer) -> bool:
    """Whether the order was delivered recently enough for a refund."""
    hours = hours_since_delivery(order)
    window = PASS_REFUND_WINDOW_H if has_pass(customer) else REFUND_WINDOW_H
    return hours is not None and hours <= window


def refunds_left(customer: Customer) -> int:
    """The number of refunds that the customer may still get this month."""
    used = sum(entry.date[:7] == NOW[:7] for entry in customer.refund_history)
    return max(0, REFUNDS_PER_MONTH - used)
