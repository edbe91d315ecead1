"""Allowed requests about prescriptions and contact details."""

from grpo_cl.envs.generation.requests import Call, Request
from grpo_cl.envs.generation.wording import draw_wording
from grpo_cl.envs.healthcare.database import Prescription
from grpo_cl.envs.healthcare.generator.case import HealthcareCase, read_visit
from grpo_cl.envs.healthcare.reference_data import CITIES, STREETS
from grpo_cl.envs.healthcare.rules import refill_violations

REFILL_TEMPLATES = (
    "get a refill of {medicine}",
    "have {medicine} refilled",
    "request a refill of {medicine}",
)
_CONTACT_TEMPLATES = (
    "change the {field} in {whose} record to {value}",
    "have {value} recorded as {whose} new {field}",
    "update {whose} {field} to {value}",
)
_FIELDS = {"phone": "phone number", "email": "email address", "address": "home address"}


def refill(case: HealthcareCase) -> Request | None:
    """Refill a prescription that may be refilled."""
    for prescription in case.prescriptions():
        if refill_violations(case.database, prescription):
            continue
        case.mark_used(prescription.prescription_id)
        arguments = {"prescription_id": prescription.prescription_id}
        return Request(
            "refill a prescription",
            draw_wording(case.rng, REFILL_TEMPLATES, medicine=name_medicine(case, prescription)),
            read_prescription(case, prescription),
            [("request_refill", arguments)],
        )
    return None


def name_medicine(case: HealthcareCase, prescription: Prescription) -> str:
    """The medicine, with the id of its prescription unless the caller omits it."""
    number = "" if case.omits_detail() else f" (prescription {prescription.prescription_id})"
    return f"{case.possessive} {prescription.medicine}{number}"


def read_prescription(case: HealthcareCase, prescription: Prescription) -> list[Call]:
    """The calls that show whether a refill is allowed; controlled medicines need past visits."""
    reads: list[Call] = [("get_prescriptions", {"patient_id": case.patient.patient_id})]
    if prescription.is_controlled:
        numbers = case.patient.past_appointments
        reads += [read_visit(case.database.appointments[number]) for number in numbers]
    return reads


def update_contact(case: HealthcareCase) -> Request | None:
    """Change the phone number, email or address of the patient."""
    if "contact" in case.used:
        return None
    case.mark_used("contact")
    field = case.rng.choice(sorted(_FIELDS))
    value = _new_value(case, field)
    facts = {"field": _FIELDS[field], "whose": case.possessive, "value": value}
    arguments = {"patient_id": case.patient.patient_id, field: value}
    return Request(
        "update contact details",
        draw_wording(case.rng, _CONTACT_TEMPLATES, **facts),
        [],
        [("update_contact", arguments)],
    )


def _new_value(case: HealthcareCase, field: str) -> str:
    rng, patient = case.rng, case.patient
    if field == "phone":
        return f"458-555-{rng.randrange(1000, 9999)}"
    if field == "email":
        return f"{patient.first_name.lower()}{rng.randrange(100, 999)}@mail.example"
    city, zip_code = rng.choice(CITIES)
    return f"{rng.randrange(1000, 1999)} {rng.choice(STREETS)}, {city}, OR {zip_code}"
