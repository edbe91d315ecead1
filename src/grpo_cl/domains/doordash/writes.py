"""The tools that change something.

They work out amounts, and refuse what makes no sense; whether a change is allowed is the agent's to
know. Everything is checked before anything is changed.
"""

from typing import Any, get_args

from grpo_cl.domains.doordash.arguments import (
    charge,
    claimed_item,
    known_allergens,
    known_tip,
    ordered,
    saved_address,
)
from grpo_cl.domains.doordash.database import (
    NOW,
    ZONES,
    Address,
    Cancellation,
    Destination,
    Order,
    OrderItem,
    Reason,
    Refund,
    RefundEntry,
)
from grpo_cl.domains.doordash.reads import (
    get_customer_details,
    get_order_details,
    get_restaurant_details,
)
from grpo_cl.domains.doordash.rules import cancellation_fee, cents, refund_amount, settle
from grpo_cl.domains.toolkit import Toolkit
from grpo_cl.errors import ToolError

_FIRST_NEW_ORDER = 90_001


def create_order(  # noqa: PLR0913  # what an order needs, as the agent gives it
    self: Toolkit,
    customer_id: str,
    restaurant_id: str,
    items: list[dict[str, Any]],
    address_label: str,
    payment_id: str,
    *,
    tip: float = 0.0,
    allergies: list[str] | None = None,
) -> Order:
    """Place an order and charge it."""
    customer = get_customer_details(self, customer_id)
    restaurant = get_restaurant_details(self, restaurant_id)
    lines = [ordered(self, restaurant, **item) for item in items]
    if not lines or len({line.item_id for line in lines}) < len(lines):
        raise ToolError("items must be a list in which every item_id stands once")
    order = Order(
        order_id=f"D{_FIRST_NEW_ORDER + sum(o >= f'D{_FIRST_NEW_ORDER}' for o in self.db.orders)}",
        customer_id=customer.customer_id,
        restaurant_id=restaurant.restaurant_id,
        restaurant_name=restaurant.name,
        status="placed",
        placed_at=NOW,
        address=saved_address(customer, address_label),
        items=sorted(lines, key=_item_id),
        allergies=known_allergens(allergies or []),
        tip=known_tip(tip),
        payment_id=payment_id,
    )
    settle(order, restaurant, customer)
    charge(customer, payment_id, order.total)
    self.db.orders[order.order_id] = order
    customer.orders.append(order.order_id)
    return order


def add_item(
    self: Toolkit, order_id: str, item_id: str, quantity: int, options: dict[str, str] | None = None
) -> Order:
    """Put another item into an order."""
    order = _open_order(self, order_id)
    if any(line.item_id == item_id for line in order.items):
        raise ToolError(f"{item_id} is in order {order_id} already; use modify_item")
    restaurant = get_restaurant_details(self, order.restaurant_id)
    line = ordered(self, restaurant, item_id, quantity, options)
    return _with_lines(self, order, [*order.items, line])


def modify_item(
    self: Toolkit, order_id: str, item_id: str, quantity: int, options: dict[str, str] | None = None
) -> Order:
    """Give an item of an order another quantity and other options."""
    order = _open_order(self, order_id)
    rest = _without(order, item_id)
    restaurant = get_restaurant_details(self, order.restaurant_id)
    return _with_lines(self, order, [*rest, ordered(self, restaurant, item_id, quantity, options)])


def remove_item(self: Toolkit, order_id: str, item_id: str) -> Order:
    """Take an item out of an order."""
    order = _open_order(self, order_id)
    rest = _without(order, item_id)
    if not rest:
        raise ToolError(f"{item_id} is all there is in order {order_id}; use cancel_order")
    return _with_lines(self, order, rest)


def cancel_order(self: Toolkit, order_id: str) -> Order:
    """Cancel an order and give back what the fee leaves."""
    order = _open_order(self, order_id)
    fee = cancellation_fee(order)
    refunded = cents(order.total - fee)
    customer = get_customer_details(self, order.customer_id)
    charge(customer, order.payment_id, -refunded)
    order.status = "cancelled"
    order.cancellation = Cancellation(fee=fee, refunded=refunded)
    if order.dasher_id is not None:
        dasher = self.db.dashers[order.dasher_id]
        dasher.order_id = dasher.minutes_away = order.dasher_id = None
    return order


def request_refund(
    self: Toolkit,
    order_id: str,
    items: list[dict[str, Any]],
    reason: Reason,
    destination: Destination,
) -> Order:
    """Give back the share of the items' prices that the reason is worth."""
    order = get_order_details(self, order_id)
    if order.status != "delivered":
        raise ToolError(f"order {order_id} is {order.status}; only a delivered one is refunded")
    if order.refund is not None:
        raise ToolError(f"order {order_id} was refunded already; see its refund")
    if reason not in get_args(Reason) or destination not in get_args(Destination):
        known = (*get_args(Reason), *get_args(Destination))
        raise ToolError(f"reason {reason}, destination {destination}: known are {', '.join(known)}")
    claimed = [claimed_item(order, **item) for item in items]
    quantities = {item.item_id: item.quantity for item in claimed}
    if not claimed or len(quantities) < len(claimed):
        raise ToolError("items must be a list in which every item_id stands once")
    amount = refund_amount(order, quantities, reason)
    customer = get_customer_details(self, order.customer_id)
    if destination == "credits":
        customer.credits = cents(customer.credits + amount)
    else:
        charge(customer, order.payment_id, -amount)
    order.refund = Refund(
        items=sorted(claimed, key=lambda item: item.item_id),
        reason=reason,
        amount=amount,
        destination=destination,
        issued_at=NOW,
    )
    entry = RefundEntry(order_id=order_id, date=NOW[:10], amount=amount)
    history = [*customer.refund_history, entry]
    # Sorted, so that it does not matter which of two refunds was asked for first.
    customer.refund_history = sorted(history, key=lambda line: (line.date, line.order_id))
    return order


def change_delivery_address(self: Toolkit, order_id: str, address_label: str) -> Order:
    """Send an order to another saved address."""
    order = _open_order(self, order_id)
    order.address = saved_address(get_customer_details(self, order.customer_id), address_label)
    return order


def add_address(self: Toolkit, customer_id: str, label: str, street: str, zip: str) -> Address:
    """Save an address."""
    customer = get_customer_details(self, customer_id)
    zone = next((zone for zone, code in ZONES.items() if code == zip), None)
    if zone is None:
        raise ToolError(
            f"zip code {zip} is in no delivery zone; known: {', '.join(ZONES.values())}"
        )
    key = label.strip().lower()
    address = Address(label=key, street=street.strip(), zip=zip, zone=zone)
    if not key or not address.street:
        raise ToolError("an address needs a label and a street")
    customer.addresses[key] = address
    return address


def update_tip(self: Toolkit, order_id: str, tip: float) -> Order:
    """Give an order another tip."""
    order = get_order_details(self, order_id)
    if order.status == "cancelled":
        raise ToolError(f"order {order_id} is cancelled; it has nobody to tip")
    amount = known_tip(tip)
    customer = get_customer_details(self, order.customer_id)
    charge(customer, order.payment_id, cents(amount - order.tip))
    order.total = cents(order.total - order.tip + amount)
    order.tip = amount
    return order


WRITES = (
    create_order,
    add_item,
    modify_item,
    remove_item,
    cancel_order,
    request_refund,
    change_delivery_address,
    add_address,
    update_tip,
)


def _open_order(self: Toolkit, order_id: str) -> Order:
    order = get_order_details(self, order_id)
    if order.status in {"delivered", "cancelled"}:
        raise ToolError(f"order {order_id} is {order.status} and cannot be changed")
    return order


def _item_id(line: OrderItem) -> str:
    return line.item_id


def _without(order: Order, item_id: str) -> list[OrderItem]:
    rest = [line for line in order.items if line.item_id != item_id]
    if len(rest) == len(order.items):
        raise ToolError(f"{item_id} is not in order {order.order_id}; get_order_details shows it")
    return rest


def _with_lines(self: Toolkit, order: Order, lines: list[OrderItem]) -> Order:
    customer = get_customer_details(self, order.customer_id)
    changed = order.model_copy(update={"items": sorted(lines, key=_item_id)})
    settle(changed, get_restaurant_details(self, order.restaurant_id), customer)
    charge(customer, order.payment_id, cents(changed.total - order.total))
    self.db.orders[order.order_id] = changed
    return changed
