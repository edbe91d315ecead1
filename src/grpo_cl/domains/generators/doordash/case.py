"""One customer's call while it is being made up: what is taken, what is left unsaid."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, TypeVar

from grpo_cl.domains.doordash.database import (
    Address,
    Customer,
    DoordashDB,
    MenuItem,
    Order,
    PaymentMethod,
    Restaurant,
)
from grpo_cl.domains.doordash.people import make_address
from grpo_cl.domains.generators.doordash.wording import Wording

Call = tuple[str, dict[str, Any]]
T = TypeVar("T")

_NEW_LABELS = ("cabin", "office", "sister", "hotel", "workshop")
"""Nobody has saved an address under these."""


class Request(NamedTuple):
    """One thing a customer asks for, and the calls that answer it."""

    purpose: str
    wording: Wording
    """What follows 'You want to', without the full stop."""
    reads: Sequence[Call]
    writes: Sequence[Call] = ()
    """Empty where the policy forbids what is asked."""
    closing: str = ""
    """What the customer wants if not everything is possible; empty leaves it open."""
    subject: str = ""
    """What the customer may ask to be told; empty where there is nothing."""
    answer: str = ""
    """What the agent must say then."""


class Destination(NamedTuple):
    """Where something is to be brought."""

    address: Address
    words: str
    writes: Sequence[Call] = ()
    """What saves the address, if it is new."""


@dataclass(kw_only=True)
class Case:
    """A customer with orders, some of which are already spoken for."""

    customer: Customer
    orders: Sequence[Order]
    database: DoordashDB
    menus: Mapping[str, Sequence[MenuItem]]
    """What each restaurant has today."""
    strangers: Sequence[Order]
    """Placed orders of the same half, this customer's among them."""
    rng: Random
    level: float
    used: set[str] = field(default_factory=set[str])
    """Orders, and other things that are asked about once."""
    spent: dict[str, float] = field(default_factory=dict[str, float])
    """What the requests so far charge to each payment method; refunds are not counted on."""
    num_refunds: int = 0
    order_hidden: bool = False
    """Whether some order is described, so that it has to be found."""
    profile_needed: bool = False

    def hides(self) -> bool:
        """Whether the customer leaves the next detail to be looked up."""
        return self.rng.random() < self.level

    def shuffled(self, things: Iterable[T]) -> list[T]:
        """The things in a random order."""
        drawn = list(things)
        self.rng.shuffle(drawn)
        return drawn

    def take(self, fits: Callable[[Order], bool]) -> Order | None:
        """An order that fits and that nothing is asked about yet; it is spoken for now."""
        free = [order for order in self.orders if order.order_id not in self.used and fits(order)]
        if not free:
            return None
        order = self.rng.choice(free)
        self.used.add(order.order_id)
        return order

    def take_once(self, thing: str) -> bool:
        """Whether ``thing`` was not asked about before; it is now."""
        is_new = thing not in self.used
        self.used.add(thing)
        return is_new

    def restaurant(self, order: Order) -> Restaurant:
        """Who cooks the order."""
        return self.database.restaurants[order.restaurant_id]

    def menu(self, restaurant: Restaurant) -> Sequence[MenuItem]:
        """What the restaurant has today."""
        return self.menus[restaurant.restaurant_id]

    def can_pay(self, payment_id: str, amount: float) -> bool:
        """Whether the method bears the amount on top of what it is charged already."""
        balance = self.customer.payment_methods[payment_id].balance
        return balance is None or self.spent.get(payment_id, 0.0) + amount <= balance

    def charge(self, payment_id: str, amount: float) -> None:
        """Note a charge; what comes back is not counted on."""
        self.spent[payment_id] = self.spent.get(payment_id, 0.0) + max(amount, 0.0)

    def name_order(self, order: Order) -> str:
        """The order by its id, or by a restaurant no other order of the customer is from."""
        places = [other.restaurant_id for other in self.orders]
        if places.count(order.restaurant_id) == 1 and self.hides():
            self.order_hidden = True
            return f"{{your}} order from {order.restaurant_name}"
        return f"order number {order.order_id}"

    def name_method(self, method: PaymentMethod) -> str:
        """The payment method in the customer's words."""
        self.profile_needed = True
        if method.source == "card":
            return f"{{your}} {method.brand} ending in {method.last_four}"
        return "{your} gift card" if method.source == "gift_card" else "{your} PayPal account"

    def destination(self, zones: Collection[str], *, besides: str = "") -> Destination | None:
        """An address in one of the zones, saved or new, that is not labelled ``besides``."""
        if self.hides() and self.rng.random() < 0.4 and self.take_once("address"):
            return self.new_address(sorted(zones))
        return self.saved_destination(zones, besides=besides)

    def saved_destination(self, zones: Collection[str], *, besides: str = "") -> Destination | None:
        """The same with saved addresses alone."""
        saved = [
            address
            for address in self.customer.addresses.values()
            if address.zone in zones and address.label != besides
        ]
        if not saved:
            return None
        address = self.rng.choice(saved)
        return Destination(address, self._name_address(address))

    def new_address(self, zones: Sequence[str]) -> Destination:
        """An address that has to be saved first."""
        label = self.rng.choice(_NEW_LABELS)
        address = make_address(self.rng, label, self.rng.choice(zones))
        place = f"{address.street}, zip code {address.zip}"
        words = f"a new address, {place}, to be saved under the label {label}"
        self.profile_needed = True
        fields = address.model_dump(exclude={"zone"})
        save = ("add_address", {"customer_id": self.customer.customer_id, **fields})
        return Destination(address, words, [save])

    def _name_address(self, address: Address) -> str:
        self.profile_needed = True
        if self.hides():
            return f"the saved address at {address.street}"
        return f"{{your}} {address.label} address"


def having(*statuses: str) -> Callable[[Order], bool]:
    """Whether an order has one of the statuses."""
    return lambda order: order.status in statuses


def read_order(order: Order) -> Call:
    """The call that shows the order."""
    return "get_order_details", {"order_id": order.order_id}


def read_restaurant(restaurant: Restaurant) -> Call:
    """The call that shows hours, zones and the minimum."""
    return "get_restaurant_details", {"restaurant_id": restaurant.restaurant_id}


def read_menu(restaurant: Restaurant) -> Call:
    """The call that lists the items."""
    return "get_menu", {"restaurant_id": restaurant.restaurant_id}


def read_item(item_id: str) -> Call:
    """The call that shows allergens and options."""
    return "get_item_details", {"item_id": item_id}


def forbidden(
    purpose: str, wording: Wording, reads: Sequence[Call], *, tells: Mapping[str, str] | None = None
) -> Request:
    """A request that changes nothing; ``tells`` has what may be asked about it and the answer."""
    subject, answer = next(iter((tells or {}).items()), ("", ""))
    return Request(purpose, wording, reads, subject=subject, answer=answer)
