"""Record types of the food delivery service."""

from typing import Literal

from pydantic import BaseModel

NOW = "2025-03-14 18:30"
"""The simulated time of every episode, a Friday."""
TODAY = "friday"

OrderStatus = Literal["placed", "confirmed", "preparing", "picked_up", "delivered", "cancelled"]
MenuSection = Literal["starters", "mains", "desserts", "drinks"]
RefundReason = Literal["missing", "wrong", "damaged"]
RefundDestination = Literal["original", "credits"]

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
"""The zip code of each delivery zone; zones form a ring, each borders on the ones beside it."""

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
    """A payment method; only a gift card has a balance."""

    payment_id: str
    source: Literal["card", "paypal", "gift_card"]
    brand: str | None = None
    last_four: str | None = None
    balance: float | None = None


class RefundEntry(BaseModel):
    """An entry of a customer's refund history."""

    order_id: str
    date: str
    amount: float


class Customer(BaseModel):
    """A customer account."""

    customer_id: str
    name: str
    email: str
    phone: str
    addresses: dict[str, Address]
    payment_methods: dict[str, PaymentMethod]
    pass_until: str | None = None
    """The last day of the customer's pass; None if there is no pass."""
    allergies: list[str] = []
    credits: float = 0.0
    orders: list[str] = []
    refund_history: list[RefundEntry] = []


class Hours(BaseModel):
    """Opening hours of a restaurant on one day."""

    opens: str
    closes: str


class Restaurant(BaseModel):
    """A restaurant with its hours, delivery zones, minimum order and delivery fee."""

    restaurant_id: str
    name: str
    cuisine: str
    rating: float
    zone: str
    delivers_to: list[str]
    hours: dict[str, Hours | None]
    """By day of the week; None if the restaurant is closed that day."""
    is_paused: bool = False
    minimum_order: float
    delivery_fee: float


class MenuItem(BaseModel):
    """An item of a restaurant's menu."""

    item_id: str
    restaurant_id: str
    name: str
    section: MenuSection
    price: float
    allergens: list[str]
    options: dict[str, dict[str, float]] = {}
    """The choices of each option with their surcharges; an order picks one choice per option."""
    is_available: bool = True


class OrderItem(BaseModel):
    """One line of an order: an item with its options and quantity."""

    item_id: str
    name: str
    options: dict[str, str]
    quantity: int
    unit_price: float


class Cancellation(BaseModel):
    """Fee and refunded amount of a cancelled order."""

    fee: float
    refunded: float


class RefundedItem(BaseModel):
    """An item with its refunded quantity."""

    item_id: str
    quantity: int


class Refund(BaseModel):
    """A refund of items of a delivered order."""

    items: list[RefundedItem]
    reason: RefundReason
    amount: float
    destination: RefundDestination
    issued_at: str


class Order(BaseModel):
    """An order of a customer at one restaurant."""

    order_id: str
    customer_id: str
    restaurant_id: str
    restaurant_name: str
    status: OrderStatus
    placed_at: str
    delivered_at: str | None = None
    address: Address
    items: list[OrderItem]
    allergies: list[str] = []
    """The allergy note for the restaurant."""
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
    """A delivery driver."""

    dasher_id: str
    name: str
    vehicle: Literal["bicycle", "scooter", "car"]
    rating: float
    order_id: str | None = None
    minutes_away: int | None = None
    """Minutes until the order is delivered."""


class DoordashDB(BaseModel):
    """The database of the delivery service; each table maps ids to records."""

    customers: dict[str, Customer]
    restaurants: dict[str, Restaurant]
    items: dict[str, MenuItem]
    orders: dict[str, Order]
    dashers: dict[str, Dasher]
