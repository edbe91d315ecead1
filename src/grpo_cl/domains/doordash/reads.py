"""The tools that only look."""

from pydantic import BaseModel

from grpo_cl.domains.doordash.database import (
    Customer,
    Dasher,
    MenuItem,
    Order,
    Restaurant,
    Section,
)
from grpo_cl.domains.toolkit import Toolkit
from grpo_cl.errors import ToolError


class RestaurantEntry(BaseModel):
    """A restaurant in a list."""

    restaurant_id: str
    name: str
    cuisine: str
    rating: float


class MenuEntry(BaseModel):
    """An item in a menu; its options and allergens are in its details."""

    item_id: str
    name: str
    section: Section
    price: float


def find_customer_by_email(self: Toolkit, email: str) -> str:
    """The id of the customer with this email."""
    wanted = email.strip().lower()
    for customer in self.db.customers.values():
        if customer.email == wanted:
            return customer.customer_id
    raise ToolError(f"no customer has the email {email}; ask for the phone number")


def find_customer_by_phone(self: Toolkit, phone: str) -> str:
    """The id of the customer with this phone number, however it is spaced."""
    wanted = _digits(phone)
    for customer in self.db.customers.values():
        if _digits(customer.phone) == wanted:
            return customer.customer_id
    raise ToolError(f"no customer has the phone number {phone}; ask for the email")


def _digits(phone: str) -> str:
    return "".join(filter(str.isdigit, phone))


def get_customer_details(self: Toolkit, customer_id: str) -> Customer:
    """The profile."""
    if customer_id not in self.db.customers:
        raise ToolError(f"no customer {customer_id}; find the id by email or phone")
    return self.db.customers[customer_id]


def search_restaurants(
    self: Toolkit,
    name: str | None = None,
    cuisine: str | None = None,
    delivers_to: str | None = None,
) -> list[RestaurantEntry]:
    """The restaurants that fit every criterion given, open or not."""
    words, kind, zone = ((text or "").strip().lower() for text in (name, cuisine, delivers_to))
    return [
        RestaurantEntry(
            restaurant_id=restaurant.restaurant_id,
            name=restaurant.name,
            cuisine=restaurant.cuisine,
            rating=restaurant.rating,
        )
        for restaurant in self.db.restaurants.values()
        if words in restaurant.name.lower()
        and kind in ("", restaurant.cuisine)
        and zone in ("", *map(str.lower, restaurant.delivers_to))
    ]


def get_restaurant_details(self: Toolkit, restaurant_id: str) -> Restaurant:
    """Hours, zones, minimum and fee."""
    if restaurant_id not in self.db.restaurants:
        raise ToolError(f"no restaurant {restaurant_id}; search_restaurants lists the ids")
    return self.db.restaurants[restaurant_id]


def get_menu(self: Toolkit, restaurant_id: str) -> list[MenuEntry]:
    """What the restaurant has today; what is sold out is left out."""
    get_restaurant_details(self, restaurant_id)  # one that does not exist has no menu either
    return [
        MenuEntry(item_id=item.item_id, name=item.name, section=item.section, price=item.price)
        for item in self.db.items.values()
        if item.restaurant_id == restaurant_id and item.is_available
    ]


def get_item_details(self: Toolkit, item_id: str) -> MenuItem:
    """Price, allergens and options."""
    if item_id not in self.db.items:
        raise ToolError(f"no item {item_id}; get_menu lists the ids")
    return self.db.items[item_id]


def get_order_details(self: Toolkit, order_id: str) -> Order:
    """Everything about an order."""
    if order_id not in self.db.orders:
        raise ToolError(f"no order {order_id}; the customer's profile lists the ids")
    return self.db.orders[order_id]


def get_dasher_status(self: Toolkit, order_id: str) -> Dasher:
    """Who brings an order, and how far away they are."""
    order = get_order_details(self, order_id)
    if order.dasher_id is None:
        raise ToolError(f"order {order_id} is {order.status} and has no dasher")
    return self.db.dashers[order.dasher_id]


READS = (
    find_customer_by_email,
    find_customer_by_phone,
    get_customer_details,
    search_restaurants,
    get_restaurant_details,
    get_menu,
    get_item_details,
    get_order_details,
    get_dasher_status,
)
