"""Texts and gold calls of a healthcare task, written from its requests."""

from collections.abc import Sequence
from random import Random

from grpo_cl.envs.generation.requests import Call, Request
from grpo_cl.envs.generation.scenario import (
    Phrases,
    draw_question,
    manner_sentences,
    purpose_of,
    reason_for_call,
    request_calls,
    request_sentences,
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
from grpo_cl.envs.healthcare.database import Patient
from grpo_cl.envs.healthcare.generator.case import (
    HealthcareCase,
    find_patient,
    read_patient,
    read_visit,
)
from grpo_cl.envs.healthcare.generator.phrasings import BACKGROUND, PHRASINGS, UNKNOWN
from grpo_cl.envs.healthcare.rules import upcoming

QUESTION_SHARE = 0.4
"""Share of tasks at difficulty 1 with a question, among those that offer one."""

PHRASES = Phrases(
    first_openings=("{You} want to", "{You} would like to", "{You} need to", "{You} call to"),
    next_openings=(
        "{You} also want to",
        "{You} would also like to",
        "Then {you} want to",
        "Apart from that, {you} want to",
    ),
    fallbacks=(
        "if that cannot be done, {you} want nothing else instead",
        "if the clinic does not allow that, {you} want everything left as it is",
        "if that is not possible, {you} leave it at that",
    ),
    questions=(
        "and {you} want to be told {subject}",
        "and {you} want to know {subject}",
        "and {you} would like to hear {subject}",
    ),
    confirmations=(
        "You confirm every change that is what you asked for.",
        "You say yes to details that fit your request and correct all others.",
        "You say yes when the agent repeats your request correctly.",
    ),
    personas=(
        "You are polite and a little nervous.",
        "You are in a hurry and want to be done soon.",
        "You are friendly and chatty.",
        "You are precise and like short answers.",
        "You are tired after a long day.",
        "You are annoyed by telephone queues but stay civil.",
        "You are calm and formal.",
    ),
    asides=(
        "You mention that the parking lot of the clinic is always full.",
        "You mention that the waiting room has new chairs.",
        "You mention that you are calling from a train.",
        "You mention that the receptionist was very kind last time.",
        "You mention that you take the bus to the clinic.",
        "You mention that your sister works in a hospital.",
    ),
    ticket_openings=(
        "{name} ({identity}) has called and agrees to every change described here.",
        "Call from {name}, {identity}; everything below is already confirmed.",
        "The caller is {name}, {identity}, and has said yes to all that follows.",
        "{name} called, gave {identity} and confirmed what follows.",
    ),
)


def write_spec(case: HealthcareCase, requests: Sequence[Request]) -> TaskSpec:
    """The task in which the caller makes all the requests."""
    by_number = case.rng.random() < 0.3
    has_questions = any(request.questions for request in requests)
    question = draw_question(case, requests, QUESTION_SHARE) if has_questions else None
    sentences = request_sentences(case, requests, PHRASES, question)
    return TaskSpec(
        purpose=purpose_of(requests),
        reason_for_call=reason_for_call(sentences),
        known_info=_known_info(case, by_number=by_number),
        unknown_info=_unknown_info(case, by_number=by_number),
        task_instructions=" ".join(manner_sentences(case, PHRASES)),
        ticket=ticket_text(_ticket_head(case, by_number=by_number), sentences),
        actions=request_calls(_first_calls(case, by_number=by_number), requests, question),
        communicate_info=[question.answer] if question else [],
        is_refusal=not any(request.writes for request in requests),
    )


def write_varied_spec(case: HealthcareCase, requests: Sequence[Request]) -> TaskSpec:
    """The same task as ``write_spec`` makes, in varied texts."""
    spec = write_spec(case, requests)
    question = asked_question(requests, spec)
    caller, patient = case.caller, case.patient
    by_number = "patient id is" in spec.known_info
    about = (
        f"{{You}} call{{s}} about {{your}} {case.relation} {_full_name(patient)}, whose date of "
        f"birth is {patient.birth_date}"
    )
    number = f"{{Your}} patient id is {caller.patient_id}"

    def draw(rng: Random) -> TextFacts:
        return TextFacts(
            _full_name(caller),
            "date of birth",
            caller.birth_date,
            [phrase_request(request, question, PHRASINGS, rng) for request in requests],
            notes=[*([number] if by_number else []), *([] if case.is_for_caller else [about])],
            unknown=draw_unknown(spec, UNKNOWN, rng),
            level=case.level,
        )

    return spec._replace(**write_varied_texts(draw, BACKGROUND, Random(spec.ticket))._asdict())


def _full_name(patient: Patient) -> str:
    return f"{patient.first_name} {patient.last_name}"


def _known_info(case: HealthcareCase, *, by_number: bool) -> str:
    caller, patient = case.caller, case.patient
    sentences = [f"You are {_full_name(caller)} and your date of birth is {caller.birth_date}."]
    if by_number:
        sentences.append(f"Your patient id is {caller.patient_id}.")
    if not case.is_for_caller:
        sentences.append(
            f"You call about your {case.relation} {_full_name(patient)}, "
            f"whose date of birth is {patient.birth_date}."
        )
    return " ".join(sentences)


def _unknown_info(case: HealthcareCase, *, by_number: bool) -> str | None:
    if case.level == 0:
        return None
    gaps = [] if by_number else ["You do not remember your patient id."]
    if case.has_described_visit:
        gaps.append("You do not remember the number of an appointment you describe.")
    return " ".join(gaps) or None


def _ticket_head(case: HealthcareCase, *, by_number: bool) -> list[str]:
    caller, patient = case.caller, case.patient
    number = f"patient id {caller.patient_id}, " if by_number else ""
    identity = f"{number}date of birth {caller.birth_date}"
    opening = case.rng.choice(PHRASES.ticket_openings)
    head = [opening.format(name=_full_name(caller), identity=identity)]
    if not case.is_for_caller:
        head.append(
            f"The call is about their {case.relation} {_full_name(patient)}, "
            f"date of birth {patient.birth_date}."
        )
    return head


def _first_calls(case: HealthcareCase, *, by_number: bool) -> list[Call]:
    """The calls that identify caller and patient and find the appointments that are described."""
    caller, patient = case.caller, case.patient
    calls = [] if by_number else [find_patient(caller)]
    calls.append(read_patient(caller))
    if not case.is_for_caller:
        calls += [find_patient(patient), read_patient(patient)]
    if case.has_described_visit:
        calls += [read_visit(visit) for visit in upcoming(case.database, patient)]
    return calls
