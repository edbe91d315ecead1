"""State of a retail customer's call under construction, and how the customer names records."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from inspect_evals.tau2.retail.data_model import (
    CreditCard,
    GiftCard,
    Order,
    PaymentMethod,
    Product,
    User,
    UserAddress,
)

from grpo_cl.envs.generation.requests import Call, Case
from grpo_cl.envs.generation.wording import join_words

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


@dataclass(kw_only=True)
class RetailCase(Case):
    """A customer with orders, some of which a request already uses."""

    user: User
    orders: Sequence[Order]
    products: dict[str, Product]
    pending_orders: Sequence[Order]
    """Pending orders of all customers of the split."""
    used: dict[str, str] = field(default_factory=dict[str, str])
    """The request that uses each order."""
    spent: float = 0.0
    """Charges of the requests to the gift card, without refunds."""
    uses_gift_card: bool = False
    new_address: dict[str, str] | None = None
    """The address that was spelled out last."""
    uses_known_address: bool = False
    """Whether a request refers to an address in the database."""
    has_described_order: bool = False
    """Whether an order is named by its contents, so that the agent has to find it."""
    needs_profile: bool = False

    def free_orders(self, statuses: Collection[str], *, beside: str | None = None) -> list[Order]:
        """Unused orders in random order; orders used by the request ``beside`` are included."""
        return self.shuffled(
            order
            for order in self.orders
            if order.status in statuses and self.used.get(order.order_id) in (None, beside)
        )

    def payers(self, charge: float) -> list[PaymentMethod]:
        """Payment methods that cover ``charge``, in random order."""
        return self.shuffled(
            method
            for method in self.user.payment_methods.values()
            if not isinstance(method, GiftCard) or method.balance - self.spent >= charge
        )

    def charge(self, method: PaymentMethod, amount: float) -> None:
        """Record a charge to ``method``; a negative amount is a refund."""
        if isinstance(method, GiftCard):
            self.uses_gift_card = True
            self.spent += max(amount, 0.0)

    def original_method(self, order: Order) -> PaymentMethod:
        """The payment method of the order."""
        return self.user.payment_methods[order.payment_history[0].payment_method_id]

    def name_order(self, order: Order) -> str:
        """The order by its id, or by contents that no other order of the customer has."""
        contents = self._unique_contents(order) if self.omits_detail() else None
        if contents is None:
            return f"order {order.order_id}"
        self.has_described_order = True
        return f"{{your}} order with {join_words([f'the {name}' for name in contents])}"

    def name_location(self, order: Order, names: Collection[str]) -> str:
        """A suffix that says which order has the named products."""
        are_unique = not any(set(names) & products for products in self._other_contents(order))
        if are_unique and self.omits_detail():
            self.has_described_order = True
            return " {you} ordered"
        if self.omits_detail() and (contents := self._unique_contents(order, without=names)):
            self.has_described_order = True
            return f" in {{your}} order with {join_words([f'the {name}' for name in contents])}"
        return f" in order {order.order_id}"

    def _other_contents(self, order: Order) -> list[set[str]]:
        return [
            {item.name for item in other.items}
            for other in self.orders
            if other.order_id != order.order_id
        ]

    def _unique_contents(
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
        """The payment method in the customer's words, possibly as the one that paid ``order``."""
        self.needs_profile = True
        if (
            order is not None
            and method.id == self.original_method(order).id
            and self.omits_detail()
        ):
            return "the payment method originally used for that order"
        names = [_method_name(other) for other in self.user.payment_methods.values()]
        name = _method_name(method)
        return name if names.count(name) == 1 and self.omits_detail() else f"{name} ({method.id})"

    def spell_address(self) -> tuple[str, dict[str, str]]:
        """The words and the fields of a new address, sometimes the one given before."""
        if self.new_address is None or self.omits_detail():
            self.new_address = _random_address(self.rng)
        return address_words(self.new_address, labelled=not self.omits_detail()), self.new_address


def read_order(order: Order) -> Call:
    """The call that reads the order."""
    return "get_order_details", {"order_id": order.order_id}


def address_fields(address: UserAddress) -> dict[str, str]:
    """The address as tool arguments."""
    return {
        "address1": address.address1,
        "address2": address.address2,
        "city": address.city,
        "state": address.state,
        "country": address.country,
        "zip": address.zip,
    }


def address_words(fields: dict[str, str], *, labelled: bool) -> str:
    """All fields of the address, with labels or as on an envelope."""
    if not labelled:
        *lines, zip_code = fields.values()
        return f"{', '.join(lines)}, zip code {zip_code}"
    labels = ("address line 1", "address line 2", "city", "state", "country", "zip code")
    return ", ".join(
        f"{label} {value}" for label, value in zip(labels, fields.values(), strict=True)
    )


def _random_address(rng: Random) -> dict[str, str]:
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
