"""The texts and gold calls of a retail customer's call, once its requests are known."""

from collections.abc import Sequence

from grpo_cl.domains.generators.draft import Draft
from grpo_cl.domains.generators.retail.case import Call, Case, Request, read_order
from grpo_cl.domains.generators.retail.wording import (
    CONFIRMATIONS,
    DISTRACTIONS,
    FIRST_OPENINGS,
    LAST_RESORTS,
    NEXT_OPENINGS,
    PERSONAS,
    QUESTIONS,
    SECOND_PERSON,
    THIRD_PERSON,
    TICKET_OPENINGS,
    Wording,
    speak,
    word,
)

_SHORTEST_NUMBER = 4
"""Characters; a shorter number could be found in an answer by accident."""


def draft(case: Case, requests: Sequence[Request]) -> Draft:
    """The task in which the customer asks for all the requests."""
    user = case.user
    name = f"{user.name.first_name} {user.name.last_name}"
    by_zip = case.rng.random() < 0.7 * case.level
    label, value = ("zip code", user.address.zip) if by_zip else ("email", user.email)
    asker = _asker(case, requests)
    texts = [
        _sentence(case, request, is_first=request is requests[0], is_asked=request is asker)
        for request in requests
    ]
    opening = case.rng.choice(TICKET_OPENINGS).format(name=name, identity=f"{label} {value}")
    return Draft(
        purpose="; ".join(
            request.purpose if request.writes else f"refused: {request.purpose}"
            for request in requests
        ),
        reason_for_call=" ".join(speak(text.asked, SECOND_PERSON) for text in texts),
        known_info=_known_info(case, f"You are {name} and your {label} is {value}."),
        unknown_info=_unknown_info(case, by_zip=by_zip),
        task_instructions=_instructions(case),
        ticket=" ".join([opening, *(speak(text.filed, THIRD_PERSON) for text in texts)]),
        actions=_actions(case, requests, by_zip=by_zip),
        communicate_info=[_number(asker.amount)] if asker else [],
        is_refusal=not any(request.writes for request in requests),
    )


def _sentence(case: Case, request: Request, *, is_first: bool, is_asked: bool) -> Wording:
    rng = case.rng
    asked, filed = request.wording
    if is_asked:
        question = word(rng, QUESTIONS, amount=request.amount_name)
        asked, filed = f"{asked}, {question.asked}", f"{filed}, {question.filed}"
    if request.closing:
        asked, filed = f"{asked}; {request.closing}", f"{filed}; {request.closing}"
    elif not request.writes or rng.random() < 0.3 * case.level:
        closing = word(rng, LAST_RESORTS)
        asked, filed = f"{asked}; {closing.asked}", f"{filed}; {closing.filed}"
    opening = word(rng, FIRST_OPENINGS if is_first else NEXT_OPENINGS)
    return Wording(f"{opening.asked} {asked}.", f"{opening.filed} {filed}.")


def _asker(case: Case, requests: Sequence[Request]) -> Request | None:
    if case.rng.random() >= 0.4 * case.level:
        return None
    numbers = [r for r in requests if len(_number(r.amount)) >= _SHORTEST_NUMBER]
    return case.rng.choice(numbers) if numbers else None


def _number(amount: float) -> str:
    # An agent may write 54.1 or 54.10; the shorter is part of both.
    return f"{amount:.2f}".rstrip("0").rstrip(".")


def _known_info(case: Case, introduction: str) -> str:
    if case.rng.random() < 0.2 * case.level:
        return f"{introduction} Your user id is {case.user.user_id}."
    return introduction


def _unknown_info(case: Case, *, by_zip: bool) -> str | None:
    gaps: list[str] = []
    if by_zip:
        gaps.append("You do not remember your email address.")
    if case.order_hidden:
        gaps.append("You do not remember the id of an order you describe by what is in it.")
    return " ".join(gaps) or None


def _instructions(case: Case) -> str:
    sentences = [case.rng.choice(CONFIRMATIONS)]
    if case.rng.random() < 0.2 + 0.8 * case.level:
        sentences.insert(0, case.rng.choice(PERSONAS))
    if case.hides():
        sentences.append(case.rng.choice(DISTRACTIONS))
    untouched = [order for order in case.orders if order.order_id not in case.used]
    if untouched and case.rng.random() < 0.5 * case.level:
        item = case.rng.choice(case.rng.choice(untouched).items)
        sentences.append(f"You mention another order, one with the {item.name}, that is fine.")
    return " ".join(sentences)


def _actions(case: Case, requests: Sequence[Request], *, by_zip: bool) -> list[Call]:
    user = case.user
    calls: list[Call] = [("find_user_id_by_email", {"email": user.email})]
    if by_zip:
        who = {"first_name": user.name.first_name, "last_name": user.name.last_name}
        calls = [("find_user_id_by_name_zip", {**who, "zip": user.address.zip})]
    if case.profile_needed or case.order_hidden:
        calls.append(("get_user_details", {"user_id": user.user_id}))
    if case.order_hidden:
        calls += [read_order(order) for order in case.orders]
    for request in requests:
        calls += [call for call in request.reads if call not in calls]
        calls += request.writes
    return calls
