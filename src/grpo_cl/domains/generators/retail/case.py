"""One retail customer's call while it is being made up: what is taken, what is left unsaid."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any, NamedTuple, TypeVar

from inspect_evals.tau2.retail.data_model import (
    CreditCard,
    GiftCard,
    Order,
    PaymentMethod,
    Product,
    User,
    UserAddress,
)

from grpo_cl.domains.generators.retail.wording import Wording, listing

Call = tuple[str, dict[str, Any]]
T = TypeVar("T")

_STREETS = (
    "Alder Court", "Birch Lane", "Cedar Street", "Dogwood Drive", "Elm Avenue", "Fern Road",
    "Grove Street", "Harbor Way", "Ivy Lane", "Juniper Drive", "Kestrel Court", "Linden Avenue",
    "Meadow Road", "North Street", "Orchard Way", "Prairie Lane", "Quarry Road", "Ridge Avenue",
)  # fmt: skip
_UNITS = ("Apt", "Suite", "Unit", "Floor")
_CITIES = (
    ("Atlanta", "GA", 30301), ("Buffalo", "NY", 14201), ("Chicago", "IL", 60601),
    ("Denver", "CO", 80201), ("Houston", "TX", 77001), ("Madison", "WI", 53701),
    ("Memphis", "TN", 38101), ("Nashville", "TN", 37201), ("Omaha", "NE", 68101),
    ("Phoenix", "AZ", 85001), ("Portland", "OR", 97201), ("Raleigh", "NC", 27601),
    ("Sacramento", "CA", 94203), ("Seattle", "WA", 98101), ("Tucson", "AZ", 85701),
)  # fmt: skip


class Request(NamedTuple):
    """One thing a customer asks for, and the calls that answer it."""

    purpose: str
    wording: Wording
    """What follows 'You want to', without the full stop."""
    reads: Sequence[Call]
    writes: Sequence[Call] = ()
    """Empty where the rules forbid what is asked."""
    closing: str = ""
    """What the customer wants if not everything is possible; empty leaves it open."""
    amount: float = 0.0
    """The money the request moves; zero where there is nothing to ask about."""
    amount_name: str = ""


@dataclass(kw_only=True)
class Case:
    """A customer with orders, some of which are already spoken for."""

    user: User
    orders: Sequence[Order]
    products: dict[str, Product]
    strangers: Sequence[Order]
    """Pending orders of customers in the same half, this one's among them."""
    rng: Random
    level: float
    used: dict[str, str] = field(default_factory=dict[str, str])
    """What each order has been used for."""
    spent: float = 0.0
    """What the requests so far charge to the gift card; refunds to it are not counted on."""
    gift_touched: bool = False
    new_address: dict[str, str] | None = None
    """The address spelled out last."""
    address_looked_up: bool = False
    order_hidden: bool = False
    """Whether some order is described by its contents, so that it has to be found."""
    profile_needed: bool = False

    def hides(self) -> bool:
        """Whether the customer leaves the next detail to be looked up."""
        return self.rng.random() < self.level

    def shuffled(self, things: Iterable[T]) -> list[T]:
        """The things in a random order."""
        drawn = list(things)
        self.rng.shuffle(drawn)
        return drawn

    def free_orders(self, statuses: Collection[str], *, beside: str | None = None) -> list[Order]:
        """Orders nothing is asked about yet, shuffled; those used for ``beside`` count as free."""
        return self.shuffled(
            order
            for order in self.orders
            if order.status in statuses and self.used.get(order.order_id) in (None, beside)
        )

    def payers(self, charge: float) -> list[PaymentMethod]:
        """Payment methods that can bear ``charge``, shuffled."""
        return self.shuffled(
            method
            for method in self.user.payment_methods.values()
            if not isinstance(method, GiftCard) or method.balance - self.spent >= charge
        )

    def charge(self, method: PaymentMethod, amount: float) -> None:
        """Note that ``amount`` goes to ``method``, a refund where it is negative."""
        if isinstance(method, GiftCard):
            self.gift_touched = True
            self.spent += max(amount, 0.0)

    def original_method(self, order: Order) -> PaymentMethod:
        """What the order was paid with."""
        return self.user.payment_methods[order.payment_history[0].payment_method_id]

    def name_order(self, order: Order) -> str:
        """The order by its id, or by contents no other order of the customer has."""
        contents = self._telling_contents(order) if self.hides() else None
        if contents is None:
            return f"order {order.order_id}"
        self.order_hidden = True
        return f"{{your}} order with {listing([f'the {name}' for name in contents])}"

    def place(self, order: Order, names: Collection[str]) -> str:
        """Where the named products are, as a suffix; they may say it themselves."""
        told_apart = not any(set(names) & products for products in self._other_contents(order))
        if told_apart and self.hides():
            self.order_hidden = True
            return " {you} ordered"
        if self.hides() and (contents := self._telling_contents(order, without=names)):
            self.order_hidden = True
            return f" in {{your}} order with {listing([f'the {name}' for name in contents])}"
        return f" in order {order.order_id}"

    def _other_contents(self, order: Order) -> list[set[str]]:
        return [
            {item.name for item in other.items}
            for other in self.orders
            if other.order_id != order.order_id
        ]

    def _telling_contents(
        self, order: Order, *, without: Collection[str] = ()
    ) -> tuple[str, ...] | None:
        names = self.shuffled(sorted({item.name for item in order.items} - set(without)))
        others = self._other_contents(order)
        for size in (1, 2):
            for contents in combinations(names, size):
                if not any(set(contents) <= products for products in others):
                    return contents
        return None

    def name_method(self, method: PaymentMethod, order: Order | None = None) -> str:
        """The payment method in the customer's words; ``order`` may stand for what paid it."""
        self.profile_needed = True
        if order is not None and method.id == self.original_method(order).id and self.hides():
            return "the payment method originally used for that order"
        names = [_method_name(other) for other in self.user.payment_methods.values()]
        name = _method_name(method)
        return name if names.count(name) == 1 and self.hides() else f"{name} ({method.id})"

    def spell_address(self) -> tuple[str, dict[str, str]]:
        """A new address, now and then the one given before, and its words."""
        if self.new_address is None or self.hides():
            self.new_address = _invented_address(self.rng)
        return address_words(self.new_address, labelled=not self.hides()), self.new_address


def read_order(order: Order) -> Call:
    """The call that shows the order."""
    return "get_order_details", {"order_id": order.order_id}


def address_fields(address: UserAddress) -> dict[str, str]:
    """The address as the tools take it."""
    return {
        "address1": address.address1,
        "address2": address.address2,
        "city": address.city,
        "state": address.state,
        "country": address.country,
        "zip": address.zip,
    }


def address_words(fields: dict[str, str], *, labelled: bool) -> str:
    """Every field of the address, with its name or as on an envelope."""
    if not labelled:
        *lines, code = fields.values()
        return f"{', '.join(lines)}, zip code {code}"
    labels = ("address line 1", "address line 2", "city", "state", "country", "zip code")
    return ", ".join(
        f"{label} {value}" for label, value in zip(labels, fields.values(), strict=True)
    )


def _invented_address(rng: Random) -> dict[str, str]:
    city, state, code = rng.choice(_CITIES)
    return {
        "address1": f"{rng.randrange(10, 999)} {rng.choice(_STREETS)}",
        "address2": f"{rng.choice(_UNITS)} {rng.randrange(2, 99)}",
        "city": city,
        "state": state,
        "country": "USA",
        "zip": f"{code + rng.randrange(60)}",
    }


def _method_name(method: PaymentMethod) -> str:
    if isinstance(method, GiftCard):
        return "{your} gift card"
    if isinstance(method, CreditCard):
        return f"{{your}} {method.brand} credit card ending in {method.last_four}"
    return "{your} PayPal account"
