"""The records of the delivery service."""

from typing import Literal

from pydantic import BaseModel

NOW = "2025-03-14 18:30"
"""The moment of every episode, a Friday."""
TODAY = "friday"

Status = Literal["placed", "confirmed", "preparing", "picked_up", "delivered", "cancelled"]
Section = Literal["starters", "mains", "desserts", "drinks"]
Reason = Literal["missing", "wrong", "damaged"]
Destination = Literal["original", "credits"]

ZONES = {
    "Harborside": "40211",
    "Old Town": "40212",
    "Millbrook": "40213",
    "Northgate": "40214",
    "University": "40215",
    "Lakeview": "40216",
    "Southfield": "40217",
    "Airport": "40218",
}
"""The zip code of each delivery zone; a zone borders on those beside it, the last on the first."""

ALLERGENS = (
    "dairy", "egg", "fish", "gluten", "peanut", "sesame", "shellfish", "soy", "tree nut",
)  # fmt: skip


class Address(BaseModel):
    """An entry of a customer's address book."""

    label: str
    street: str
    zip: str
    zone: str


class PaymentMethod(BaseModel):
    """A way to pay; only a gift card has a balance."""

    payment_id: str
    source: Literal["card", "paypal", "gift_card"]
    brand: str | None = None
    last_four: str | None = None
    balance: float | None = None


class RefundEntry(BaseModel):
    """A line of a customer's refund history."""

    order_id: str
    date: str
    amount: float


class Customer(BaseModel):
    """A person with an account."""

    customer_id: str
    name: str
    email: str
    phone: str
    addresses: dict[str, Address]
    payment_methods: dict[str, PaymentMethod]
    pass_until: str | None = None
    """The last day of the customer's pass; None without one."""
    allergies: list[str] = []
    credits: float = 0.0
    orders: list[str] = []
    refund_history: list[RefundEntry] = []


class Hours(BaseModel):
    """When a restaurant is open on one day."""

    opens: str
    closes: str


class Restaurant(BaseModel):
    """A place that cooks."""

    restaurant_id: str
    name: str
    cuisine: str
    rating: float
    zone: str
    delivers_to: list[str]
    hours: dict[str, Hours | None]
    """By day of the week; None on a day off."""
    is_paused: bool = False
    minimum_order: float
    delivery_fee: float


class MenuItem(BaseModel):
    """Something on a menu."""

    item_id: str
    restaurant_id: str
    name: str
    section: Section
    price: float
    allergens: list[str]
    options: dict[str, dict[str, float]] = {}
    """For each option its choices with what they cost more; one choice must be made of each."""
    is_available: bool = True


class OrderItem(BaseModel):
    """One line of an order."""

    item_id: str
    name: str
    options: dict[str, str]
    quantity: int
    unit_price: float


class Cancellation(BaseModel):
    """What a cancellation cost and gave back."""

    fee: float
    refunded: float


class RefundedItem(BaseModel):
    """How many of an item were refunded."""

    item_id: str
    quantity: int


class Refund(BaseModel):
    """Money given back for a delivered order."""

    items: list[RefundedItem]
    reason: Reason
    amount: float
    destination: Destination
    issued_at: str


class Order(BaseModel):
    """Items on their way from a restaurant to a customer."""

    order_id: str
    customer_id: str
    restaurant_id: str
    restaurant_name: str
    status: Status
    placed_at: str
    delivered_at: str | None = None
    address: Address
    items: list[OrderItem]
    allergies: list[str] = []
    """What the restaurant is told to leave out."""
    subtotal: float = 0.0
    delivery_fee: float = 0.0
    service_fee: float = 0.0
    tip: float = 0.0
    total: float = 0.0
    payment_id: str
    dasher_id: str | None = None
    cancellation: Cancellation | None = None
    refund: Refund | None = None


class Dasher(BaseModel):
    """Someone who delivers."""

    dasher_id: str
    name: str
    vehicle: Literal["bicycle", "scooter", "car"]
    rating: float
    order_id: str | None = None
    minutes_away: int | None = None
    """Until the order is at its address."""


class DoordashDB(BaseModel):
    """Everything the delivery service knows."""

    customers: dict[str, Customer]
    restaurants: dict[str, Restaurant]
    items: dict[str, MenuItem]
    orders: dict[str, Order]
    dashers: dict[str, Dasher]
