"""Requests for money back, allowed, forbidden, and for a person to decide."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpo_cl.domains.doordash.database import Destination, Order, Reason
from grpo_cl.domains.doordash.rules import (
    REFUND_LIMIT,
    is_in_refund_window,
    refund_amount,
    refunds_left,
)
from grpo_cl.domains.generators.doordash.case import Case, Request, forbidden, read_order
from grpo_cl.domains.generators.doordash.goods import line_words
from grpo_cl.domains.generators.doordash.wording import Wording, listing, number, word

_STORIES: dict[Reason, Sequence[str]] = {
    "missing": ("{items} never came", "{items} did not arrive"),
    "wrong": (
        "{you} got something else in place of {items}",
        "{items} turned out to be something else that {you} did not order",
    ),
    "damaged": ("{items} arrived spilled", "{items} came crushed"),
}
_WORDS = (
    "get a refund for {order}, where {story}, paid {target}",
    "get money back for {order} because {story}, and have it paid {target}",
)
_NO_REASONS = (
    "{items} did not taste good",
    "{items} arrived lukewarm",
    "the portion of {items} was small",
    "{you} changed {your} mind about {items}",
)
_TARGETS: dict[Destination, str] = {
    "original": "to what {you} paid the order with",
    "credits": "as credits to {your} account",
}


class Claim(NamedTuple):
    """Items of one order that something was wrong with."""

    order: Order
    quantities: dict[str, int]
    reason: Reason
    destination: Destination

    @property
    def amount(self) -> float:
        """What the claim is worth."""
        return refund_amount(self.order, self.quantities, self.reason)


def refund(case: Case) -> Request | None:
    """Get a refund that every rule allows."""
    if refunds_left(case.customer) - case.num_refunds <= 0:
        return None
    claim = _claim(case, lambda order: _is_due(case, order))
    if claim is None or claim.amount > REFUND_LIMIT:
        return None
    case.num_refunds += 1
    arguments = {
        "order_id": claim.order.order_id,
        "items": [
            {"item_id": item_id, "quantity": quantity}
            for item_id, quantity in claim.quantities.items()
        ],
        "reason": claim.reason,
        "destination": claim.destination,
    }
    case.profile_needed = True
    return Request(
        f"refund {claim.reason} items",
        _words(case, claim, _STORIES[claim.reason]),
        [read_order(claim.order)],
        [("request_refund", arguments)],
        subject="the exact amount of the refund",
        answer=number(claim.amount),
    )


def refund_late(case: Case) -> Request | None:
    """Ask for a refund after its time."""
    claim = _claim(
        case,
        lambda order: (
            order.refund is None
            and order.status == "delivered"
            and not is_in_refund_window(order, case.customer)
        ),
    )
    return _refused(case, "refund too late", claim)


def refund_taste(case: Case) -> Request | None:
    """Ask for a refund without a reason that counts."""
    claim = _claim(case, lambda order: _is_due(case, order))
    return _refused(case, "refund without a reason", claim, _NO_REASONS)


def refund_again(case: Case) -> Request | None:
    """Ask for a second refund of one order."""
    claim = _claim(case, lambda order: order.refund is not None)
    if claim is None or claim.order.refund is None:
        return None
    request = _refused(case, "refund a second time", claim)
    paid = number(claim.order.refund.amount)
    return request and request._replace(
        subject="what amount was given back for that order before", answer=paid
    )


def refund_beyond(case: Case) -> Request | None:
    """Ask for one refund more than a month allows."""
    if refunds_left(case.customer):
        return None
    return _refused(
        case, "refund beyond the limit", _claim(case, lambda order: _is_due(case, order))
    )


def refund_large(case: Case) -> Request | None:
    """Ask for a refund that a person must decide on."""
    if not refunds_left(case.customer):
        return None
    order = case.take(lambda order: _is_due(case, order) and order.subtotal > REFUND_LIMIT)
    if order is None:
        return None
    quantities = {line.item_id: line.quantity for line in order.items}
    claim = Claim(order, quantities, "missing", "original")
    request = _refused(case, "hand over a large refund", claim)
    summary = f"The customer wants a refund of {number(claim.amount)} for {order.order_id}."
    hand_over = ("transfer_to_human_agents", {"summary": summary})
    return request and request._replace(
        reads=[*request.reads, hand_over],
        closing="if a person has to decide on that, being passed on is fine",
    )


def _is_due(case: Case, order: Order) -> bool:
    return order.refund is None and is_in_refund_window(order, case.customer)


def _claim(case: Case, fits: Callable[[Order], bool]) -> Claim | None:
    order = case.take(fits)
    if order is None:
        return None
    lines = case.shuffled(order.items)[: 1 + case.hides()]
    quantities = {line.item_id: case.rng.randint(1, line.quantity) for line in lines}
    reason = case.rng.choice(list(_STORIES))
    return Claim(order, quantities, reason, case.rng.choice(list(_TARGETS)))


def _words(case: Case, claim: Claim, stories: Sequence[str]) -> Wording:
    lines = {line.item_id: line for line in claim.order.items}
    items = [line_words(lines[key], quantity) for key, quantity in claim.quantities.items()]
    facts = {
        "order": case.name_order(claim.order),
        "story": word(case.rng, stories, items=listing(items)).asked,
        "target": _TARGETS[claim.destination],
    }
    return word(case.rng, _WORDS, **facts)


def _refused(
    case: Case, purpose: str, claim: Claim | None, stories: Sequence[str] | None = None
) -> Request | None:
    if claim is None:
        return None
    case.profile_needed = True
    wording = _words(case, claim, stories or _STORIES[claim.reason])
    return forbidden(purpose, wording, [read_order(claim.order)])
