"""The database, made from a fixed seed: the same records on every machine."""

from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple

from grpo_cl.domains.doordash.database import (
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
    Reason,
    Refund,
    RefundedItem,
    RefundEntry,
    Restaurant,
    Status,
)
from grpo_cl.domains.doordash.dishes import CUISINES, OPTIONS, Dish, dishes_of
from grpo_cl.domains.doordash.people import make_customers, make_dasher
from grpo_cl.domains.doordash.rules import cents, is_open, refund_amount, settle, unit_price

NUM_CUSTOMERS = 400
IDLE_DASHERS = 60
_DAYS = ("monday", "tuesday", "wednesday", "thursday", TODAY, "saturday", "sunday")
_SHIFTS = (("11:00", "22:00"), ("10:30", "21:30"), ("12:00", "23:30"), ("16:00", "01:00"))
_CLOSED_NOW = (("07:00", "15:00"), ("08:00", "16:30"), ("20:00", "03:00"))
_STATUSES: dict[Status, int] = {
    "placed": 20,
    "confirmed": 12,
    "preparing": 8,
    "picked_up": 8,
    "delivered": 46,
    "cancelled": 6,
}


class Kitchen(NamedTuple):
    """A restaurant with its menu."""

    restaurant: Restaurant
    items: list[MenuItem]


def build_database() -> DoordashDB:
    """Customers, restaurants with menus, orders in every state, dashers and past refunds."""
    rng = Random("doordash")
    kitchens = _kitchens(rng)
    customers = make_customers(rng, NUM_CUSTOMERS)
    orders = _orders(rng, customers, kitchens)
    return DoordashDB(
        customers=customers,
        restaurants={kitchen.restaurant.restaurant_id: kitchen.restaurant for kitchen in kitchens},
        items={item.item_id: item for kitchen in kitchens for item in kitchen.items},
        orders={order.order_id: order for order in orders},
        dashers=_dashers(rng, orders),
    )


def _kitchens(rng: Random) -> list[Kitchen]:
    places = [(cuisine, name) for cuisine, kind in CUISINES.items() for name in kind.restaurants]
    return [
        _kitchen(rng, number, cuisine, name) for number, (cuisine, name) in enumerate(places, 10)
    ]


def _kitchen(rng: Random, number: int, cuisine: str, name: str) -> Kitchen:
    restaurant_id = f"rest_{number}"
    items = [
        _item(rng, dish, restaurant_id, f"item_{number}{place:02}")
        for place, dish in enumerate(dishes_of(cuisine))
        if rng.random() < 0.85
    ]
    zones, middle = list(ZONES), rng.randrange(len(ZONES))
    reach = rng.choice((1, 1, 2))
    restaurant = Restaurant(
        restaurant_id=restaurant_id,
        name=name,
        cuisine=cuisine,
        rating=rng.randrange(36, 50) / 10,
        zone=zones[middle],
        delivers_to=[zones[(middle + step) % len(zones)] for step in range(-reach, reach + 1)],
        hours=_hours(rng, cuisine),
        is_paused=rng.random() < 0.05,
        minimum_order=rng.choice((10.0, 12.0, 15.0, 18.0, 20.0)),
        delivery_fee=rng.choice((1.99, 2.49, 2.99, 3.99, 4.99)),
    )
    return Kitchen(restaurant, items)


def _hours(rng: Random, cuisine: str) -> dict[str, Hours | None]:
    is_early = cuisine == "breakfast" and rng.random() < 0.7
    opens, closes = rng.choice(_CLOSED_NOW if is_early or rng.random() < 0.1 else _SHIFTS)
    free = rng.choice((None, None, None, *_DAYS))
    return {day: None if day == free else Hours(opens=opens, closes=closes) for day in _DAYS}


def _item(rng: Random, dish: Dish, restaurant_id: str, item_id: str) -> MenuItem:
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


def _orders(rng: Random, customers: dict[str, Customer], kitchens: list[Kitchen]) -> list[Order]:
    buyers = [customer for customer in customers.values() for _ in range(rng.randint(2, 5))]
    numbers = sorted(rng.sample(range(10_000, 90_000), len(buyers)))
    rng.shuffle(numbers)
    orders: list[Order] = []
    for customer, number in zip(buyers, numbers, strict=True):
        status = rng.choices(list(_STATUSES), list(_STATUSES.values()))[0]
        order = _order(rng, f"D{number}", customer, _choice(rng, customer, kitchens, status))
        _advance(rng, order, status, customer)
        customer.orders.append(order.order_id)
        orders.append(order)
    return orders


def _choice(
    rng: Random, customer: Customer, kitchens: list[Kitchen], status: Status
) -> tuple[Kitchen, Address]:
    is_active = status not in {"delivered", "cancelled"}
    return rng.choice(
        [
            (kitchen, address)
            for kitchen in kitchens
            for address in customer.addresses.values()
            if address.zone in kitchen.restaurant.delivers_to
            and (not is_active or is_open(kitchen.restaurant))
        ]
    )


def _order(rng: Random, order_id: str, customer: Customer, place: tuple[Kitchen, Address]) -> Order:
    kitchen, address = place
    restaurant = kitchen.restaurant
    safe = [
        item
        for item in kitchen.items
        if item.is_available and not set(item.allergens) & set(customer.allergies)
    ]
    chosen = sorted(rng.sample(safe, min(len(safe), rng.randint(2, 4))), key=lambda i: i.item_id)
    most = 6 if rng.random() < 0.1 else 2
    lines = [_line(rng, item, rng.randint(1, most)) for item in chosen]
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
    settle(order, restaurant, customer)
    return order


def _line(rng: Random, item: MenuItem, quantity: int) -> OrderItem:
    options = {name: rng.choice(list(choices)) for name, choices in item.options.items()}
    return OrderItem(
        item_id=item.item_id,
        name=item.name,
        options=options,
        quantity=quantity,
        unit_price=unit_price(item, options),
    )


def _advance(rng: Random, order: Order, status: Status, customer: Customer) -> None:
    order.status = status
    ages = {"confirmed": (15, 25), "preparing": (25, 40), "picked_up": (40, 60)}
    if status in ages:
        order.placed_at = _minutes_ago(rng.randrange(*ages[status]))
    elif status == "delivered":
        _deliver(rng, order, customer)
    elif status == "cancelled":
        order.placed_at = _minutes_ago(rng.randrange(60, 20_000))
        order.cancellation = Cancellation(fee=0.0, refunded=order.total)


def _deliver(rng: Random, order: Order, customer: Customer) -> None:
    hours = rng.choice((rng.randrange(1, 22), rng.randrange(26, 70), rng.randrange(74, 1200)))
    # Half an hour away from every limit that counts in whole hours.
    age = 60 * hours + rng.randrange(20, 40)
    order.delivered_at = _minutes_ago(age)
    order.placed_at = _minutes_ago(age + rng.randrange(30, 75))
    if rng.random() < 0.3:
        _give_back(rng, order, customer, age)


def _give_back(rng: Random, order: Order, customer: Customer, age: int) -> None:
    item = rng.choice(order.items)
    reasons: tuple[Reason, ...] = ("missing", "wrong", "damaged")
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
    moment = datetime.fromisoformat(NOW) - timedelta(minutes=minutes)
    return moment.strftime("%Y-%m-%d %H:%M")


def _dashers(rng: Random, orders: list[Order]) -> dict[str, Dasher]:
    under_way = [order for order in orders if order.status in {"preparing", "picked_up"}]
    dashers = [make_dasher(rng, number) for number in range(len(under_way) + IDLE_DASHERS)]
    for dasher, order in zip(rng.sample(dashers, len(under_way)), under_way, strict=True):
        order.dasher_id, dasher.order_id = dasher.dasher_id, order.order_id
        dasher.minutes_away = rng.randrange(4, 16 if order.status == "picked_up" else 40)
    return {dasher.dasher_id: dasher for dasher in dashers}
