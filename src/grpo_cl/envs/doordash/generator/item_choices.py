"""Menu items that a customer chooses, and the customer's words for them."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from grpo_cl.envs.doordash.database import MenuItem, OrderItem, Restaurant
from grpo_cl.envs.doordash.generator.case import DoordashCase
from grpo_cl.envs.doordash.rules import cents, unit_price
from grpo_cl.envs.generation.wording import join_words


class ItemChoice(NamedTuple):
    """An item with its quantity and options."""

    item: MenuItem
    options: dict[str, str]
    quantity: int

    @property
    def price(self) -> float:
        """The price of the whole quantity."""
        return cents(unit_price(self.item, self.options) * self.quantity)

    @property
    def line(self) -> OrderItem:
        """The choice as an order line."""
        return OrderItem(
            item_id=self.item.item_id,
            name=self.item.name,
            options=self.options,
            quantity=self.quantity,
            unit_price=unit_price(self.item, self.options),
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The choice as arguments of a tool call."""
        arguments: dict[str, Any] = {"item_id": self.item.item_id, "quantity": self.quantity}
        return {**arguments, "options": self.options} if self.options else arguments

    @property
    def words(self) -> str:
        """Quantity, name and options."""
        return f"{self.quantity} {self.item.name}{describe_options(self.options)}"


def describe_options(options: dict[str, str]) -> str:
    """All options with their values, as a suffix of the item's name."""
    parts = [f"{name} {value}" for name, value in options.items()]
    return f" with {join_words(parts)}" if parts else ""


def draw_choice(case: DoordashCase, item: MenuItem, quantity: int) -> ItemChoice:
    """The item with random options."""
    options = {name: case.rng.choice(list(values)) for name, values in item.options.items()}
    return ItemChoice(item, options, quantity)


def safe_items(
    case: DoordashCase, restaurant: Restaurant, allergies: Collection[str]
) -> list[MenuItem]:
    """The restaurant's available items without these allergens, shuffled."""
    return case.shuffled(
        item for item in case.menu(restaurant) if not set(item.allergens) & set(allergies)
    )


def draw_basket(
    case: DoordashCase, restaurant: Restaurant, allergies: Collection[str]
) -> list[ItemChoice]:
    """A few safe items that reach the restaurant's minimum; empty if it has too few safe items."""
    items = safe_items(case, restaurant, allergies)
    if len(items) < 3:
        return []
    count = 1 + (case.rng.random() < 0.6) + case.omits_detail()
    choices = [draw_choice(case, item, case.rng.randint(1, 2)) for item in items[:count]]
    while total_price(choices) < restaurant.minimum_order:
        index = case.rng.randrange(count)
        choices[index] = choices[index]._replace(quantity=choices[index].quantity + 1)
    return choices


def total_price(choices: Sequence[ItemChoice]) -> float:
    """The price of the choices without fees."""
    return cents(sum(choice.price for choice in choices))


def describe_basket(
    case: DoordashCase, restaurant: Restaurant, choices: Sequence[ItemChoice]
) -> str:
    """The choices as an enumeration; one may be described as the cheapest of its section."""
    words = [choice.words for choice in choices]
    for index, choice in enumerate(choices):
        if (
            choice.quantity == 1
            and not choice.options
            and _is_cheapest(case, restaurant, choice.item)
        ):
            if case.omits_detail():
                words[index] = f"the cheapest of its {choice.item.section}"
            break
    return join_words(words)


def _is_cheapest(case: DoordashCase, restaurant: Restaurant, item: MenuItem) -> bool:
    section = [other for other in case.menu(restaurant) if other.section == item.section]
    return sum(other.price <= item.price for other in section) == 1


def describe_line(line: OrderItem, quantity: int) -> str:
    """A quantity of an order line in words."""
    if line.quantity == 1:
        return f"the {line.name}"
    if quantity == line.quantity:
        return f"both {line.name}" if quantity == 2 else f"all {quantity} {line.name}"
    return f"{quantity} of the {line.quantity} {line.name}"
