"""Requests for a new order, allowed and forbidden."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from grpo_cl.domains.doordash.database import (
    ALLERGENS,
    NOW,
    Order,
    PaymentMethod,
    Restaurant,
)
from grpo_cl.domains.doordash.rules import is_open, settle
from grpo_cl.domains.generators.doordash.case import (
    Call,
    Case,
    Destination,
    Request,
    forbidden,
    read_item,
    read_menu,
    read_restaurant,
)
from grpo_cl.domains.generators.doordash.goods import (
    Pick,
    basket,
    basket_words,
    pick,
    safe_items,
)
from grpo_cl.domains.generators.doordash.wording import Wording, listing, number, word

_ORDER_WORDS = (
    "order {items} from {place}, paid with {method} and with {tip}, to {address}",
    "place an order for {items} from {place}, with {tip} and paid by {method}, to {address}",
    "get {items} from {place}, with {tip}, charged to {method}, delivered to {address}",
)
_GUESTS = ("a friend", "{your} sister", "a colleague", "{your} neighbour")


class Plan(NamedTuple):
    """An order that could be placed."""

    restaurant: Restaurant
    picks: Sequence[Pick]
    destination: Destination
    method: PaymentMethod
    tip: float
    allergies: Sequence[str]
    guest: str = ""
    """Words about somebody's allergy that is not in the profile."""

    def arguments(self, case: Case) -> dict[str, object]:
        """What places it."""
        return {
            "customer_id": case.customer.customer_id,
            "restaurant_id": self.restaurant.restaurant_id,
            "items": [each.arguments for each in self.picks],
            "address_label": self.destination.address.label,
            "payment_id": self.method.payment_id,
            "tip": self.tip,
            "allergies": list(self.allergies),
        }

    def priced(self, case: Case) -> Order:
        """The order with all amounts."""
        order = Order(
            order_id="",
            customer_id=case.customer.customer_id,
            restaurant_id=self.restaurant.restaurant_id,
            restaurant_name=self.restaurant.name,
            status="placed",
            placed_at=NOW,
            address=self.destination.address,
            items=[each.line for each in self.picks],
            tip=self.tip,
            payment_id=self.method.payment_id,
        )
        settle(order, self.restaurant, case.customer)
        return order


def order(case: Case) -> Request | None:
    """Place an order that every rule allows."""
    plan = _plan(case, is_open, case.destination)
    if plan is None:
        return None
    priced = plan.priced(case)
    case.charge(plan.method.payment_id, priced.total)
    place, search = _place(case, plan)
    items, more = _items_words(case, plan)
    return Request(
        "place an order",
        _words(case, plan, place=place, items=items),
        [*search, *_reads(plan), *more],
        [*plan.destination.writes, ("create_order", plan.arguments(case))],
        subject="the exact total that is charged",
        answer=number(priced.total),
    )


def closed(case: Case) -> Request | None:
    """Order from a restaurant that takes no orders now."""
    plan = _plan(case, lambda restaurant: not is_open(restaurant))
    if plan is None:
        return None
    return _refused(case, "order from a closed restaurant", plan)


def too_far(case: Case) -> Request | None:
    """Order to an address that the restaurant does not deliver to."""
    plan = _plan(case, is_open)
    if plan is None:
        return None
    far = [
        address
        for address in case.customer.addresses.values()
        if address.zone not in plan.restaurant.delivers_to
    ]
    if not far:
        return None
    address = case.rng.choice(far)
    there = Destination(address, f"{{your}} {address.label} address")
    tells = {"in which part of town the restaurant itself is": plan.restaurant.zone}
    return _refused(case, "order beyond the zone", plan._replace(destination=there), tells)


def too_little(case: Case) -> Request | None:
    """Order less than the restaurant's minimum."""
    plan = _plan(case, is_open)
    if plan is None:
        return None
    small = [
        each
        for item in safe_items(case, plan.restaurant, plan.allergies)
        if (each := pick(case, item, 1)).price < plan.restaurant.minimum_order
    ]
    if not small:
        return None
    tells = {
        "by how many dollars that misses the minimum, if it does": number(
            plan.restaurant.minimum_order - small[0].price
        )
    }
    less = plan._replace(picks=small[:1])
    return _refused(case, "order below the minimum", less, tells, more=" and nothing else")


def allergenic(case: Case) -> Request | None:
    """Order something that contains an allergen of the profile."""
    plan = _plan(case, is_open)
    own = set(case.customer.allergies)
    if plan is None or not own:
        return None
    risky = [item for item in case.menu(plan.restaurant) if own & set(item.allergens)]
    if not risky:
        return None
    item = case.rng.choice(risky)
    picks = [pick(case, item, 1), *plan.picks]
    tells = {"which of {your} allergens is in it, if any": min(own & set(item.allergens))}
    return _refused(case, "order an allergen", plan._replace(picks=picks), tells)


def _plan(
    case: Case,
    fits: Callable[[Restaurant], bool],
    destine: Callable[[Collection[str]], Destination | None] | None = None,
) -> Plan | None:
    if not case.take_once("new order"):
        return None
    zones = {address.zone for address in case.customer.addresses.values()}
    # "My order from there" must stay clear.
    known = {order.restaurant_id for order in case.orders}
    near = [
        restaurant
        for restaurant in case.database.restaurants.values()
        if fits(restaurant)
        and zones & set(restaurant.delivers_to)
        and restaurant.restaurant_id not in known
    ]
    allergies, guest = _allergies(case)
    restaurant = case.rng.choice(near)
    picks = basket(case, restaurant, allergies)
    # A refused order leaves open whether a new address should be saved, so it goes to a saved one.
    destination = (destine or case.saved_destination)(restaurant.delivers_to)
    if not picks or destination is None:
        return None
    tip = float(case.rng.choice((0, 0, 2, 3, 4, 5)))
    for method in case.shuffled(case.customer.payment_methods.values()):
        plan = Plan(restaurant, picks, destination, method, tip, allergies, guest)
        if case.can_pay(method.payment_id, plan.priced(case).total):
            return plan
    return None


def _allergies(case: Case) -> tuple[list[str], str]:
    own = case.customer.allergies
    others = [allergen for allergen in ALLERGENS if allergen not in own]
    if not case.hides() or case.rng.random() < 0.5:
        return own, ""
    told = case.rng.choice(others)
    return sorted([*own, told]), f", for {case.rng.choice(_GUESTS)} who is allergic to {told},"


def _words(case: Case, plan: Plan, *, place: str, items: str) -> Wording:
    return word(
        case.rng,
        _ORDER_WORDS,
        items=f"{items}{plan.guest}",
        place=place,
        address=plan.destination.words,
        method=case.name_method(plan.method),
        tip=f"a tip of {number(plan.tip)} dollars" if plan.tip else "no tip",
    )


def _place(case: Case, plan: Plan) -> tuple[str, list[Call]]:
    """The restaurant's name, or what sets it apart, and the search that finds it."""
    restaurant, zone = plan.restaurant, plan.destination.address.zone
    rivals = [
        other
        for other in case.database.restaurants.values()
        if other.cuisine == restaurant.cuisine and zone in other.delivers_to and is_open(other)
    ]
    is_best = sum(other.rating >= restaurant.rating for other in rivals) == 1
    if not is_best or not case.hides():
        return restaurant.name, [("search_restaurants", {"name": restaurant.name})]
    search = ("search_restaurants", {"cuisine": restaurant.cuisine, "delivers_to": zone})
    looks = [read_restaurant(other) for other in rivals]
    words = f"the best rated open {restaurant.cuisine} restaurant that delivers to the address"
    return words, [search, *looks]


def _items_words(case: Case, plan: Plan) -> tuple[str, list[Call]]:
    """The items, one of them perhaps as the second choice after something with an allergen."""
    words = basket_words(case, plan.restaurant, plan.picks)
    risky = [
        item
        for item in case.menu(plan.restaurant)
        if _bad(item.allergens, plan.allergies) and not item.options
    ]
    if not risky or not case.hides():
        return words, []
    wish = case.rng.choice(risky)
    proviso = f"and also 1 {wish.name} provided that it has none of the allergens to avoid"
    return f"{words} {proviso}", [read_item(wish.item_id)]


def _bad(allergens: Collection[str], allergies: Collection[str]) -> bool:
    return bool(set(allergens) & set(allergies))


def _reads(plan: Plan) -> list[Call]:
    reads = [read_restaurant(plan.restaurant), read_menu(plan.restaurant)]
    return [*reads, *(read_item(each.item.item_id) for each in plan.picks)]


def _refused(
    case: Case, purpose: str, plan: Plan, tells: dict[str, str] | None = None, *, more: str = ""
) -> Request:
    items = listing([each.words for each in plan.picks])
    wording = _words(case, plan, place=plan.restaurant.name, items=f"{items}{more}")
    search = ("search_restaurants", {"name": plan.restaurant.name})
    return forbidden(purpose, wording, [search, *_reads(plan)], tells=tells)
