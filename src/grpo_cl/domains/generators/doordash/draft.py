"""The texts and gold calls of a customer's call, once its requests are known."""

from collections.abc import Sequence

from grpo_cl.domains.generators.doordash.case import Call, Case, Request, read_order
from grpo_cl.domains.generators.doordash.wording import (
    ASIDES,
    CONSENTS,
    FIRST_OPENINGS,
    LAST_RESORTS,
    MANNERS,
    NEXT_OPENINGS,
    QUESTIONS,
    SECOND_PERSON,
    THIRD_PERSON,
    TICKET_OPENINGS,
    Wording,
    listing,
    speak,
    word,
)
from grpo_cl.domains.generators.draft import Draft

_SHORTEST_ANSWER = 4
"""Characters; a shorter one could be found in a message by accident."""
_ASKED_SHARE, _ASKED_REFUSED_SHARE = 0.4, 0.8
"""Tasks at difficulty 1 in which something has to be told, with writes and without."""


def draft(case: Case, requests: Sequence[Request]) -> Draft:
    """The task in which the customer asks for all the requests."""
    customer = case.customer
    by_phone = case.rng.random() < 0.5 * case.level
    label, value = ("phone number", customer.phone) if by_phone else ("email", customer.email)
    is_refusal = not any(request.writes for request in requests)
    asker = _asker(case, requests, _ASKED_REFUSED_SHARE if is_refusal else _ASKED_SHARE)
    texts = [
        _sentence(case, request, is_first=request is requests[0], is_asked=request is asker)
        for request in requests
    ]
    opening = case.rng.choice(TICKET_OPENINGS)
    opening = opening.format(name=customer.name, identity=f"{label} {value}")
    return Draft(
        purpose="; ".join(
            request.purpose if request.writes else f"refused: {request.purpose}"
            for request in requests
        ),
        reason_for_call=" ".join(speak(text.asked, SECOND_PERSON) for text in texts),
        known_info=_known_info(case, f"You are {customer.name} and your {label} is {value}."),
        unknown_info=_unknown_info(case, by_phone=by_phone),
        task_instructions=_instructions(case),
        ticket=" ".join([opening, *(speak(text.filed, THIRD_PERSON) for text in texts)]),
        actions=_actions(case, requests, by_phone=by_phone),
        communicate_info=[asker.answer] if asker else [],
        is_refusal=is_refusal,
    )


def _sentence(case: Case, request: Request, *, is_first: bool, is_asked: bool) -> Wording:
    rng = case.rng
    text = word(rng, FIRST_OPENINGS if is_first else NEXT_OPENINGS).then(request.wording, " ")
    if is_asked:
        text = text.then(word(rng, QUESTIONS, subject=request.subject), ", ")
    if request.closing:
        text = text.then(Wording(request.closing, request.closing), "; ")
    elif not request.writes or rng.random() < 0.3 * case.level:
        text = text.then(word(rng, LAST_RESORTS), "; ")
    return Wording(f"{text.asked}.", f"{text.filed}.")


def _asker(case: Case, requests: Sequence[Request], share: float) -> Request | None:
    if case.rng.random() >= share * case.level:
        return None
    telling = [request for request in requests if len(request.answer) >= _SHORTEST_ANSWER]
    return case.rng.choice(telling) if telling else None


def _known_info(case: Case, introduction: str) -> str:
    allergies = case.customer.allergies
    if allergies and not case.hides():
        return f"{introduction} You are allergic to {listing(allergies)}."
    return introduction


def _unknown_info(case: Case, *, by_phone: bool) -> str | None:
    gaps = ["You do not remember the email of your account."] if by_phone else []
    if case.order_hidden:
        gaps.append("You do not remember the number of an order you name by its restaurant.")
    return " ".join(gaps) or None


def _instructions(case: Case) -> str:
    sentences = [case.rng.choice(CONSENTS)]
    if case.rng.random() < 0.2 + 0.8 * case.level:
        sentences.insert(0, case.rng.choice(MANNERS))
    if case.hides():
        sentences.append(case.rng.choice(ASIDES))
    return " ".join(sentences)


def _actions(case: Case, requests: Sequence[Request], *, by_phone: bool) -> list[Call]:
    customer = case.customer
    calls: list[Call] = [
        ("find_customer_by_phone", {"phone": customer.phone})
        if by_phone
        else ("find_customer_by_email", {"email": customer.email})
    ]
    if case.profile_needed or case.order_hidden:
        calls.append(("get_customer_details", {"customer_id": customer.customer_id}))
    if case.order_hidden:
        calls += [read_order(order) for order in case.orders]
    for request in requests:
        for call in request.reads:
            if call not in calls:
                calls.append(call)
        calls += request.writes
    return calls
