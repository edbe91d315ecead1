"""State of a doordash customer's call under construction, and how the customer names records."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from grpo_cl.envs.doordash.database import (
    Address,
    Customer,
    DoordashDB,
    MenuItem,
    Order,
    PaymentMethod,
    Restaurant,
)
from grpo_cl.envs.doordash.people import make_address
from grpo_cl.envs.generation.requests import Call, Case

_NEW_LABELS = ("cabin", "office", "sister", "hotel", "workshop")
"""Labels that no saved address has."""


class NamedAddress(NamedTuple):
    """A delivery address and the customer's words for it."""

    address: Address
    words: str
    writes: Sequence[Call] = ()
    """The call that saves the address, if it is new."""


@dataclass(kw_only=True)
class DoordashCase(Case):
    """A customer with orders, some of which a request already uses."""

    customer: Customer
    orders: Sequence[Order]
    database: DoordashDB
    menus: Mapping[str, Sequence[MenuItem]]
    """Available items by restaurant id."""
    placed_orders: Sequence[Order]
    """Placed orders of all customers of the split."""
    used: set[str] = field(default_factory=set[str])
    """Ids of orders and names of other subjects that a request uses."""
    spent: dict[str, float] = field(default_factory=dict[str, float])
    """Charges of the requests to each payment method, without refunds."""
    num_refunds: int = 0
    has_described_order: bool = False
    """Whether an order is named by its restaurant, so that the agent has to find it."""
    needs_profile: bool = False

    def take_order(self, fits: Callable[[Order], bool]) -> Order | None:
        """An unused order that fits, which is then marked as used; None if there is none."""
        unused = [o for o in self.orders if o.order_id not in self.used and fits(o)]
        if not unused:
            return None
        order = self.rng.choice(unused)
        self.used.add(order.order_id)
        return order

    def take_once(self, subject: str) -> bool:
        """Whether ``subject`` was unused; it is then marked as used."""
        is_new = subject not in self.used
        self.used.add(subject)
        return is_new

    def restaurant(self, order: Order) -> Restaurant:
        """The restaurant of the order."""
        return self.database.restaurants[order.restaurant_id]

    def menu(self, restaurant: Restaurant) -> Sequence[MenuItem]:
        """The available items of the restaurant."""
        return self.menus[restaurant.restaurant_id]

    def can_pay(self, payment_id: str, amount: float) -> bool:
        """Whether the method covers the amount in addition to its charges so far."""
        balance = self.customer.payment_methods[payment_id].balance
        return balance is None or self.spent.get(payment_id, 0.0) + amount <= balance

    def charge(self, payment_id: str, amount: float) -> None:
        """Record a charge; refunds are not counted."""
        self.spent[payment_id] = self.spent.get(payment_id, 0.0) + max(amount, 0.0)

    def name_order(self, order: Order) -> str:
        """The order by its id, or by its restaurant if no other order is from there."""
        restaurant_ids = [other.restaurant_id for other in self.orders]
        if restaurant_ids.count(order.restaurant_id) == 1 and self.omits_detail():
            self.has_described_order = True
            return f"{{your}} order from {order.restaurant_name}"
        return f"order number {order.order_id}"

    def name_method(self, method: PaymentMethod) -> str:
        """The payment method in the customer's words."""
        self.needs_profile = True
        if method.source == "card":
            return f"{{your}} {method.brand} ending in {method.last_four}"
        return "{your} gift card" if method.source == "gift_card" else "{your} PayPal account"

    def draw_address(
        self, zones: Collection[str], *, except_label: str = ""
    ) -> NamedAddress | None:
        """A saved or new address in one of the zones, whose label is not ``except_label``."""
        if self.omits_detail() and self.rng.random() < 0.4 and self.take_once("address"):
            return self.draw_new_address(sorted(zones))
        return self.draw_saved_address(zones, except_label=except_label)

    def draw_saved_address(
        self, zones: Collection[str], *, except_label: str = ""
    ) -> NamedAddress | None:
        """A saved address in one of the zones, whose label is not ``except_label``."""
        saved = [
            address
            for address in self.customer.addresses.values()
            if address.zone in zones and address.label != except_label
        ]
        if not saved:
            return None
        address = self.rng.choice(saved)
        return NamedAddress(address, self._name_address(address))

    def draw_new_address(self, zones: Sequence[str]) -> NamedAddress:
        """A new address in one of the zones, which the agent has to save first."""
        label = self.rng.choice(_NEW_LABELS)
        address = make_address(self.rng, label, self.rng.choice(zones))
        location = f"{address.street}, zip code {address.zip}"
        words = f"a new address, {location}, to be saved under the label {label}"
        self.needs_profile = True
        fields = address.model_dump(exclude={"zone"})
        write = ("add_address", {"customer_id": self.customer.customer_id, **fields})
        return NamedAddress(address, words, [write])

    def _name_address(self, address: Address) -> str:
        self.needs_profile = True
        if self.omits_detail():
            return f"the saved address at {address.street}"
        return f"{{your}} {address.label} address"


def has_status(*statuses: str) -> Callable[[Order], bool]:
    """A predicate: whether an order has one of the statuses."""
    return lambda order: order.status in statuses


def read_order(order: Order) -> Call:
    """The call that reads the order."""
    return "get_order_details", {"order_id": order.order_id}


def read_restaurant(restaurant: Restaurant) -> Call:
    """The call that reads hours, zones and the minimum order."""
    return "get_restaurant_details", {"restaurant_id": restaurant.restaurant_id}


def read_menu(restaurant: Restaurant) -> Call:
    """The call that reads the menu."""
    return "get_menu", {"restaurant_id": restaurant.restaurant_id}


def read_item(item_id: str) -> Call:
    """The call that reads allergens and options."""
    return "get_item_details", {"item_id": item_id}
