"""Texts and gold calls of a retail task, written from its requests."""

from collections.abc import Sequence
from random import Random

from grpo_cl.envs.generation.requests import Call, Question, Request
from grpo_cl.envs.generation.scenario import (
    Phrases,
    draw_question,
    manner_sentences,
    purpose_of,
    reason_for_call,
    request_sentences,
    ticket_text,
)
from grpo_cl.envs.generation.tasks import TaskSpec
from grpo_cl.envs.generation.varied_texts import (
    DETAIL,
    RequestClauses,
    TextFacts,
    asked_question,
    draw_unknown,
    phrase_request,
    write_varied_texts,
)
from grpo_cl.envs.retail.generator.case import RetailCase, read_order
from grpo_cl.envs.retail.generator.phrasings import BACKGROUND, PHRASINGS, UNKNOWN, everyday

QUESTION_SHARE = 0.4
"""Share of tasks at difficulty 1 in which the customer asks for an amount."""

PHRASES = Phrases(
    first_openings=(
        "{You} want to",
        "{You} would like to",
        "{You} wish to",
        "{You} need to",
        "{You} have decided to",
    ),
    next_openings=(
        "{You} also want to",
        "In addition, {you} want to",
        "{You} would also like to",
        "Besides that, {you} need to",
        "Another thing {you} want is to",
    ),
    fallbacks=(
        "if that is not possible, {you} want it left exactly as it is",
        "if it cannot be done, {you} want nothing else done instead",
        "if the rules do not allow it, {you} accept that and want no alternative",
    ),
    questions=(
        "and {you} want to be told {subject}",
        "and {you} want to know {subject}",
        "and {you} ask for {subject}",
    ),
    confirmations=(
        "When the agent lists details that match your request, you say yes.",
        "You confirm every action that is exactly what you asked for.",
        "If the agent asks for confirmation and the details are right, you agree.",
        "You say yes to details that fit your request and correct those that do not.",
    ),
    personas=(
        "You are polite and patient.",
        "You are in a hurry and keep your answers short.",
        "You are friendly and a little forgetful.",
        "You are precise and dislike small talk.",
        "You are suspicious of companies but stay civil.",
        "You are cheerful and easily side-tracked.",
        "You are tired and answer only what you are asked.",
        "You are formal and write in whole sentences.",
    ),
    asides=(
        "You mention that your cousin recommended this shop to you.",
        "You complain once that the parcel service always rings at the wrong door.",
        "You talk about the weather before you come to the point.",
        "You say that you are planning a party for next month, which has no bearing on your "
        "request.",
        "You mention that you saw an advertisement for the shop on a bus.",
        "You say that your dog is barking in the background.",
        "You mention that you once worked in a shop yourself.",
        "You tell the agent that your internet connection is slow today.",
    ),
    ticket_openings=(
        "{name} ({identity}) has written in and confirms every change described here.",
        "Request from {name}, {identity}; all details below are already confirmed.",
        "The customer is {name}, {identity}, and has agreed to each action below.",
        "{name} contacted the shop, gave {identity}, and confirmed what follows.",
    ),
)


def write_spec(case: RetailCase, requests: Sequence[Request]) -> TaskSpec:
    """The task in which the customer makes all the requests."""
    user = case.user
    name = f"{user.name.first_name} {user.name.last_name}"
    by_zip = case.chance(0.7)
    label, value = ("zip code", user.address.zip) if by_zip else ("email", user.email)
    question = draw_question(case, requests, QUESTION_SHARE)
    sentences = request_sentences(case, requests, PHRASES, question)
    opening = case.rng.choice(PHRASES.ticket_openings)
    return TaskSpec(
        purpose=purpose_of(requests),
        reason_for_call=reason_for_call(sentences),
        known_info=_known_info(case, f"You are {name} and your {label} is {value}."),
        unknown_info=_unknown_info(case, by_zip=by_zip),
        task_instructions=_instructions(case),
        ticket=ticket_text([opening.format(name=name, identity=f"{label} {value}")], sentences),
        actions=_gold_calls(case, requests, by_zip=by_zip),
        communicate_info=[question.answer] if question else [],
        is_refusal=not any(request.writes for request in requests),
    )


def write_varied_spec(case: RetailCase, requests: Sequence[Request]) -> TaskSpec:
    """The same task as ``write_spec`` makes, in varied texts."""
    spec = write_spec(case, requests)
    question = asked_question(requests, spec)
    by_zip = spec.actions[0][0] == "find_user_id_by_name_zip"
    user, city = case.user, case.user.address.city

    def draw(rng: Random) -> TextFacts:
        return TextFacts(
            f"{user.name.first_name} {user.name.last_name}",
            rng.choice(("zip code", "zip code", "zipcode", "zip")) if by_zip else "email",
            user.address.zip if by_zip else user.email,
            [_phrase(request, question, rng) for request in requests],
            notes=[f"{{Your}} user id is {user.user_id}."] if "user id" in spec.known_info else [],
            unknown=draw_unknown(spec, UNKNOWN, rng),
            home=rng.choice((city, f"{city}, {user.address.state}")) if by_zip else "",
            level=case.level,
        )

    return spec._replace(**write_varied_texts(draw, BACKGROUND, Random(spec.ticket))._asdict())


def _phrase(request: Request, question: Question | None, rng: Random) -> RequestClauses:
    phrased = phrase_request(request, question, PHRASINGS, rng)
    clause, *details = everyday(DETAIL.join((phrased.clause, *phrased.details)), rng).split(DETAIL)
    return phrased._replace(clause=clause, details=details)


def _known_info(case: RetailCase, introduction: str) -> str:
    if case.chance(0.2):
        return f"{introduction} Your user id is {case.user.user_id}."
    return introduction


def _unknown_info(case: RetailCase, *, by_zip: bool) -> str | None:
    gaps: list[str] = []
    if by_zip:
        gaps.append("You do not remember your email address.")
    if case.has_described_order:
        gaps.append("You do not remember the id of an order you describe by what is in it.")
    return " ".join(gaps) or None


def _instructions(case: RetailCase) -> str:
    sentences = manner_sentences(case, PHRASES)
    untouched = [order for order in case.orders if order.order_id not in case.used]
    if untouched and case.chance(0.5):
        item = case.rng.choice(case.rng.choice(untouched).items)
        sentences.append(f"You mention another order, one with the {item.name}, that is fine.")
    return " ".join(sentences)


def _gold_calls(case: RetailCase, requests: Sequence[Request], *, by_zip: bool) -> list[Call]:
    user = case.user
    calls: list[Call] = [("find_user_id_by_email", {"email": user.email})]
    if by_zip:
        name = {"first_name": user.name.first_name, "last_name": user.name.last_name}
        calls = [("find_user_id_by_name_zip", {**name, "zip": user.address.zip})]
    if case.needs_profile or case.has_described_order:
        calls.append(("get_user_details", {"user_id": user.user_id}))
    if case.has_described_order:
        calls += [read_order(order) for order in case.orders]
    for request in requests:
        calls += [call for call in request.reads if call not in calls]
        calls += request.writes
    return calls
