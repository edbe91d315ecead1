"""The doordash database, generated from a fixed seed."""

from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple

from grpo_cl.envs.doordash.database import (
    NOW,
    TODAY,
    ZONES,
    Address,
    Cancellation,
    Customer,
    Dasher,
    DoordashDB,
    Hours,
    MenuItem,
    Order,
    OrderItem,
    OrderStatus,
    Refund,
    RefundedItem,
    RefundEntry,
    RefundReason,
    Restaurant,
)
from grpo_cl.envs.doordash.menus import CUISINES, OPTIONS, Dish, dishes_of
from grpo_cl.envs.doordash.people import make_customers, make_dasher
from grpo_cl.envs.doordash.rules import cents, is_open, refund_amount, unit_price, update_amounts

NUM_CUSTOMERS = 400
NUM_IDLE_DASHERS = 60
_DAYS = ("monday", "tuesday", "wednesday", "thursday", TODAY, "saturday", "sunday")
_SHIFTS = (("11:00", "22:00"), ("10:30", "21:30"), ("12:00", "23:30"), ("16:00", "01:00"))
_CLOSED_NOW = (("07:00", "15:00"), ("08:00", "16:30"), ("20:00", "03:00"))
_STATUSES: dict[OrderStatus, int] = {
    "placed": 20,
    "confirmed": 12,
    "preparing": 8,
    "picked_up": 8,
    "delivered": 46,
    "cancelled": 6,
}


class RestaurantMenu(NamedTuple):
    """A restaurant with the items of its menu."""

    restaurant: Restaurant
    items: list[MenuItem]


def build_database() -> DoordashDB:
    """Customers, restaurants with menus, orders of every status, refunds and dashers."""
    rng = Random("doordash")
    menus = _make_menus(rng)
    customers = make_customers(rng, NUM_CUSTOMERS)
    orders = _make_orders(rng, customers, menus)
    return DoordashDB(
        customers=customers,
        restaurants={menu.restaurant.restaurant_id: menu.restaurant for menu in menus},
        items={item.item_id: item for menu in menus for item in menu.items},
        orders={order.order_id: order for order in orders},
        dashers=_make_dashers(rng, orders),
    )


def _make_menus(rng: Random) -> list[RestaurantMenu]:
    names = [(cuisine, name) for cuisine, spec in CUISINES.items() for name in spec.restaurants]
    return [
        _make_menu(rng, number, cuisine, name) for number, (cuisine, name) in enumerate(names, 10)
    ]


def _make_menu(rng: Random, number: int, cuisine: str, name: str) -> RestaurantMenu:
    restaurant_id = f"rest_{number}"
    items = [
        _make_item(rng, dish, restaurant_id, f"item_{number}{index:02}")
        for index, dish in enumerate(dishes_of(cuisine))
        if rng.random() < 0.85
    ]
    zones, center = list(ZONES), rng.randrange(len(ZONES))
    radius = rng.choice((1, 1, 2))
    restaurant = Restaurant(
        restaurant_id=restaurant_id,
        name=name,
        cuisine=cuisine,
        rating=rng.randrange(36, 50) / 10,
        zone=zones[center],
        delivers_to=[zones[(center + step) % len(zones)] for step in range(-radius, radius + 1)],
        hours=_make_hours(rng, cuisine),
        is_paused=rng.random() < 0.05,
        minimum_order=rng.choice((10.0, 12.0, 15.0, 18.0, 20.0)),
        delivery_fee=rng.choice((1.99, 2.49, 2.99, 3.99, 4.99)),
    )
    return RestaurantMenu(restaurant, items)


def _make_hours(rng: Random, cuisine: str) -> dict[str, Hours | None]:
    closes_early = cuisine == "breakfast" and rng.random() < 0.7
    opens, closes = rng.choice(_CLOSED_NOW if closes_early or rng.random() < 0.1 else _SHIFTS)
    day_off = rng.choice((None, None, None, *_DAYS))
    return {day: None if day == day_off else Hours(opens=opens, closes=closes) for day in _DAYS}


def _make_item(rng: Random, dish: Dish, restaurant_id: str, item_id: str) -> MenuItem:
    return MenuItem(
        item_id=item_id,
        restaurant_id=restaurant_id,
        name=dish.name,
        section=dish.section,
        price=cents(dish.price + rng.randrange(-2, 5) * 0.25),
        allergens=sorted(filter(None, dish.allergens.split(","))),
        options={name: OPTIONS[name] for name in dish.options.split()},
        is_available=rng.random() < 0.93,
    )


def _make_orders(
    rng: Random, customers: dict[str, Customer], menus: list[RestaurantMenu]
) -> list[Order]:
    owners = [customer for customer in customers.values() for _ in range(rng.randint(2, 5))]
    numbers = sorted(rng.sample(range(10_000, 90_000), len(owners)))
    rng.shuffle(numbers)
    orders: list[Order] = []
    for customer, number in zip(owners, numbers, strict=True):
        status = rng.choices(list(_STATUSES), list(_STATUSES.values()))[0]
        order = _make_order(
            rng, f"D{number}", customer, _draw_restaurant(rng, customer, menus, status)
        )
        _set_status(rng, order, status, customer)
        customer.orders.append(order.order_id)
        orders.append(order)
    return orders


def _draw_restaurant(
    rng: Random, customer: Customer, menus: list[RestaurantMenu], status: OrderStatus
) -> tuple[RestaurantMenu, Address]:
    is_active = status not in {"delivered", "cancelled"}
    return rng.choice(
        [
            (menu, address)
            for menu in menus
            for address in customer.addresses.values()
            if address.zone in menu.restaurant.delivers_to
            and (not is_active or is_open(menu.restaurant))
        ]
    )


def _make_order(
    rng: Random, order_id: str, customer: Customer, target: tuple[RestaurantMenu, Address]
) -> Order:
    menu, address = target
    restaurant = menu.restaurant
    safe = [
        item
        for item in menu.items
        if item.is_available and not set(item.allergens) & set(customer.allergies)
    ]
    items = sorted(rng.sample(safe, min(len(safe), rng.randint(2, 4))), key=lambda i: i.item_id)
    max_quantity = 6 if rng.random() < 0.1 else 2
    lines = [_make_line(rng, item, rng.randint(1, max_quantity)) for item in items]
    while sum(line.unit_price * line.quantity for line in lines) < restaurant.minimum_order:
        rng.choice(lines).quantity += 1
    order = Order(
        order_id=order_id,
        customer_id=customer.customer_id,
        restaurant_id=restaurant.restaurant_id,
        restaurant_name=restaurant.name,
        status="placed",
        placed_at=_minutes_ago(rng.randrange(2, 15)),
        address=address.model_copy(),
        items=lines,
        allergies=list(customer.allergies),
        tip=float(rng.choice((0, 0, 2, 3, 4, 5))),
        payment_id=rng.choice(list(customer.payment_methods)),
    )
    update_amounts(order, restaurant, customer)
    return order


def _make_line(rng: Random, item: MenuItem, quantity: int) -> OrderItem:
    options = {name: rng.choice(list(choices)) for name, choices in item.options.items()}
    return OrderItem(
        item_id=item.item_id,
        name=item.name,
        options=options,
        quantity=quantity,
        unit_price=unit_price(item, options),
    )


def _set_status(rng: Random, order: Order, status: OrderStatus, customer: Customer) -> None:
    order.status = status
    ages = {"confirmed": (15, 25), "preparing": (25, 40), "picked_up": (40, 60)}
    if status in ages:
        order.placed_at = _minutes_ago(rng.randrange(*ages[status]))
    elif status == "delivered":
        _mark_delivered(rng, order, customer)
    elif status == "cancelled":
        order.placed_at = _minutes_ago(rng.randrange(60, 20_000))
        order.cancellation = Cancellation(fee=0.0, refunded=order.total)


def _mark_delivered(rng: Random, order: Order, customer: Customer) -> None:
    hours = rng.choice((rng.randrange(1, 22), rng.randrange(26, 70), rng.randrange(74, 1200)))
    # About half an hour away from every policy limit, as these are whole hours.
    age = 60 * hours + rng.randrange(20, 40)
    order.delivered_at = _minutes_ago(age)
    order.placed_at = _minutes_ago(age + rng.randrange(30, 75))
    if rng.random() < 0.3:
        _add_refund(rng, order, customer, age)


def _add_refund(rng: Random, order: Order, customer: Customer, age: int) -> None:
    item = rng.choice(order.items)
    reasons: tuple[RefundReason, ...] = ("missing", "wrong", "damaged")
    reason = rng.choice(reasons)
    issued = _minutes_ago(age - rng.randrange(1, min(age, 600)))
    amount = refund_amount(order, {item.item_id: 1}, reason)
    order.refund = Refund(
        items=[RefundedItem(item_id=item.item_id, quantity=1)],
        reason=reason,
        amount=amount,
        destination="original",
        issued_at=issued,
    )
    entry = RefundEntry(order_id=order.order_id, date=issued[:10], amount=amount)
    customer.refund_history.append(entry)


def _minutes_ago(minutes: int) -> str:
    time = datetime.fromisoformat(NOW) - timedelta(minutes=minutes)
    return time.strftime("%Y-%m-%d %H:%M")


def _make_dashers(rng: Random, orders: list[Order]) -> dict[str, Dasher]:
    active_orders = [order for order in orders if order.status in {"preparing", "picked_up"}]
    dashers = [make_dasher(rng, number) for number in range(len(active_orders) + NUM_IDLE_DASHERS)]
    for dasher, order in zip(rng.sample(dashers, len(active_orders)), active_orders, strict=True):
        order.dasher_id, dasher.order_id = dasher.dasher_id, order.order_id
        dasher.minutes_away = rng.randrange(4, 16 if order.status == "picked_up" else 40)
    return {dasher.dasher_id: dasher for dasher in dashers}
