"""Checks of the write tools' arguments.

The names of this module and of ``ordered`` and ``claimed_item`` are part of error texts that agents
read when an item has unknown or missing keys, so renaming them changes episodes.
"""

from grpo_cl.envs.doordash.database import (
    ALLERGENS,
    Address,
    Customer,
    MenuItem,
    Order,
    OrderItem,
    RefundedItem,
    Restaurant,
)
from grpo_cl.envs.doordash.read_tools import get_item_details
from grpo_cl.envs.doordash.rules import cents, unit_price
from grpo_cl.envs.toolkit import Toolkit
from grpo_cl.errors import ToolError

MAX_QUANTITY = 20
MAX_TIP = 100


def ordered(
    self: Toolkit,
    restaurant: Restaurant,
    item_id: str,
    quantity: int,
    options: dict[str, str] | None = None,
) -> OrderItem:
    """An order line; the item must be on the menu and every option must have a choice."""
    item = get_item_details(self, item_id)
    if item.restaurant_id != restaurant.restaurant_id or not item.is_available:
        raise ToolError(f"{restaurant.name} does not have {item_id} today; get_menu lists what is")
    choices = _check_options(item, options or {})
    return OrderItem(
        item_id=item_id,
        name=item.name,
        options=choices,
        quantity=_check_quantity(quantity, MAX_QUANTITY),
        unit_price=unit_price(item, choices),
    )


def _check_options(item: MenuItem, options: dict[str, str]) -> dict[str, str]:
    is_complete = options.keys() == item.options.keys()
    if not is_complete or any(options[name] not in item.options[name] for name in options):
        required = {name: list(choices) for name, choices in item.options.items()}
        raise ToolError(f"{item.name} needs one choice for each of {required}, not {options}")
    return {name: options[name] for name in item.options}


def _check_quantity(quantity: int, maximum: int) -> int:
    is_whole = not isinstance(quantity, bool) and quantity == int(quantity)
    if not is_whole or not 1 <= quantity <= maximum:
        raise ToolError(f"quantity {quantity} is not a whole number from 1 to {maximum}")
    return int(quantity)


def claimed_item(order: Order, item_id: str, quantity: int) -> RefundedItem:
    """An item to refund; its quantity is at maximum the ordered quantity."""
    for line in order.items:
        if line.item_id == item_id:
            return RefundedItem(item_id=item_id, quantity=_check_quantity(quantity, line.quantity))
    raise ToolError(f"{item_id} is not in order {order.order_id}; get_order_details shows it")


def find_saved_address(customer: Customer, label: str) -> Address:
    """A copy of the customer's saved address with this label."""
    if label not in customer.addresses:
        labels = ", ".join(customer.addresses)
        raise ToolError(f"no address {label!r}; saved are {labels}, add_address saves another")
    return customer.addresses[label].model_copy()


def check_allergens(allergies: list[str]) -> list[str]:
    """The allergens in normalised spelling, sorted and without duplicates."""
    normalised = {allergen.strip().lower().replace("_", " ") for allergen in allergies}
    if unknown := normalised - set(ALLERGENS):
        raise ToolError(f"unknown allergens {sorted(unknown)}; known: {', '.join(ALLERGENS)}")
    return sorted(normalised)


def check_tip(tip: float) -> float:
    """The tip in whole cents; it must be between 0 and ``MAX_TIP`` dollars."""
    if isinstance(tip, bool) or not 0 <= tip <= MAX_TIP:
        raise ToolError(f"tip {tip} is not an amount from 0 to {MAX_TIP} dollars")
    return cents(float(tip))


def charge(customer: Customer, payment_id: str, amount: float) -> None:
    """Deduct ``amount`` from a gift card's balance; a negative amount is a refund."""
    if payment_id not in customer.payment_methods:
        payment_ids = ", ".join(customer.payment_methods)
        raise ToolError(f"no payment method {payment_id}; saved are {payment_ids}")
    method = customer.payment_methods[payment_id]
    if method.balance is None:
        return
    if amount > method.balance:
        raise ToolError(f"gift card {payment_id} holds {method.balance}, needed is {amount}")
    method.balance = cents(method.balance - amount)
