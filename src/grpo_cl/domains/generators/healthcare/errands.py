"""Requests the clinics grant about prescriptions and contact details."""

from grpo_cl.domains.generators.healthcare.case import Call, Case, Request, read_visit
from grpo_cl.domains.generators.healthcare.wording import word
from grpo_cl.domains.healthcare.database import Prescription
from grpo_cl.domains.healthcare.names import CITIES, STREETS
from grpo_cl.domains.healthcare.rules import refill_objections

REFILL = (
    "get a refill of {medicine}",
    "have {medicine} refilled",
    "request a refill of {medicine}",
)
_CONTACT = (
    "change the {field} in {whose} record to {value}",
    "have {value} recorded as {whose} new {field}",
    "update {whose} {field} to {value}",
)
_FIELDS = {"phone": "phone number", "email": "email address", "address": "home address"}


def refill(case: Case) -> Request | None:
    """Have a medicine refilled that is due."""
    for prescription in case.prescriptions():
        if refill_objections(case.database, prescription):
            continue
        case.claim(prescription.prescription_id)
        given = {"prescription_id": prescription.prescription_id}
        return Request(
            "refill a prescription",
            word(case.rng, REFILL, medicine=name_medicine(case, prescription)),
            prescription_reads(case, prescription),
            [("request_refill", given)],
        )
    return None


def name_medicine(case: Case, prescription: Prescription) -> str:
    """The medicine, with the id of its prescription unless the caller is vague."""
    number = "" if case.hides() else f" (prescription {prescription.prescription_id})"
    return f"{case.own} {prescription.medicine}{number}"


def prescription_reads(case: Case, prescription: Prescription) -> list[Call]:
    """The calls that show whether a refill is due; a controlled medicine needs a visit."""
    reads: list[Call] = [("get_prescriptions", {"patient_id": case.patient.patient_id})]
    if prescription.is_controlled:
        numbers = case.patient.past_appointments
        reads += [read_visit(case.database.appointments[number]) for number in numbers]
    return reads


def update(case: Case) -> Request | None:
    """Change how the patient is reached."""
    if "contact" in case.used:
        return None
    case.claim("contact")
    field = case.rng.choice(sorted(_FIELDS))
    value = _invented(case, field)
    facts = {"field": _FIELDS[field], "whose": case.own, "value": value}
    given = {"patient_id": case.patient.patient_id, field: value}
    return Request(
        "update contact details", word(case.rng, _CONTACT, **facts), [], [("update_contact", given)]
    )


def _invented(case: Case, field: str) -> str:
    rng, patient = case.rng, case.patient
    if field == "phone":
        return f"458-555-{rng.randrange(1000, 9999)}"
    if field == "email":
        return f"{patient.first_name.lower()}{rng.randrange(100, 999)}@mail.example"
    city, code = rng.choice(CITIES)
    return f"{rng.randrange(1000, 1999)} {rng.choice(STREETS)}, {city}, OR {code}"
