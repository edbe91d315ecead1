"""Items of an order and variants of a product, as retail customers describe them."""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from inspect_evals.tau2.retail.data_model import Order, OrderItem, Variant

from grpo_cl.domains.generators.retail.case import Case


class Choice(NamedTuple):
    """A variant, and words that leave no other."""

    variant: Variant
    words: str


class Shelf(NamedTuple):
    """What a customer who holds ``item`` can choose from."""

    item: OrderItem
    stock: Sequence[Variant]
    """Available variants, the item's own too if it is."""
    missing: Sequence[Variant]
    """Other variants that are not available."""

    @property
    def others(self) -> list[Variant]:
        """Available variants that differ from the item."""
        return [variant for variant in self.stock if variant.item_id != self.item.item_id]


def single_items(order: Order) -> list[OrderItem]:
    """The items whose id occurs once in the order, so that naming one is enough."""
    ids = [item.item_id for item in order.items]
    return [item for item in order.items if ids.count(item.item_id) == 1]


def name_item(case: Case, order: Order, item: OrderItem) -> str:
    """The item, with its options or id where the product alone would not do."""
    products = [other.product_id for other in order.items]
    if products.count(item.product_id) == 1 and case.hides():
        return f"the {item.name}"
    if case.hides() or case.rng.random() < 0.5:
        return f"the {item.name} ({options_words(item.options)})"
    return f"the {item.name} (item {item.item_id})"


def options_words(options: dict[str, str]) -> str:
    """Every option with its value."""
    return ", ".join(f"{name}: {value}" for name, value in options.items())


def shelf(case: Case, item: OrderItem) -> Shelf:
    """The variants of the item's product."""
    variants = case.products[item.product_id].variants.values()
    return Shelf(
        item,
        [variant for variant in variants if variant.available],
        [v for v in variants if not v.available and v.item_id != item.item_id],
    )


def choose_variant(case: Case, item: OrderItem) -> Choice | None:
    """An available variant of the same product other than the item, or None if there is none."""
    choices = shelf(case, item)
    if not choices.others:
        return None
    if case.hides():
        for way in case.shuffled(_WAYS):
            if choice := way(case.rng, choices):
                return choice
    variant = case.rng.choice(choices.others)
    number = "" if case.hides() or case.rng.random() < 0.5 else f" (item {variant.item_id})"
    return Choice(variant, f"the one with {options_words(variant.options)}{number}")


def _by_one_option(rng: Random, shelf: Shelf) -> Choice | None:
    held = shelf.item.options
    near = [(v, changed) for v in shelf.others if len(changed := _changes(held, v)) == 1]
    if not near:
        return None
    variant, changed = rng.choice(near)
    return Choice(variant, f"one with {options_words(changed)} and everything else unchanged")


def _by_trait(rng: Random, shelf: Shelf) -> Choice | None:
    traits = [
        (variant, name)
        for variant in shelf.others
        for name, value in _changes(shelf.item.options, variant).items()
        if [other.options[name] for other in shelf.others].count(value) == 1
    ]
    if not traits:
        return None
    variant, name = rng.choice(traits)
    trait = options_words({name: variant.options[name]})
    return Choice(variant, f"whichever available one has {trait} (the other options do not matter)")


def _by_price(rng: Random, shelf: Shelf) -> Choice | None:
    if rng.random() < 0.5:
        return _extreme(rng, shelf, shelf.stock, "")
    name, value = rng.choice(list(rng.choice(shelf.others).options.items()))
    fitting = [variant for variant in shelf.stock if variant.options[name] == value]
    return _extreme(rng, shelf, fitting, f" with {name}: {value}")


def _extreme(rng: Random, shelf: Shelf, variants: Sequence[Variant], trait: str) -> Choice | None:
    ranked = sorted(variants, key=lambda variant: variant.price)
    if len(ranked) < 2:
        return None
    words = "cheapest" if rng.random() < 0.5 else "most expensive"
    best, next_best = ranked[:2] if words == "cheapest" else ranked[:-3:-1]
    if best.price == next_best.price or best.item_id == shelf.item.item_id:
        return None
    return Choice(best, f"the {words} available one{trait}")


def _by_fallback(rng: Random, shelf: Shelf) -> Choice | None:
    if not shelf.missing:
        return None
    wish, variant = rng.choice(shelf.missing), rng.choice(shelf.others)
    return Choice(
        variant,
        f"the one with {options_words(wish.options)}, or if that is not available "
        f"the one with {options_words(variant.options)}",
    )


def _changes(held: dict[str, str], variant: Variant) -> dict[str, str]:
    return {name: value for name, value in variant.options.items() if held[name] != value}


_WAYS: tuple[Callable[[Random, Shelf], Choice | None], ...] = (
    _by_one_option,
    _by_trait,
    _by_price,
    _by_fallback,
)
