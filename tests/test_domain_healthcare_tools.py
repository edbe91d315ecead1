"""The clinics' tools: what they record, and what they refuse."""

import json
from typing import Any

import pytest

from grpo_cl.domains.base import State
from grpo_cl.domains.healthcare.builder import build_database
from grpo_cl.domains.healthcare.database import TODAY, Appointment, HealthcareDB
from grpo_cl.domains.healthcare.domain import HealthcareDomain
from grpo_cl.domains.healthcare.rules import is_late
from grpo_cl.domains.tau2 import Tau2Environment
from grpo_cl.types import ToolCall


@pytest.fixture(scope="module")
def healthcare() -> HealthcareDomain:
    return HealthcareDomain()


@pytest.fixture(scope="module")
def records() -> HealthcareDB:
    return build_database()


@pytest.fixture
def world(healthcare: HealthcareDomain) -> Tau2Environment:
    return healthcare.environment(healthcare.tasks("train")[0])


def use(world: Tau2Environment, name: str, /, **arguments: object) -> Any:
    result = world.call(ToolCall.model_validate({"id": "1", "name": name, "arguments": arguments}))
    assert not result.error, result.content
    return json.loads(result.content) if result.content[0] in "{[" else result.content


def refusal(world: Tau2Environment, name: str, /, **arguments: object) -> str:
    before = world.state()
    result = world.call(ToolCall.model_validate({"id": "1", "name": name, "arguments": arguments}))
    assert result.error
    assert world.state() == before
    return result.content


def some_visit(records: HealthcareDB, *, late: bool) -> Appointment:
    return next(
        visit
        for visit in records.appointments.values()
        if visit.status == "scheduled" and is_late(visit) == late
    )


def free_slot(records: HealthcareDB, provider_id: str) -> dict[str, str]:
    day = next(
        day
        for day in records.calendars.values()
        if day.provider_id == provider_id and day.date > TODAY and day.free
    )
    return {"date": day.date, "time": day.free[0]}


def test_a_booked_visit_is_in_the_record_and_its_time_is_gone(
    world: Tau2Environment, records: HealthcareDB
) -> None:
    slot = free_slot(records, "DR312")
    made = use(
        world,
        "schedule_appointment",
        patient_id="PT6164",
        provider_id="DR312",
        **slot,
        visit_type="in_person",
        payment="insurance",
    )
    patient = use(world, "get_patient_info", patient_id="PT6164")
    assert made["appointment_id"] in patient["upcoming_appointments"]
    free = use(
        world,
        "get_available_slots",
        provider_id="DR312",
        start_date=slot["date"],
        end_date=slot["date"],
    )
    assert slot["time"] not in free.get(slot["date"], [])


def test_a_time_that_is_not_free_cannot_be_booked(
    world: Tau2Environment, records: HealthcareDB
) -> None:
    taken = some_visit(records, late=False)
    text = refusal(
        world,
        "schedule_appointment",
        patient_id=taken.patient_id,
        provider_id=taken.provider_id,
        date=taken.date,
        time=taken.time,
        visit_type="in_person",
        payment="insurance",
    )
    assert text == f"Error: {taken.provider_id} is not free on {taken.date} at {taken.time}"


def test_a_visit_type_or_payment_that_does_not_exist_is_refused_with_those_that_do(
    world: Tau2Environment, records: HealthcareDB
) -> None:
    visit = {"patient_id": "PT6164", "provider_id": "DR312", **free_slot(records, "DR312")}
    text = refusal(world, "schedule_appointment", **visit, visit_type="phone", payment="insurance")
    assert text == "Error: visit_type is one of in_person, video, not phone"
    text = refusal(world, "schedule_appointment", **visit, visit_type="in_person", payment="cash")
    assert text == "Error: payment is one of insurance, self_pay, not cash"


def test_a_moved_visit_frees_its_old_time(world: Tau2Environment, records: HealthcareDB) -> None:
    visit = some_visit(records, late=False)
    slot = free_slot(records, visit.provider_id)
    moved = use(world, "reschedule_appointment", appointment_id=visit.appointment_id, **slot)
    assert (moved["date"], moved["time"]) == (slot["date"], slot["time"])
    assert moved["times_moved"] == visit.times_moved + 1
    days = {"start_date": visit.date, "end_date": visit.date}
    free = use(world, "get_available_slots", provider_id=visit.provider_id, **days)
    assert visit.time in free[visit.date]


def test_a_late_cancellation_is_counted_and_may_cost_the_clinics_fee(
    world: Tau2Environment, records: HealthcareDB
) -> None:
    visit = some_visit(records, late=True)
    given = {"appointment_id": visit.appointment_id, "reason": "illness"}
    assert "0 or" in refusal(world, "cancel_appointment", **given, fee=1)
    use(world, "cancel_appointment", **given, fee=visit.late_fee)
    before = records.patients[visit.patient_id]
    patient = use(world, "get_patient_info", patient_id=visit.patient_id)
    assert patient["balance_due"] == before.balance_due + visit.late_fee
    assert patient["late_cancellations"] == before.late_cancellations + 1
    assert "not an appointment to come" in refusal(world, "cancel_appointment", **given, fee=0)


def test_a_cancellation_in_time_cannot_be_charged(
    world: Tau2Environment, records: HealthcareDB
) -> None:
    visit = some_visit(records, late=False)
    given = {"appointment_id": visit.appointment_id, "reason": "no longer needed"}
    text = refusal(world, "cancel_appointment", **given, fee=visit.late_fee)
    assert text == f"Error: The fee of this cancellation is 0, not {visit.late_fee}"
    assert use(world, "cancel_appointment", **given, fee=0)["status"] == "cancelled"


def test_the_order_of_two_bookings_leaves_no_trace(
    healthcare: HealthcareDomain, records: HealthcareDB
) -> None:
    states: list[State] = []
    for order in (("DR312", "DR742"), ("DR742", "DR312")):
        world = healthcare.environment(healthcare.tasks("train")[0])
        for provider_id in order:
            use(
                world,
                "schedule_appointment",
                patient_id="PT6164",
                provider_id=provider_id,
                **free_slot(records, provider_id),
                visit_type="in_person",
                payment="self_pay",
            )
        states.append(world.state())
    assert states[0] == states[1]


def test_a_refill_uses_one_up_and_none_can_be_had_from_nothing(
    world: Tau2Environment, records: HealthcareDB
) -> None:
    active = [each for each in records.prescriptions.values() if each.status == "active"]
    filled = next(each for each in active if each.refills_left)
    empty = next(each for each in active if not each.refills_left)
    made = use(world, "request_refill", prescription_id=filled.prescription_id)
    assert (made["refills_left"], made["last_filled"]) == (filled.refills_left - 1, TODAY)
    assert "no refills left" in refusal(
        world, "request_refill", prescription_id=empty.prescription_id
    )


def test_contact_details_change_one_by_one(world: Tau2Environment, records: HealthcareDB) -> None:
    before = records.patients["PT6164"]
    after = use(world, "update_contact", patient_id="PT6164", phone="458-555-0000")
    assert after == before.model_dump() | {"phone": "458-555-0000"}
    assert "as text" in refusal(world, "update_contact", patient_id="PT6164")
    assert "as text" in refusal(world, "update_contact", patient_id="PT6164", email=7)


def test_coverage_tells_plan_referral_and_prices(
    world: Tau2Environment, records: HealthcareDB
) -> None:
    for patient in list(records.patients.values())[:10]:
        for provider in records.providers.values():
            shown = use(
                world,
                "check_coverage",
                patient_id=patient.patient_id,
                provider_id=provider.provider_id,
            )
            plan = records.plans[patient.plan_id]
            accepted = plan.plan_id in provider.accepted_plans
            assert shown["is_covered"] == (accepted and provider.specialty in plan.copays)
            assert (shown["copay"] is None) == (not shown["is_covered"])
            assert shown["referral_required"] == (provider.specialty in plan.referral_specialties)


def test_a_search_for_providers_heeds_city_and_language(world: Tau2Environment) -> None:
    found = use(world, "search_providers", specialty="dermatology")
    assert len(found) == 5
    city = found[0]["city"]
    near = use(world, "search_providers", specialty="dermatology", city=city)
    assert near == [each for each in found if each["city"] == city]
    assert use(world, "search_providers", specialty="dermatology", language="Klingon") == []


@pytest.mark.parametrize("end", ["2026-05-10", "2026-05-25"])
def test_a_search_for_times_has_an_order_and_a_limit(world: Tau2Environment, end: str) -> None:
    days = {"start_date": "2026-05-11", "end_date": end}
    text = refusal(world, "get_available_slots", provider_id="DR312", **days)
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
def test_the_agent_reads_what_it_did_wrong(
    world: Tau2Environment, name: str, arguments: dict[str, object], text: str
) -> None:
    assert refusal(world, name, **arguments) == text


@pytest.mark.parametrize(
    "value", [None, 5, [], {}, "", [[1]], {"a": None}, True, 1e308, "x" * 5000]
)
def test_no_value_of_any_argument_of_any_tool_escapes_as_an_exception(
    healthcare: HealthcareDomain, world: Tau2Environment, value: Any
) -> None:
    for tool in healthcare.tools(solo=True):
        function = tool["function"]
        arguments = dict.fromkeys(function["parameters"]["properties"], value)
        result = world.call(ToolCall(name=function["name"], arguments=arguments))
        assert isinstance(result.content, str)
    assert world.state() == State({}, {})


def test_schemas_describe_every_argument_and_no_self(healthcare: HealthcareDomain) -> None:
    for tool in healthcare.tools():
        properties = tool["function"]["parameters"]["properties"]
        assert "self" not in properties
        assert all(each["description"] for each in properties.values())
