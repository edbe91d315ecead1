"""Tools that change the database.

They compute amounts and reject invalid arguments; whether the policy allows a change is left to the
agent. All arguments are checked before any record is changed.
"""

from typing import Any, get_args

from grpo_cl.envs.doordash.arguments import (
    charge,
    check_allergens,
    check_tip,
    claimed_item,
    find_saved_address,
    ordered,
)
from grpo_cl.envs.doordash.database import (
    NOW,
    ZONES,
    Address,
    Cancellation,
    Order,
    OrderItem,
    Refund,
    RefundDestination,
    RefundEntry,
    RefundReason,
)
from grpo_cl.envs.doordash.read_tools import (
    get_customer_details,
    get_order_details,
    get_restaurant_details,
)
from grpo_cl.envs.doordash.rules import cancellation_fee, cents, refund_amount, update_amounts
from grpo_cl.envs.toolkit import Toolkit
from grpo_cl.errors import ToolError

_FIRST_NEW_ORDER = 90_001


def create_order(  # noqa: PLR0913  # the arguments of the tool
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
        address=find_saved_address(customer, address_label),
        items=sorted(lines, key=_item_id),
        allergies=check_allergens(allergies or []),
        tip=check_tip(tip),
        payment_id=payment_id,
    )
    update_amounts(order, restaurant, customer)
    charge(customer, payment_id, order.total)
    self.db.orders[order.order_id] = order
    customer.orders.append(order.order_id)
    return order


def add_item(
    self: Toolkit, order_id: str, item_id: str, quantity: int, options: dict[str, str] | None = None
) -> Order:
    """Add an item to an order."""
    order = _changeable_order(self, order_id)
    if any(line.item_id == item_id for line in order.items):
        raise ToolError(f"{item_id} is in order {order_id} already; use modify_item")
    restaurant = get_restaurant_details(self, order.restaurant_id)
    line = ordered(self, restaurant, item_id, quantity, options)
    return _replace_lines(self, order, [*order.items, line])


def modify_item(
    self: Toolkit, order_id: str, item_id: str, quantity: int, options: dict[str, str] | None = None
) -> Order:
    """Replace quantity and options of an item of an order."""
    order = _changeable_order(self, order_id)
    remaining = _lines_without(order, item_id)
    restaurant = get_restaurant_details(self, order.restaurant_id)
    return _replace_lines(
        self, order, [*remaining, ordered(self, restaurant, item_id, quantity, options)]
    )


def remove_item(self: Toolkit, order_id: str, item_id: str) -> Order:
    """Remove an item from an order."""
    order = _changeable_order(self, order_id)
    remaining = _lines_without(order, item_id)
    if not remaining:
        raise ToolError(f"{item_id} is all there is in order {order_id}; use cancel_order")
    return _replace_lines(self, order, remaining)


def cancel_order(self: Toolkit, order_id: str) -> Order:
    """Cancel an order and refund its total less the fee."""
    order = _changeable_order(self, order_id)
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
    reason: RefundReason,
    destination: RefundDestination,
) -> Order:
    """Refund the share of the items' prices that applies to the reason."""
    order = get_order_details(self, order_id)
    if order.status != "delivered":
        raise ToolError(f"order {order_id} is {order.status}; only a delivered one is refunded")
    if order.refund is not None:
        raise ToolError(f"order {order_id} was refunded already; see its refund")
    if reason not in get_args(RefundReason) or destination not in get_args(RefundDestination):
        allowed = (*get_args(RefundReason), *get_args(RefundDestination))
        raise ToolError(
            f"reason {reason}, destination {destination}: known are {', '.join(allowed)}"
        )
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
    # Sorted, so that the final state does not depend on the order of two refunds.
    customer.refund_history = sorted(history, key=lambda entry: (entry.date, entry.order_id))
    return order


def change_delivery_address(self: Toolkit, order_id: str, address_label: str) -> Order:
    """Change the delivery address of an order to another saved address."""
    order = _changeable_order(self, order_id)
    order.address = find_saved_address(get_customer_details(self, order.customer_id), address_label)
    return order


def add_address(self: Toolkit, customer_id: str, label: str, street: str, zip: str) -> Address:
    """Save an address in the customer's profile."""
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
    """Set the tip of an order and charge or refund the difference."""
    order = get_order_details(self, order_id)
    if order.status == "cancelled":
        raise ToolError(f"order {order_id} is cancelled; it has nobody to tip")
    amount = check_tip(tip)
    customer = get_customer_details(self, order.customer_id)
    charge(customer, order.payment_id, cents(amount - order.tip))
    order.total = cents(order.total - order.tip + amount)
    order.tip = amount
    return order


WRITE_TOOLS = (
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


def _changeable_order(self: Toolkit, order_id: str) -> Order:
    order = get_order_details(self, order_id)
    if order.status in {"delivered", "cancelled"}:
        raise ToolError(f"order {order_id} is {order.status} and cannot be changed")
    return order


def _item_id(line: OrderItem) -> str:
    return line.item_id


def _lines_without(order: Order, item_id: str) -> list[OrderItem]:
    remaining = [line for line in order.items if line.item_id != item_id]
    if len(remaining) == len(order.items):
        raise ToolError(f"{item_id} is not in order {order.order_id}; get_order_details shows it")
    return remaining


def _replace_lines(self: Toolkit, order: Order, lines: list[OrderItem]) -> Order:
    customer = get_customer_details(self, order.customer_id)
    updated = order.model_copy(update={"items": sorted(lines, key=_item_id)})
    update_amounts(updated, get_restaurant_details(self, order.restaurant_id), customer)
    charge(customer, order.payment_id, cents(updated.total - order.total))
    self.db.orders[order.order_id] = updated
    return updated
