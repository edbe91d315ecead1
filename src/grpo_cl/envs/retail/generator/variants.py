"""How retail customers describe the items of an order and the variants of a product."""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from inspect_evals.tau2.retail.data_model import Order, OrderItem, Variant

from grpo_cl.envs.retail.generator.case import RetailCase


class VariantChoice(NamedTuple):
    """A variant and words that fit no other variant."""

    variant: Variant
    words: str


class Variants(NamedTuple):
    """The variants of the product of ``item``."""

    item: OrderItem
    available: Sequence[Variant]
    """Includes the variant of the item if it is available."""
    unavailable: Sequence[Variant]
    """Excludes the variant of the item."""

    @property
    def others(self) -> list[Variant]:
        """Available variants that differ from the item."""
        return [variant for variant in self.available if variant.item_id != self.item.item_id]


def single_items(order: Order) -> list[OrderItem]:
    """The items whose id occurs once in the order, so that the id identifies the item."""
    ids = [item.item_id for item in order.items]
    return [item for item in order.items if ids.count(item.item_id) == 1]


def name_item(case: RetailCase, order: Order, item: OrderItem) -> str:
    """The item, with its options or id if the product name is ambiguous."""
    products = [other.product_id for other in order.items]
    if products.count(item.product_id) == 1 and case.omits_detail():
        return f"the {item.name}"
    if case.omits_detail() or case.rng.random() < 0.5:
        return f"the {item.name} ({options_words(item.options)})"
    return f"the {item.name} (item {item.item_id})"


def options_words(options: dict[str, str]) -> str:
    """All options with their values."""
    return ", ".join(f"{name}: {value}" for name, value in options.items())


def variants_of(case: RetailCase, item: OrderItem) -> Variants:
    """The variants of the item's product."""
    variants = case.products[item.product_id].variants.values()
    return Variants(
        item,
        [variant for variant in variants if variant.available],
        [v for v in variants if not v.available and v.item_id != item.item_id],
    )


def choose_variant(case: RetailCase, item: OrderItem) -> VariantChoice | None:
    """Another available variant of the same product; None if there is none."""
    variants = variants_of(case, item)
    if not variants.others:
        return None
    if case.omits_detail():
        for describe in case.shuffled(_DESCRIPTIONS):
            if choice := describe(case.rng, variants):
                return choice
    variant = case.rng.choice(variants.others)
    number = "" if case.omits_detail() or case.rng.random() < 0.5 else f" (item {variant.item_id})"
    return VariantChoice(variant, f"the one with {options_words(variant.options)}{number}")


def _by_one_option(rng: Random, variants: Variants) -> VariantChoice | None:
    options = variants.item.options
    similar = [(v, changed) for v in variants.others if len(changed := _changes(options, v)) == 1]
    if not similar:
        return None
    variant, changed = rng.choice(similar)
    return VariantChoice(
        variant, f"one with {options_words(changed)} and everything else unchanged"
    )


def _by_unique_option(rng: Random, variants: Variants) -> VariantChoice | None:
    unique = [
        (variant, name)
        for variant in variants.others
        for name, value in _changes(variants.item.options, variant).items()
        if [other.options[name] for other in variants.others].count(value) == 1
    ]
    if not unique:
        return None
    variant, name = rng.choice(unique)
    option = options_words({name: variant.options[name]})
    return VariantChoice(
        variant, f"whichever available one has {option} (the other options do not matter)"
    )


def _by_price(rng: Random, variants: Variants) -> VariantChoice | None:
    if rng.random() < 0.5:
        return _extreme(rng, variants, variants.available, "")
    name, value = rng.choice(list(rng.choice(variants.others).options.items()))
    fitting = [variant for variant in variants.available if variant.options[name] == value]
    return _extreme(rng, variants, fitting, f" with {name}: {value}")


def _extreme(
    rng: Random, variants: Variants, candidates: Sequence[Variant], option: str
) -> VariantChoice | None:
    ranked = sorted(candidates, key=lambda variant: variant.price)
    if len(ranked) < 2:
        return None
    words = "cheapest" if rng.random() < 0.5 else "most expensive"
    best, next_best = ranked[:2] if words == "cheapest" else ranked[:-3:-1]
    if best.price == next_best.price or best.item_id == variants.item.item_id:
        return None
    return VariantChoice(best, f"the {words} available one{option}")


def _by_fallback(rng: Random, variants: Variants) -> VariantChoice | None:
    if not variants.unavailable:
        return None
    preferred, variant = rng.choice(variants.unavailable), rng.choice(variants.others)
    return VariantChoice(
        variant,
        f"the one with {options_words(preferred.options)}, or if that is not available "
        f"the one with {options_words(variant.options)}",
    )


def _changes(options: dict[str, str], variant: Variant) -> dict[str, str]:
    return {name: value for name, value in variant.options.items() if options[name] != value}


_DESCRIPTIONS: tuple[Callable[[Random, Variants], VariantChoice | None], ...] = (
    _by_one_option,
    _by_unique_option,
    _by_price,
    _by_fallback,
)
