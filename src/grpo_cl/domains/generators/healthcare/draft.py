"""The texts and gold calls of a call, once its requests are known."""

from collections.abc import Sequence

from grpo_cl.domains.generators.draft import Draft
from grpo_cl.domains.generators.healthcare.case import Call, Case, Question, Request, read_visit
from grpo_cl.domains.generators.healthcare.wording import (
    ASIDES,
    CONFIRMATIONS,
    FIRST_OPENINGS,
    LAST_RESORTS,
    NEXT_OPENINGS,
    PERSONAS,
    QUESTIONS,
    SECOND_PERSON,
    THIRD_PERSON,
    TICKET_OPENINGS,
    Wording,
    append,
    speak,
    word,
)
from grpo_cl.domains.healthcare.database import Patient
from grpo_cl.domains.healthcare.rules import upcoming


def draft(case: Case, requests: Sequence[Request]) -> Draft:
    """The task in which the caller asks for all the requests."""
    by_number = case.rng.random() < 0.3
    asker, question = _question(case, requests)
    texts = [
        _sentence(
            case, each, is_first=each is requests[0], question=question if each is asker else None
        )
        for each in requests
    ]
    return Draft(
        purpose="; ".join(
            each.purpose if each.writes else f"refused: {each.purpose}" for each in requests
        ),
        reason_for_call=" ".join(speak(text.asked, SECOND_PERSON) for text in texts),
        known_info=_known_info(case, by_number=by_number),
        unknown_info=_unknown_info(case, by_number=by_number),
        task_instructions=_instructions(case),
        ticket=" ".join(
            [
                *_ticket_head(case, by_number=by_number),
                *(speak(t.filed, THIRD_PERSON) for t in texts),
            ]
        ),
        actions=_actions(case, requests, question, by_number=by_number),
        communicate_info=[question.answer] if question else [],
        is_refusal=not any(each.writes for each in requests),
    )


def _question(
    case: Case, requests: Sequence[Request]
) -> tuple[Request, Question] | tuple[None, None]:
    chances = [(each, question) for each in requests for question in each.questions]
    if not chances or case.rng.random() >= 0.4 * case.level:
        return None, None
    return case.rng.choice(chances)


def _sentence(
    case: Case, request: Request, *, is_first: bool, question: Question | None
) -> Wording:
    rng, text = case.rng, request.wording
    if question:
        text = append(text, ", ", word(rng, QUESTIONS, fact=question.fact))
    if not request.is_final and (not request.writes or rng.random() < 0.3 * case.level):
        text = append(text, "; ", word(rng, LAST_RESORTS))
    opening = word(rng, FIRST_OPENINGS if is_first else NEXT_OPENINGS)
    return append(append(opening, " ", text), "", Wording(".", "."))


def _full_name(patient: Patient) -> str:
    return f"{patient.first_name} {patient.last_name}"


def _known_info(case: Case, *, by_number: bool) -> str:
    caller, patient = case.caller, case.patient
    told = [f"You are {_full_name(caller)} and your date of birth is {caller.birth_date}."]
    if by_number:
        told.append(f"Your patient id is {caller.patient_id}.")
    if not case.is_own:
        told.append(
            f"You call about your {case.relation} {_full_name(patient)}, "
            f"whose date of birth is {patient.birth_date}."
        )
    return " ".join(told)


def _unknown_info(case: Case, *, by_number: bool) -> str | None:
    if case.level == 0:
        return None
    gaps = [] if by_number else ["You do not remember your patient id."]
    if case.visit_hidden:
        gaps.append("You do not remember the number of an appointment you describe.")
    return " ".join(gaps) or None


def _instructions(case: Case) -> str:
    sentences = [case.rng.choice(CONFIRMATIONS)]
    if case.rng.random() < 0.2 + 0.8 * case.level:
        sentences.insert(0, case.rng.choice(PERSONAS))
    if case.hides():
        sentences.append(case.rng.choice(ASIDES))
    return " ".join(sentences)


def _ticket_head(case: Case, *, by_number: bool) -> list[str]:
    caller, patient = case.caller, case.patient
    number = f"patient id {caller.patient_id}, " if by_number else ""
    identity = f"{number}date of birth {caller.birth_date}"
    opening = case.rng.choice(TICKET_OPENINGS)
    head = [opening.format(name=_full_name(caller), identity=identity)]
    if not case.is_own:
        head.append(
            f"The call is about their {case.relation} {_full_name(patient)}, "
            f"date of birth {patient.birth_date}."
        )
    return head


def _actions(
    case: Case, requests: Sequence[Request], question: Question | None, *, by_number: bool
) -> list[Call]:
    caller, patient = case.caller, case.patient
    calls = [] if by_number else [_find(caller)]
    calls.append(_read(caller))
    if not case.is_own:
        calls += [_find(patient), _read(patient)]
    if case.visit_hidden:
        calls += [read_visit(visit) for visit in upcoming(case.database, patient)]
    for request in requests:
        answer = question.reads if question and question in request.questions else ()
        reads = [*request.reads, *answer]
        calls += [call for place, call in enumerate(reads) if call not in (*calls, *reads[:place])]
        calls += request.writes
    return calls


def _find(patient: Patient) -> Call:
    given = {
        "first_name": patient.first_name,
        "last_name": patient.last_name,
        "birth_date": patient.birth_date,
    }
    return "find_patient_by_name_and_birth_date", given


def _read(patient: Patient) -> Call:
    return "get_patient_info", {"patient_id": patient.patient_id}
