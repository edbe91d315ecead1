"""What the writing tools are given, checked before anything is changed."""

from grpo_cl.domains.doordash.database import (
    ALLERGENS,
    Address,
    Customer,
    MenuItem,
    Order,
    OrderItem,
    RefundedItem,
    Restaurant,
)
from grpo_cl.domains.doordash.reads import get_item_details
from grpo_cl.domains.doordash.rules import cents, unit_price
from grpo_cl.domains.toolkit import Toolkit
from grpo_cl.errors import ToolError

MOST_OF_AN_ITEM = 20
LARGEST_TIP = 100


def ordered(
    self: Toolkit,
    restaurant: Restaurant,
    item_id: str,
    quantity: int,
    options: dict[str, str] | None = None,
) -> OrderItem:
    """A line of an order; the item must be on the menu and every option chosen."""
    item = get_item_details(self, item_id)
    if item.restaurant_id != restaurant.restaurant_id or not item.is_available:
        raise ToolError(f"{restaurant.name} does not have {item_id} today; get_menu lists what is")
    chosen = _chosen(item, options or {})
    return OrderItem(
        item_id=item_id,
        name=item.name,
        options=chosen,
        quantity=_count(quantity, MOST_OF_AN_ITEM),
        unit_price=unit_price(item, chosen),
    )


def _chosen(item: MenuItem, options: dict[str, str]) -> dict[str, str]:
    is_complete = options.keys() == item.options.keys()
    if not is_complete or any(options[name] not in item.options[name] for name in options):
        wanted = {name: list(choices) for name, choices in item.options.items()}
        raise ToolError(f"{item.name} needs one choice for each of {wanted}, not {options}")
    return {name: options[name] for name in item.options}


def _count(quantity: int, most: int) -> int:
    is_whole = not isinstance(quantity, bool) and quantity == int(quantity)
    if not is_whole or not 1 <= quantity <= most:
        raise ToolError(f"quantity {quantity} is not a whole number from 1 to {most}")
    return int(quantity)


def claimed_item(order: Order, item_id: str, quantity: int) -> RefundedItem:
    """A part of a refund; no more can be claimed than was ordered."""
    for line in order.items:
        if line.item_id == item_id:
            return RefundedItem(item_id=item_id, quantity=_count(quantity, line.quantity))
    raise ToolError(f"{item_id} is not in order {order.order_id}; get_order_details shows it")


def saved_address(customer: Customer, label: str) -> Address:
    """A copy of the address the customer calls ``label``."""
    if label not in customer.addresses:
        known = ", ".join(customer.addresses)
        raise ToolError(f"no address {label!r}; saved are {known}, add_address saves another")
    return customer.addresses[label].model_copy()


def known_allergens(allergies: list[str]) -> list[str]:
    """The allergens by their names, each once, in order."""
    named = {allergen.strip().lower().replace("_", " ") for allergen in allergies}
    if unknown := named - set(ALLERGENS):
        raise ToolError(f"unknown allergens {sorted(unknown)}; known: {', '.join(ALLERGENS)}")
    return sorted(named)


def known_tip(tip: float) -> float:
    """A tip within reason."""
    if isinstance(tip, bool) or not 0 <= tip <= LARGEST_TIP:
        raise ToolError(f"tip {tip} is not an amount from 0 to {LARGEST_TIP} dollars")
    return cents(float(tip))


def charge(customer: Customer, payment_id: str, amount: float) -> None:
    """Take ``amount`` from a payment method; a negative one is given back."""
    if payment_id not in customer.payment_methods:
        known = ", ".join(customer.payment_methods)
        raise ToolError(f"no payment method {payment_id}; saved are {known}")
    method = customer.payment_methods[payment_id]
    if method.balance is None:
        return
    if amount > method.balance:
        raise ToolError(f"gift card {payment_id} holds {method.balance}, needed is {amount}")
    method.balance = cents(method.balance - amount)
