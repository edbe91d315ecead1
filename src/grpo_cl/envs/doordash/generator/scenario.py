"""Texts and gold calls of a doordash task, written from its requests."""

from collections.abc import Sequence
from random import Random

from grpo_cl.envs.doordash.generator.case import DoordashCase, read_order
from grpo_cl.envs.doordash.generator.phrasings import BACKGROUND, PHRASINGS, UNKNOWN
from grpo_cl.envs.generation.requests import Call, Question, Request
from grpo_cl.envs.generation.scenario import (
    Phrases,
    draw_opening,
    draw_question,
    full_sentence,
    manner_sentences,
    purpose_of,
    reason_for_call,
    request_body,
    request_calls,
    ticket_text,
)
from grpo_cl.envs.generation.tasks import TaskSpec
from grpo_cl.envs.generation.varied_texts import (
    TextFacts,
    asked_question,
    draw_unknown,
    phrase_request,
    write_varied_texts,
)
from grpo_cl.envs.generation.wording import Wording, join_words

QUESTION_SHARE, REFUSAL_QUESTION_SHARE = 0.4, 0.8
"""Shares of tasks at difficulty 1 with a question, among tasks with writes and without."""

PHRASES = Phrases(
    first_openings=("{You} want to", "{You} would like to", "{You} need to", "{You} are hoping to"),
    next_openings=(
        "{You} also want to",
        "{You} would also like to",
        "Then {you} want to",
        "As another matter {you} need to",
    ),
    fallbacks=(
        "if that cannot be done, {you} want everything left as it is",
        "if the rules forbid it, {you} want nothing in its place",
        "if it is not possible, {you} want no alternative",
    ),
    questions=(
        "and {you} want to know {subject}",
        "and {you} want to be told {subject}",
        "and {you} ask for {subject}",
    ),
    confirmations=(
        "You say yes to what matches your request.",
        "You confirm every step that is what you asked for.",
        "You give a clear yes once the details are right.",
    ),
    personas=(
        "You are polite but hungry.",
        "You are patient and speak slowly.",
        "You are annoyed by long answers.",
        "You are friendly and chat a lot.",
        "You are busy, with little time.",
        "You are nervous about getting it wrong.",
        "You are calm and exact.",
    ),
    asides=(
        "You mention that guests are coming tonight.",
        "You mention that the doorbell is broken.",
        "You say that your kitchen is being painted this week.",
        "You mention that you usually cook on Fridays.",
        "You say that the elevator in the building is slow.",
        "You mention that a friend told you about the service.",
    ),
    ticket_openings=(
        "{name} ({identity}) has asked for the following and agrees to all of it.",
        "Customer {name}, {identity}. What follows is confirmed.",
        "Request by {name}, {identity}, with consent to every change named here.",
    ),
)


def write_spec(case: DoordashCase, requests: Sequence[Request]) -> TaskSpec:
    """The task in which the customer makes all the requests."""
    customer = case.customer
    by_phone = case.chance(0.5)
    label, value = ("phone number", customer.phone) if by_phone else ("email", customer.email)
    is_refusal = not any(request.writes for request in requests)
    share = REFUSAL_QUESTION_SHARE if is_refusal else QUESTION_SHARE
    question = draw_question(case, requests, share)
    sentences = _sentences(case, requests, question)
    opening = case.rng.choice(PHRASES.ticket_openings)
    opening = opening.format(name=customer.name, identity=f"{label} {value}")
    return TaskSpec(
        purpose=purpose_of(requests),
        reason_for_call=reason_for_call(sentences),
        known_info=_known_info(case, f"You are {customer.name} and your {label} is {value}."),
        unknown_info=_unknown_info(case, by_phone=by_phone),
        task_instructions=" ".join(manner_sentences(case, PHRASES)),
        ticket=ticket_text([opening], sentences),
        actions=request_calls(_first_calls(case, by_phone=by_phone), requests, question),
        communicate_info=[question.answer] if question else [],
        is_refusal=is_refusal,
    )


def write_varied_spec(case: DoordashCase, requests: Sequence[Request]) -> TaskSpec:
    """The same task as ``write_spec`` makes, in varied texts."""
    spec = write_spec(case, requests)
    question = asked_question(requests, spec)
    by_phone = spec.actions[0][0] == "find_customer_by_phone"
    customer = case.customer
    allergies = [f"{{You}} {{are}} allergic to {join_words(customer.allergies or ['nothing'])}"]

    def draw(rng: Random) -> TextFacts:
        return TextFacts(
            customer.name,
            "phone number" if by_phone else "email",
            customer.phone if by_phone else customer.email,
            [phrase_request(request, question, PHRASINGS, rng) for request in requests],
            notes=allergies if "allergic" in spec.known_info else [],
            unknown=draw_unknown(spec, UNKNOWN, rng),
            level=case.level,
        )

    return spec._replace(**write_varied_texts(draw, BACKGROUND, Random(spec.ticket))._asdict())


def _sentences(
    case: DoordashCase, requests: Sequence[Request], question: Question | None
) -> list[Wording]:
    # Unlike in the other domains, the opening is drawn before the rest of the sentence.
    sentences: list[Wording] = []
    for request in requests:
        opening = draw_opening(case, PHRASES, is_first=not sentences)
        body = request_body(case, request, PHRASES, question)
        sentences.append(full_sentence(opening, body))
    return sentences


def _known_info(case: DoordashCase, introduction: str) -> str:
    allergies = case.customer.allergies
    if allergies and not case.omits_detail():
        return f"{introduction} You are allergic to {join_words(allergies)}."
    return introduction


def _unknown_info(case: DoordashCase, *, by_phone: bool) -> str | None:
    gaps = ["You do not remember the email of your account."] if by_phone else []
    if case.has_described_order:
        gaps.append("You do not remember the number of an order you name by its restaurant.")
    return " ".join(gaps) or None


def _first_calls(case: DoordashCase, *, by_phone: bool) -> list[Call]:
    """The calls that identify the customer and find the orders that are named by restaurant."""
    customer = case.customer
    calls: list[Call] = [
        ("find_customer_by_phone", {"phone": customer.phone})
        if by_phone
        else ("find_customer_by_email", {"email": customer.email})
    ]
    if case.needs_profile or case.has_described_order:
        calls.append(("get_customer_details", {"customer_id": customer.customer_id}))
    if case.has_described_order:
        calls += [read_order(order) for order in case.orders]
    return calls
