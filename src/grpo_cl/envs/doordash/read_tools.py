"""Tools that read the database."""

from pydantic import BaseModel

from grpo_cl.envs.doordash.database import (
    Customer,
    Dasher,
    MenuItem,
    MenuSection,
    Order,
    Restaurant,
)
from grpo_cl.envs.toolkit import Toolkit
from grpo_cl.errors import ToolError


class RestaurantEntry(BaseModel):
    """A restaurant as a search result."""

    restaurant_id: str
    name: str
    cuisine: str
    rating: float


class MenuEntry(BaseModel):
    """An item as listed in a menu, without its options and allergens."""

    item_id: str
    name: str
    section: MenuSection
    price: float


def find_customer_by_email(self: Toolkit, email: str) -> str:
    """The id of the customer with this email."""
    normalised = email.strip().lower()
    for customer in self.db.customers.values():
        if customer.email == normalised:
            return customer.customer_id
    raise ToolError(f"no customer has the email {email}; ask for the phone number")


def find_customer_by_phone(self: Toolkit, phone: str) -> str:
    """The id of the customer with this phone number; only digits are compared."""
    digits = _digits(phone)
    for customer in self.db.customers.values():
        if _digits(customer.phone) == digits:
            return customer.customer_id
    raise ToolError(f"no customer has the phone number {phone}; ask for the email")


def _digits(phone: str) -> str:
    return "".join(filter(str.isdigit, phone))


def get_customer_details(self: Toolkit, customer_id: str) -> Customer:
    """The customer's profile."""
    if customer_id not in self.db.customers:
        raise ToolError(f"no customer {customer_id}; find the id by email or phone")
    return self.db.customers[customer_id]


def search_restaurants(
    self: Toolkit,
    name: str | None = None,
    cuisine: str | None = None,
    delivers_to: str | None = None,
) -> list[RestaurantEntry]:
    """The restaurants that match every given criterion, open or closed."""
    name_part, cuisine_key, zone = (
        (text or "").strip().lower() for text in (name, cuisine, delivers_to)
    )
    return [
        RestaurantEntry(
            restaurant_id=restaurant.restaurant_id,
            name=restaurant.name,
            cuisine=restaurant.cuisine,
            rating=restaurant.rating,
        )
        for restaurant in self.db.restaurants.values()
        if name_part in restaurant.name.lower()
        and cuisine_key in ("", restaurant.cuisine)
        and zone in ("", *map(str.lower, restaurant.delivers_to))
    ]


def get_restaurant_details(self: Toolkit, restaurant_id: str) -> Restaurant:
    """The restaurant's record."""
    if restaurant_id not in self.db.restaurants:
        raise ToolError(f"no restaurant {restaurant_id}; search_restaurants lists the ids")
    return self.db.restaurants[restaurant_id]


def get_menu(self: Toolkit, restaurant_id: str) -> list[MenuEntry]:
    """The available items of the restaurant."""
    get_restaurant_details(self, restaurant_id)  # an unknown id is an error, not an empty menu
    return [
        MenuEntry(item_id=item.item_id, name=item.name, section=item.section, price=item.price)
        for item in self.db.items.values()
        if item.restaurant_id == restaurant_id and item.is_available
    ]


def get_item_details(self: Toolkit, item_id: str) -> MenuItem:
    """The item's record with price, allergens and options."""
    if item_id not in self.db.items:
        raise ToolError(f"no item {item_id}; get_menu lists the ids")
    return self.db.items[item_id]


def get_order_details(self: Toolkit, order_id: str) -> Order:
    """The order's record."""
    if order_id not in self.db.orders:
        raise ToolError(f"no order {order_id}; the customer's profile lists the ids")
    return self.db.orders[order_id]


def get_dasher_status(self: Toolkit, order_id: str) -> Dasher:
    """The dasher of an order, with the minutes until delivery."""
    order = get_order_details(self, order_id)
    if order.dasher_id is None:
        raise ToolError(f"order {order_id} is {order.status} and has no dasher")
    return self.db.dashers[order.dasher_id]


READ_TOOLS = (
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
