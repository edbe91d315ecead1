"""Requests for refunds: allowed, forbidden, or to be transferred to a human."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpo_cl.envs.doordash.database import Order, RefundDestination, RefundReason
from grpo_cl.envs.doordash.generator.case import DoordashCase, read_order
from grpo_cl.envs.doordash.generator.item_choices import describe_line
from grpo_cl.envs.doordash.rules import (
    REFUND_LIMIT,
    is_in_refund_window,
    refund_amount,
    refunds_left,
)
from grpo_cl.envs.generation.requests import Request, question
from grpo_cl.envs.generation.wording import Wording, draw_wording, format_amount, join_words

_PROBLEMS: dict[RefundReason, Sequence[str]] = {
    "missing": ("{items} never came", "{items} did not arrive"),
    "wrong": (
        "{you} got something else in place of {items}",
        "{items} turned out to be something else that {you} did not order",
    ),
    "damaged": ("{items} arrived spilled", "{items} came crushed"),
}
_TEMPLATES = (
    "get a refund for {order}, where {story}, paid {target}",
    "get money back for {order} because {story}, and have it paid {target}",
)
_INVALID_REASONS = (
    "{items} did not taste good",
    "{items} arrived lukewarm",
    "the portion of {items} was small",
    "{you} changed {your} mind about {items}",
)
_DESTINATIONS: dict[RefundDestination, str] = {
    "original": "to what {you} paid the order with",
    "credits": "as credits to {your} account",
}


class RefundClaim(NamedTuple):
    """A claim for a refund of items of one order."""

    order: Order
    quantities: dict[str, int]
    reason: RefundReason
    destination: RefundDestination

    @property
    def amount(self) -> float:
        """The refund for the claim."""
        return refund_amount(self.order, self.quantities, self.reason)


def refund_items(case: DoordashCase) -> Request | None:
    """Ask for a refund that the policy allows."""
    if refunds_left(case.customer) - case.num_refunds <= 0:
        return None
    claim = _draw_claim(case, lambda order: _is_refundable(case, order))
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
    case.needs_profile = True
    return Request(
        f"refund {claim.reason} items",
        _describe_claim(case, claim, _PROBLEMS[claim.reason]),
        [read_order(claim.order)],
        [("request_refund", arguments)],
        questions=question("the exact amount of the refund", format_amount(claim.amount)),
    )


def refund_too_late(case: DoordashCase) -> Request | None:
    """Ask for a refund after the refund window."""
    claim = _draw_claim(
        case,
        lambda order: (
            order.refund is None
            and order.status == "delivered"
            and not is_in_refund_window(order, case.customer)
        ),
    )
    return _refused(case, "refund too late", claim)


def refund_without_reason(case: DoordashCase) -> Request | None:
    """Ask for a refund for a reason that the policy does not accept."""
    claim = _draw_claim(case, lambda order: _is_refundable(case, order))
    return _refused(case, "refund without a reason", claim, _INVALID_REASONS)


def refund_twice(case: DoordashCase) -> Request | None:
    """Ask for a second refund of the same order."""
    claim = _draw_claim(case, lambda order: order.refund is not None)
    if claim is None or claim.order.refund is None:
        return None
    request = _refused(case, "refund a second time", claim)
    amount = format_amount(claim.order.refund.amount)
    return request and request._replace(
        questions=question("what amount was given back for that order before", amount)
    )


def refund_beyond_monthly_limit(case: DoordashCase) -> Request | None:
    """Ask for a refund beyond the monthly number of refunds."""
    if refunds_left(case.customer):
        return None
    return _refused(
        case,
        "refund beyond the limit",
        _draw_claim(case, lambda order: _is_refundable(case, order)),
    )


def refund_above_limit(case: DoordashCase) -> Request | None:
    """Ask for a refund above ``REFUND_LIMIT``, which is transferred to a human."""
    if not refunds_left(case.customer):
        return None
    order = case.take_order(
        lambda order: _is_refundable(case, order) and order.subtotal > REFUND_LIMIT
    )
    if order is None:
        return None
    quantities = {line.item_id: line.quantity for line in order.items}
    claim = RefundClaim(order, quantities, "missing", "original")
    request = _refused(case, "hand over a large refund", claim)
    summary = f"The customer wants a refund of {format_amount(claim.amount)} for {order.order_id}."
    transfer = ("transfer_to_human_agents", {"summary": summary})
    fallback = "if a person has to decide on that, being passed on is fine"
    return request and request._replace(
        wording=request.wording.then(Wording(fallback, fallback), "; "),
        reads=[*request.reads, transfer],
        has_fallback=True,
    )


def _is_refundable(case: DoordashCase, order: Order) -> bool:
    return order.refund is None and is_in_refund_window(order, case.customer)


def _draw_claim(case: DoordashCase, fits: Callable[[Order], bool]) -> RefundClaim | None:
    order = case.take_order(fits)
    if order is None:
        return None
    lines = case.shuffled(order.items)[: 1 + case.omits_detail()]
    quantities = {line.item_id: case.rng.randint(1, line.quantity) for line in lines}
    reason = case.rng.choice(list(_PROBLEMS))
    return RefundClaim(order, quantities, reason, case.rng.choice(list(_DESTINATIONS)))


def _describe_claim(case: DoordashCase, claim: RefundClaim, problems: Sequence[str]) -> Wording:
    lines = {line.item_id: line for line in claim.order.items}
    items = [describe_line(lines[key], quantity) for key, quantity in claim.quantities.items()]
    facts = {
        "order": case.name_order(claim.order),
        "story": draw_wording(case.rng, problems, items=join_words(items)).asked,
        "target": _DESTINATIONS[claim.destination],
    }
    return draw_wording(case.rng, _TEMPLATES, **facts)


def _refused(
    case: DoordashCase,
    purpose: str,
    claim: RefundClaim | None,
    problems: Sequence[str] | None = None,
) -> Request | None:
    if claim is None:
        return None
    case.needs_profile = True
    wording = _describe_claim(case, claim, problems or _PROBLEMS[claim.reason])
    return Request(purpose, wording, [read_order(claim.order)])
