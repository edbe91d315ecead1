"""Healthcare tools: changes to the database and error texts."""

import json
from typing import Any

import pytest

from grpo_cl.envs.base import State
from grpo_cl.envs.healthcare.database import TODAY, Appointment, HealthcareDB
from grpo_cl.envs.healthcare.domain import HealthcareDomain
from grpo_cl.envs.healthcare.rules import is_late
from grpo_cl.envs.tau2 import Tau2Environment
from grpo_cl.types import ToolCall


@pytest.fixture
def environment(healthcare: HealthcareDomain) -> Tau2Environment:
    return healthcare.environment(healthcare.tasks("train")[0])


def call_tool(environment: Tau2Environment, name: str, /, **arguments: object) -> Any:
    result = environment.call(
        ToolCall.model_validate({"id": "1", "name": name, "arguments": arguments})
    )
    assert not result.error, result.content
    return json.loads(result.content) if result.content[0] in "{[" else result.content


def tool_error(environment: Tau2Environment, name: str, /, **arguments: object) -> str:
    before = environment.state()
    result = environment.call(
        ToolCall.model_validate({"id": "1", "name": name, "arguments": arguments})
    )
    assert result.error
    assert environment.state() == before
    return result.content


def find_visit(database: HealthcareDB, *, late: bool) -> Appointment:
    return next(
        visit
        for visit in database.appointments.values()
        if visit.status == "scheduled" and is_late(visit) == late
    )


def free_slot(database: HealthcareDB, provider_id: str) -> dict[str, str]:
    day = next(
        day
        for day in database.calendars.values()
        if day.provider_id == provider_id and day.date > TODAY and day.free
    )
    return {"date": day.date, "time": day.free[0]}


def test_booked_visit_is_in_the_patient_record_and_its_time_is_no_longer_free(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    slot = free_slot(database, "DR312")
    appointment = call_tool(
        environment,
        "schedule_appointment",
        patient_id="PT6164",
        provider_id="DR312",
        **slot,
        visit_type="in_person",
        payment="insurance",
    )
    patient = call_tool(environment, "get_patient_info", patient_id="PT6164")
    assert appointment["appointment_id"] in patient["upcoming_appointments"]
    free = call_tool(
        environment,
        "get_available_slots",
        provider_id="DR312",
        start_date=slot["date"],
        end_date=slot["date"],
    )
    assert slot["time"] not in free.get(slot["date"], [])


def test_booked_time_cannot_be_booked_again(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    taken = find_visit(database, late=False)
    text = tool_error(
        environment,
        "schedule_appointment",
        patient_id=taken.patient_id,
        provider_id=taken.provider_id,
        date=taken.date,
        time=taken.time,
        visit_type="in_person",
        payment="insurance",
    )
    assert text == f"Error: {taken.provider_id} is not free on {taken.date} at {taken.time}"


def test_unknown_visit_type_or_payment_is_an_error_that_lists_the_allowed_values(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    visit = {"patient_id": "PT6164", "provider_id": "DR312", **free_slot(database, "DR312")}
    text = tool_error(
        environment, "schedule_appointment", **visit, visit_type="phone", payment="insurance"
    )
    assert text == "Error: visit_type is one of in_person, video, not phone"
    text = tool_error(
        environment, "schedule_appointment", **visit, visit_type="in_person", payment="cash"
    )
    assert text == "Error: payment is one of insurance, self_pay, not cash"


def test_moved_visit_frees_its_old_time(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    visit = find_visit(database, late=False)
    slot = free_slot(database, visit.provider_id)
    moved = call_tool(
        environment, "reschedule_appointment", appointment_id=visit.appointment_id, **slot
    )
    assert (moved["date"], moved["time"]) == (slot["date"], slot["time"])
    assert moved["times_moved"] == visit.times_moved + 1
    days = {"start_date": visit.date, "end_date": visit.date}
    free = call_tool(environment, "get_available_slots", provider_id=visit.provider_id, **days)
    assert visit.time in free[visit.date]


def test_late_cancellation_is_counted_and_can_be_charged(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    visit = find_visit(database, late=True)
    arguments = {"appointment_id": visit.appointment_id, "reason": "illness"}
    assert "0 or" in tool_error(environment, "cancel_appointment", **arguments, fee=1)
    call_tool(environment, "cancel_appointment", **arguments, fee=visit.late_fee)
    before = database.patients[visit.patient_id]
    patient = call_tool(environment, "get_patient_info", patient_id=visit.patient_id)
    assert patient["balance_due"] == before.balance_due + visit.late_fee
    assert patient["late_cancellations"] == before.late_cancellations + 1
    assert "not an appointment to come" in tool_error(
        environment, "cancel_appointment", **arguments, fee=0
    )


def test_cancellation_in_time_cannot_be_charged(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    visit = find_visit(database, late=False)
    arguments = {"appointment_id": visit.appointment_id, "reason": "no longer needed"}
    text = tool_error(environment, "cancel_appointment", **arguments, fee=visit.late_fee)
    assert text == f"Error: The fee of this cancellation is 0, not {visit.late_fee}"
    assert call_tool(environment, "cancel_appointment", **arguments, fee=0)["status"] == "cancelled"


def test_final_state_does_not_depend_on_the_order_of_two_bookings(
    healthcare: HealthcareDomain, database: HealthcareDB
) -> None:
    states: list[State] = []
    for order in (("DR312", "DR742"), ("DR742", "DR312")):
        environment = healthcare.environment(healthcare.tasks("train")[0])
        for provider_id in order:
            call_tool(
                environment,
                "schedule_appointment",
                patient_id="PT6164",
                provider_id=provider_id,
                **free_slot(database, provider_id),
                visit_type="in_person",
                payment="self_pay",
            )
        states.append(environment.state())
    assert states[0] == states[1]


def test_refill_decrements_the_counter_and_is_an_error_at_zero(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    active = [p for p in database.prescriptions.values() if p.status == "active"]
    filled = next(p for p in active if p.refills_left)
    empty = next(p for p in active if not p.refills_left)
    prescription = call_tool(environment, "request_refill", prescription_id=filled.prescription_id)
    assert (prescription["refills_left"], prescription["last_filled"]) == (
        filled.refills_left - 1,
        TODAY,
    )
    assert "no refills left" in tool_error(
        environment, "request_refill", prescription_id=empty.prescription_id
    )


def test_contact_update_changes_only_the_given_fields(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    before = database.patients["PT6164"]
    after = call_tool(environment, "update_contact", patient_id="PT6164", phone="458-555-0000")
    assert after == before.model_dump() | {"phone": "458-555-0000"}
    assert "as text" in tool_error(environment, "update_contact", patient_id="PT6164")
    assert "as text" in tool_error(environment, "update_contact", patient_id="PT6164", email=7)


def test_coverage_matches_plan_and_provider(
    environment: Tau2Environment, database: HealthcareDB
) -> None:
    for patient in list(database.patients.values())[:10]:
        for provider in database.providers.values():
            shown = call_tool(
                environment,
                "check_coverage",
                patient_id=patient.patient_id,
                provider_id=provider.provider_id,
            )
            plan = database.plans[patient.plan_id]
            accepted = plan.plan_id in provider.accepted_plans
            assert shown["is_covered"] == (accepted and provider.specialty in plan.copays)
            assert (shown["copay"] is None) == (not shown["is_covered"])
            assert shown["referral_required"] == (provider.specialty in plan.referral_specialties)


def test_provider_search_filters_by_city_and_language(environment: Tau2Environment) -> None:
    providers = call_tool(environment, "search_providers", specialty="dermatology")
    assert len(providers) == 5
    city = providers[0]["city"]
    near = call_tool(environment, "search_providers", specialty="dermatology", city=city)
    assert near == [provider for provider in providers if provider["city"] == city]
    assert (
        call_tool(environment, "search_providers", specialty="dermatology", language="Klingon")
        == []
    )


@pytest.mark.parametrize("end", ["2026-05-10", "2026-05-25"])
def test_slot_search_needs_an_ordered_range_of_at_most_14_days(
    environment: Tau2Environment, end: str
) -> None:
    days = {"start_date": "2026-05-11", "end_date": end}
    text = tool_error(environment, "get_available_slots", provider_id="DR312", **days)
    assert text == "Error: Ask for 1 to 14 days, in order"


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("get_patient_info", {"patient_id": "PT0"}, "Error: Patient not found"),
        ("get_provider_info", {"provider_id": "DR0"}, "Error: Provider not found"),
        ("get_clinic_info", {"clinic_id": "CLN0"}, "Error: Clinic not found"),
        ("get_appointment", {"appointment_id": "AP0"}, "Error: Appointment not found"),
        ("request_refill", {"prescription_id": "RX0"}, "Error: Prescription not found"),
        ("delete_patient", {}, "Error: Tool 'delete_patient' not found."),
        (
            "get_patient_info",
            {},
            "Error: HealthcareTools.get_patient_info() missing 1 required positional argument: "
            "'patient_id'",
        ),
    ],
)
def test_error_texts_of_invalid_calls(
    environment: Tau2Environment, name: str, arguments: dict[str, object], text: str
) -> None:
    assert tool_error(environment, name, **arguments) == text


@pytest.mark.parametrize(
    "value", [None, 5, [], {}, "", [[1]], {"a": None}, True, 1e308, "x" * 5000]
)
def test_invalid_argument_values_raise_no_exception_and_change_nothing(
    healthcare: HealthcareDomain, environment: Tau2Environment, value: Any
) -> None:
    for tool in healthcare.tools(solo=True):
        function = tool["function"]
        arguments = dict.fromkeys(function["parameters"]["properties"], value)
        result = environment.call(ToolCall(name=function["name"], arguments=arguments))
        assert isinstance(result.content, str)
    assert environment.state() == State({}, {})


def test_schemas_describe_every_argument_and_omit_self(healthcare: HealthcareDomain) -> None:
    for tool in healthcare.tools():
        properties = tool["function"]["parameters"]["properties"]
        assert "self" not in properties
        assert all(schema["description"] for schema in properties.values())
