"""Requests for new orders, allowed and forbidden."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from grpo_cl.envs.doordash.database import ALLERGENS, NOW, Order, PaymentMethod, Restaurant
from grpo_cl.envs.doordash.generator.case import (
    DoordashCase,
    NamedAddress,
    read_item,
    read_menu,
    read_restaurant,
)
from grpo_cl.envs.doordash.generator.item_choices import (
    ItemChoice,
    describe_basket,
    draw_basket,
    draw_choice,
    safe_items,
)
from grpo_cl.envs.doordash.rules import is_open, update_amounts
from grpo_cl.envs.generation.requests import Call, Question, Request, question
from grpo_cl.envs.generation.wording import (
    Wording,
    draw_wording,
    format_amount,
    join_words,
)

_ORDER_TEMPLATES = (
    "order {items} from {place}, paid with {method} and with {tip}, to {address}",
    "place an order for {items} from {place}, with {tip} and paid by {method}, to {address}",
    "get {items} from {place}, with {tip}, charged to {method}, delivered to {address}",
)
_GUESTS = ("a friend", "{your} sister", "a colleague", "{your} neighbour")


class OrderDraft(NamedTuple):
    """An order that a customer asks for."""

    restaurant: Restaurant
    choices: Sequence[ItemChoice]
    destination: NamedAddress
    method: PaymentMethod
    tip: float
    allergies: Sequence[str]
    guest: str
    """Words about an allergy that is not in the profile; empty if there is none."""

    def arguments(self, case: DoordashCase) -> dict[str, object]:
        """The arguments of the call that places the order."""
        return {
            "customer_id": case.customer.customer_id,
            "restaurant_id": self.restaurant.restaurant_id,
            "items": [choice.arguments for choice in self.choices],
            "address_label": self.destination.address.label,
            "payment_id": self.method.payment_id,
            "tip": self.tip,
            "allergies": list(self.allergies),
        }

    def to_order(self, case: DoordashCase) -> Order:
        """The draft as an order with all amounts."""
        order = Order(
            order_id="",
            customer_id=case.customer.customer_id,
            restaurant_id=self.restaurant.restaurant_id,
            restaurant_name=self.restaurant.name,
            status="placed",
            placed_at=NOW,
            address=self.destination.address,
            items=[choice.line for choice in self.choices],
            tip=self.tip,
            payment_id=self.method.payment_id,
        )
        update_amounts(order, self.restaurant, case.customer)
        return order


def place_order(case: DoordashCase) -> Request | None:
    """Ask for an order that the policy allows."""
    draft = _draw_order(case, is_open, case.draw_address)
    if draft is None:
        return None
    total = draft.to_order(case).total
    case.charge(draft.method.payment_id, total)
    restaurant, search = _name_restaurant(case, draft)
    items, item_reads = _name_items(case, draft)
    return Request(
        "place an order",
        _describe_order(case, draft, restaurant=restaurant, items=items),
        [*search, *_reads(draft), *item_reads],
        [*draft.destination.writes, ("create_order", draft.arguments(case))],
        questions=question("the exact total that is charged", format_amount(total)),
    )


def order_from_closed_restaurant(case: DoordashCase) -> Request | None:
    """Ask for an order from a restaurant that is closed or paused."""
    draft = _draw_order(case, lambda restaurant: not is_open(restaurant))
    if draft is None:
        return None
    return _refused(case, "order from a closed restaurant", draft)


def order_outside_zone(case: DoordashCase) -> Request | None:
    """Ask for an order to an address that the restaurant does not deliver to."""
    draft = _draw_order(case, is_open)
    if draft is None:
        return None
    outside = [
        address
        for address in case.customer.addresses.values()
        if address.zone not in draft.restaurant.delivers_to
    ]
    if not outside:
        return None
    address = case.rng.choice(outside)
    destination = NamedAddress(address, f"{{your}} {address.label} address")
    questions = question("in which part of town the restaurant itself is", draft.restaurant.zone)
    return _refused(
        case, "order beyond the zone", draft._replace(destination=destination), questions
    )


def order_below_minimum(case: DoordashCase) -> Request | None:
    """Ask for an order below the restaurant's minimum."""
    draft = _draw_order(case, is_open)
    if draft is None:
        return None
    small = [
        choice
        for item in safe_items(case, draft.restaurant, draft.allergies)
        if (choice := draw_choice(case, item, 1)).price < draft.restaurant.minimum_order
    ]
    if not small:
        return None
    questions = question(
        "by how many dollars that misses the minimum, if it does",
        format_amount(draft.restaurant.minimum_order - small[0].price),
    )
    reduced = draft._replace(choices=small[:1])
    return _refused(case, "order below the minimum", reduced, questions, more=" and nothing else")


def order_allergen(case: DoordashCase) -> Request | None:
    """Ask for an item that contains an allergen of the profile."""
    draft = _draw_order(case, is_open)
    allergies = set(case.customer.allergies)
    if draft is None or not allergies:
        return None
    risky = [item for item in case.menu(draft.restaurant) if allergies & set(item.allergens)]
    if not risky:
        return None
    item = case.rng.choice(risky)
    choices = [draw_choice(case, item, 1), *draft.choices]
    allergen = min(allergies & set(item.allergens))
    questions = question("which of {your} allergens is in it, if any", allergen)
    return _refused(case, "order an allergen", draft._replace(choices=choices), questions)


def _draw_order(
    case: DoordashCase,
    fits: Callable[[Restaurant], bool],
    draw_address: Callable[[Collection[str]], NamedAddress | None] | None = None,
) -> OrderDraft | None:
    if not case.take_once("new order"):
        return None
    zones = {address.zone for address in case.customer.addresses.values()}
    # "My order from this restaurant" must mean one order.
    ordered_from = {order.restaurant_id for order in case.orders}
    restaurants = [
        restaurant
        for restaurant in case.database.restaurants.values()
        if fits(restaurant)
        and zones & set(restaurant.delivers_to)
        and restaurant.restaurant_id not in ordered_from
    ]
    allergies, guest = _draw_allergies(case)
    restaurant = case.rng.choice(restaurants)
    choices = draw_basket(case, restaurant, allergies)
    # A forbidden order uses a saved address: whether a new one should be saved would be unclear.
    destination = (draw_address or case.draw_saved_address)(restaurant.delivers_to)
    if not choices or destination is None:
        return None
    tip = float(case.rng.choice((0, 0, 2, 3, 4, 5)))
    for method in case.shuffled(case.customer.payment_methods.values()):
        draft = OrderDraft(restaurant, choices, destination, method, tip, allergies, guest)
        if case.can_pay(method.payment_id, draft.to_order(case).total):
            return draft
    return None


def _draw_allergies(case: DoordashCase) -> tuple[list[str], str]:
    allergies = case.customer.allergies
    others = [allergen for allergen in ALLERGENS if allergen not in allergies]
    if not case.omits_detail() or case.rng.random() < 0.5:
        return allergies, ""
    allergen = case.rng.choice(others)
    guest = f", for {case.rng.choice(_GUESTS)} who is allergic to {allergen},"
    return sorted([*allergies, allergen]), guest


def _describe_order(
    case: DoordashCase, draft: OrderDraft, *, restaurant: str, items: str
) -> Wording:
    return draw_wording(
        case.rng,
        _ORDER_TEMPLATES,
        items=f"{items}{draft.guest}",
        place=restaurant,
        address=draft.destination.words,
        method=case.name_method(draft.method),
        tip=f"a tip of {format_amount(draft.tip)} dollars" if draft.tip else "no tip",
    )


def _name_restaurant(case: DoordashCase, draft: OrderDraft) -> tuple[str, list[Call]]:
    """The restaurant by name or by a description, and the calls that find it."""
    restaurant, zone = draft.restaurant, draft.destination.address.zone
    candidates = [
        other
        for other in case.database.restaurants.values()
        if other.cuisine == restaurant.cuisine and zone in other.delivers_to and is_open(other)
    ]
    is_best = sum(other.rating >= restaurant.rating for other in candidates) == 1
    if not is_best or not case.omits_detail():
        return restaurant.name, [("search_restaurants", {"name": restaurant.name})]
    search = ("search_restaurants", {"cuisine": restaurant.cuisine, "delivers_to": zone})
    reads = [read_restaurant(other) for other in candidates]
    words = f"the best rated open {restaurant.cuisine} restaurant that delivers to the address"
    return words, [search, *reads]


def _name_items(case: DoordashCase, draft: OrderDraft) -> tuple[str, list[Call]]:
    """The items in words, possibly with a conditional item that the allergies rule out."""
    words = describe_basket(case, draft.restaurant, draft.choices)
    risky = [
        item
        for item in case.menu(draft.restaurant)
        if set(item.allergens) & set(draft.allergies) and not item.options
    ]
    if not risky or not case.omits_detail():
        return words, []
    item = case.rng.choice(risky)
    condition = f"and also 1 {item.name} provided that it has none of the allergens to avoid"
    return f"{words} {condition}", [read_item(item.item_id)]


def _reads(draft: OrderDraft) -> list[Call]:
    reads = [read_restaurant(draft.restaurant), read_menu(draft.restaurant)]
    return [*reads, *(read_item(choice.item.item_id) for choice in draft.choices)]


def _refused(
    case: DoordashCase,
    purpose: str,
    draft: OrderDraft,
    questions: Sequence[Question] = (),
    *,
    more: str = "",
) -> Request:
    items = join_words([choice.words for choice in draft.choices])
    wording = _describe_order(case, draft, restaurant=draft.restaurant.name, items=f"{items}{more}")
    search = ("search_restaurants", {"name": draft.restaurant.name})
    return Request(purpose, wording, [search, *_reads(draft)], questions=questions)
