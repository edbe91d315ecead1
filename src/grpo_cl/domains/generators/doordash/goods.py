"""Items chosen from menus and the customers' words for them."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from grpo_cl.domains.doordash.database import MenuItem, OrderItem, Restaurant
from grpo_cl.domains.doordash.rules import cents, unit_price
from grpo_cl.domains.generators.doordash.case import Case
from grpo_cl.domains.generators.doordash.wording import listing


class Pick(NamedTuple):
    """So many of an item, with its options chosen."""

    item: MenuItem
    options: dict[str, str]
    quantity: int

    @property
    def price(self) -> float:
        """Of all of them."""
        return cents(unit_price(self.item, self.options) * self.quantity)

    @property
    def line(self) -> OrderItem:
        """The pick as a line of an order."""
        return OrderItem(
            item_id=self.item.item_id,
            name=self.item.name,
            options=self.options,
            quantity=self.quantity,
            unit_price=unit_price(self.item, self.options),
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The pick as the tools take it."""
        line: dict[str, Any] = {"item_id": self.item.item_id, "quantity": self.quantity}
        return {**line, "options": self.options} if self.options else line

    @property
    def words(self) -> str:
        """Quantity, name and options."""
        return f"{self.quantity} {self.item.name}{options_words(self.options)}"


def options_words(options: dict[str, str]) -> str:
    """Every option with its choice, as a suffix."""
    named = [f"{name} {choice}" for name, choice in options.items()]
    return f" with {listing(named)}" if named else ""


def pick(case: Case, item: MenuItem, quantity: int) -> Pick:
    """So many of an item with options the customer likes."""
    options = {name: case.rng.choice(list(choices)) for name, choices in item.options.items()}
    return Pick(item, options, quantity)


def safe_items(case: Case, restaurant: Restaurant, allergies: Collection[str]) -> list[MenuItem]:
    """What the restaurant has without these allergens, shuffled."""
    return case.shuffled(
        item for item in case.menu(restaurant) if not set(item.allergens) & set(allergies)
    )


def basket(case: Case, restaurant: Restaurant, allergies: Collection[str]) -> list[Pick]:
    """A few safe items that reach the restaurant's minimum; empty if there are too few."""
    items = safe_items(case, restaurant, allergies)
    if len(items) < 3:
        return []
    count = 1 + (case.rng.random() < 0.6) + case.hides()
    picks = [pick(case, item, case.rng.randint(1, 2)) for item in items[:count]]
    while total(picks) < restaurant.minimum_order:
        place = case.rng.randrange(count)
        picks[place] = picks[place]._replace(quantity=picks[place].quantity + 1)
    return picks


def total(picks: Sequence[Pick]) -> float:
    """What the picks cost without fees."""
    return cents(sum(each.price for each in picks))


def basket_words(case: Case, restaurant: Restaurant, picks: Sequence[Pick]) -> str:
    """The picks as a list; one may be described as the cheapest of its section."""
    words = [each.words for each in picks]
    for place, each in enumerate(picks):
        if each.quantity == 1 and not each.options and _is_cheapest(case, restaurant, each.item):
            if case.hides():
                words[place] = f"the cheapest of its {each.item.section}"
            break
    return listing(words)


def _is_cheapest(case: Case, restaurant: Restaurant, item: MenuItem) -> bool:
    section = [other for other in case.menu(restaurant) if other.section == item.section]
    return sum(other.price <= item.price for other in section) == 1


def line_words(line: OrderItem, quantity: int) -> str:
    """So many of a line of an order."""
    if line.quantity == 1:
        return f"the {line.name}"
    if quantity == line.quantity:
        return f"both {line.name}" if quantity == 2 else f"all {quantity} {line.name}"
    return f"{quantity} of the {line.quantity} {line.name}"
