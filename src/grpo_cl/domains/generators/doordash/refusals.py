"""Requests that are not about the customer's own matters, or that a person must deal with."""

from grpo_cl.domains.generators.doordash.case import Case, Request, forbidden
from grpo_cl.domains.generators.doordash.wording import word

_HANDED_OVER = (
    "change the email of {your} account",
    "have the phone number of {your} account replaced",
    "add a new credit card to {your} profile",
    "end {your} pass before its last day",
    "complain that the dasher of {your} last order shouted at {you}",
    "report that the dasher of {your} last order threw the bag over the fence",
    "report that {you} had an allergic reaction to something {you} ordered",
    "report that {your} child fell ill after {your} last order",
)


def strange_order(case: Case) -> Request | None:
    """Cancel an order of somebody else."""
    order = case.rng.choice(case.strangers)
    if order.customer_id == case.customer.customer_id or not case.take_once("stranger"):
        return None
    case.profile_needed = True
    templates = (
        "cancel order number {order}, which a friend placed",
        "have order number {order} of {your} brother cancelled",
        "call off order number {order} for a neighbour",
    )
    wording = word(case.rng, templates, order=order.order_id)
    return forbidden("act on the order of another customer", wording, [])


def hand_over(case: Case) -> Request | None:
    """Ask for something that only a person may deal with."""
    wish = case.rng.choice(_HANDED_OVER)
    summary = f"The customer wants to {wish.format(your='their', you='them')}."
    request = forbidden(
        "be handed over",
        word(case.rng, [wish]),
        [("transfer_to_human_agents", {"summary": summary})],
    )
    return request._replace(closing="if a person has to see to that, being passed on is fine")
