"""Tools that change the database, the agent's toolkit and the tool schemas.

The tools reject changes that cannot be recorded; following the rest of the policy is left to the
agent.
"""

from bisect import insort
from functools import cache
from types import MethodType
from typing import Any, get_args

from pydantic import BaseModel

from grpo_cl.envs.healthcare.database import (
    NOW,
    TODAY,
    Appointment,
    CancellationReason,
    Patient,
    Payment,
    Prescription,
    VisitType,
    calendar_key,
)
from grpo_cl.envs.healthcare.read_tools import READ_TOOLS, find_record
from grpo_cl.envs.healthcare.rules import is_late
from grpo_cl.envs.inspect_tools import schema
from grpo_cl.envs.toolkit import (
    COMMON_TOOLS,
    build_toolkit,
    function_schema,
    text_parameters,
)
from grpo_cl.errors import ToolError
from grpo_cl.types import ToolSchema


class _WriteTools(BaseModel):
    db: Any

    def schedule_appointment(
        self,
        patient_id: str,
        provider_id: str,
        date: str,
        time: str,
        visit_type: VisitType,
        payment: Payment,
    ) -> Appointment:
        """Book a free time of a provider for a patient.

        :param patient_id: The patient, such as 'PT1234'.
        :param provider_id: The provider, such as 'DR123'.
        :param date: The day, such as '2026-05-11'.
        :param time: The time, such as '09:30'.
        :param visit_type: Whether the patient comes to the clinic or the visit is by video.
        :param payment: Who pays: the patient's insurance plan or the patient.
        """
        patient = find_record(self.db.patients, patient_id, "Patient")
        provider = find_record(self.db.providers, provider_id, "Provider")
        _check_choice(visit_type, get_args(VisitType), "visit_type")
        _check_choice(payment, get_args(Payment), "payment")
        if visit_type == "video" and not provider.offers_video:
            raise ToolError(f"{provider_id} offers no video visits")
        self._book_slot(provider_id, date, time)
        new_id = self._new_appointment_id(provider_id, date, time)
        appointment = Appointment(
            appointment_id=new_id,
            patient_id=patient_id,
            provider_id=provider_id,
            date=date,
            time=time,
            visit_type=visit_type,
            payment=payment,
            status="scheduled",
            late_fee=self.db.clinics[provider.clinic_id].late_fee,
        )
        self.db.appointments[new_id] = appointment
        insort(patient.upcoming_appointments, new_id)
        return appointment

    def reschedule_appointment(self, appointment_id: str, date: str, time: str) -> Appointment:
        """Move an appointment to another free time of the same provider.

        :param appointment_id: The appointment, such as 'AP12345'.
        :param date: The new day, such as '2026-05-11'.
        :param time: The new time, such as '09:30'.
        """
        appointment = self._changeable_appointment(appointment_id)
        self._book_slot(appointment.provider_id, date, time)
        self._free_slot(appointment)
        appointment.date, appointment.time = date, time
        appointment.times_moved += 1
        return appointment

    def cancel_appointment(
        self, appointment_id: str, reason: CancellationReason, fee: int
    ) -> Appointment:
        """Cancel an appointment.

        :param appointment_id: The appointment, such as 'AP12345'.
        :param reason: Why the patient cancels.
        :param fee: The late fee to charge in dollars, 0 for none.
        """
        appointment = self._changeable_appointment(appointment_id)
        _check_choice(reason, get_args(CancellationReason), "reason")
        late = is_late(appointment)
        if fee not in ((0, appointment.late_fee) if late else (0,)):
            allowed = f"0 or {appointment.late_fee}" if late else "0"
            raise ToolError(f"The fee of this cancellation is {allowed}, not {fee}")
        patient = self.db.patients[appointment.patient_id]
        self._free_slot(appointment)
        appointment.status = "cancelled"
        appointment.cancellation_reason = reason
        appointment.fee_charged = int(fee)
        patient.balance_due += int(fee)
        patient.late_cancellations += late
        return appointment

    def request_refill(self, prescription_id: str) -> Prescription:
        """Have a prescription filled once more.

        :param prescription_id: The prescription, such as 'RX12345'.
        """
        prescription = find_record(self.db.prescriptions, prescription_id, "Prescription")
        if prescription.status != "active" or prescription.refills_left < 1:
            raise ToolError(f"{prescription_id} has no refills left or is no longer active")
        prescription.refills_left -= 1
        prescription.last_filled = TODAY
        return prescription

    def update_contact(
        self,
        patient_id: str,
        phone: str | None = None,
        email: str | None = None,
        address: str | None = None,
    ) -> Patient:
        """Change how a patient is reached; what is left out stays as it is.

        :param patient_id: The patient, such as 'PT1234'.
        :param phone: The new phone number, such as '971-555-1234'.
        :param email: The new email address.
        :param address: The new address in one line, such as '12 Oak Row, Elmira, OR 97544'.
        """
        patient = find_record(self.db.patients, patient_id, "Patient")
        values = [value for value in (phone, email, address) if value is not None]
        if not values or not all(map(_is_text, values)):
            raise ToolError("Give a phone number, an email address or an address as text")
        patient.phone = phone or patient.phone
        patient.email = email or patient.email
        patient.address = address or patient.address
        return patient

    def _changeable_appointment(self, appointment_id: str) -> Appointment:
        appointment = find_record(self.db.appointments, appointment_id, "Appointment")
        if appointment.status != "scheduled" or appointment.start <= NOW:
            raise ToolError(f"{appointment_id} is not an appointment to come")
        return appointment

    def _book_slot(self, provider_id: str, date: str, time: str) -> None:
        key = calendar_key(provider_id, date)
        if key not in self.db.calendars or time not in self.db.calendars[key].free:
            raise ToolError(f"{provider_id} is not free on {date} at {time}")
        self.db.calendars[key].free.remove(time)

    def _free_slot(self, appointment: Appointment) -> None:
        key = calendar_key(appointment.provider_id, appointment.date)
        insort(self.db.calendars[key].free, appointment.time)

    def _new_appointment_id(self, provider_id: str, date: str, time: str) -> str:
        # Derived from the visit, so that the final state does not depend on the order of bookings.
        new_id = f"AP-{provider_id}-{date}-{time}"
        while new_id in self.db.appointments:
            new_id += "+"
        return new_id


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _check_choice(value: Any, allowed: tuple[str, ...], name: str) -> None:
    if value not in allowed:
        raise ToolError(f"{name} is one of {', '.join(allowed)}, not {value}")


_READ_NAMES = tuple(tool.__name__ for tool in READ_TOOLS)
_WRITE_NAMES = (
    "schedule_appointment",
    "reschedule_appointment",
    "cancel_appointment",
    "request_refill",
    "update_contact",
)
_CALCULATE = function_schema(
    "calculate",
    "Work out an arithmetic expression.",
    text_parameters(expression="Numbers, + - * / and parentheses."),
)
_TRANSFER = function_schema(
    "transfer_to_human_agents",
    "Hand the caller over to a person, where the policy says so.",
    text_parameters(summary="What the caller wants."),
)

HealthcareTools = build_toolkit(
    _WriteTools,
    name="HealthcareTools",
    tools=[*_READ_NAMES, *_WRITE_NAMES, "calculate", "transfer_to_human_agents"],
    writes=_WRITE_NAMES,
    overrides=(*COMMON_TOOLS, *READ_TOOLS),
)


@cache
def tool_schemas() -> tuple[ToolSchema, ...]:
    """The schemas of all tools, in the order in which the agent reads them."""
    members = vars(HealthcareTools)
    # Bound to an arbitrary object, so that the schema leaves out ``self``.
    schemas = [
        schema(MethodType(members[name], members), name=name)
        for name in (*_READ_NAMES, *_WRITE_NAMES)
    ]
    return (*schemas, _CALCULATE, _TRANSFER)
