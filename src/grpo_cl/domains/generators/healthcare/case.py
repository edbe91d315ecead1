"""One call while it is being made up: who calls about whom, and what is spoken for already."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, TypeVar

from grpo_cl.domains.generators.healthcare.wording import Wording, day_words
from grpo_cl.domains.healthcare.database import (
    TODAY,
    Appointment,
    HealthcareDB,
    Patient,
    Prescription,
    Provider,
    age_on,
)
from grpo_cl.domains.healthcare.rules import upcoming

Call = tuple[str, dict[str, Any]]
T = TypeVar("T")

ADULT = 18


class Question(NamedTuple):
    """Something the caller wants to be told, and where it stands."""

    fact: str
    answer: str
    reads: Sequence[Call]


class Request(NamedTuple):
    """One thing a caller asks for, and the calls that answer it."""

    purpose: str
    wording: Wording
    """What follows 'You want to', without the full stop."""
    reads: Sequence[Call]
    writes: Sequence[Call] = ()
    """Empty where the policy forbids what is asked."""
    is_final: bool = False
    """Whether the wording says already what is to be done if not everything is possible."""
    questions: Sequence[Question] = ()


@dataclass(kw_only=True)
class Case:
    """A caller and the patient they call about, often themselves."""

    database: HealthcareDB
    caller: Patient
    patient: Patient
    strangers: Sequence[Patient]
    """The patients of the same half, these two among them."""
    rng: Random
    level: float
    used: set[str] = field(default_factory=set[str])
    """Ids and specialties not to be spoken of again, so that no request depends on another."""
    planned: set[str] = field(default_factory=set[str])
    """When the visits begin that this call is about to book."""
    visit_hidden: bool = False
    """Whether some appointment is described, so that it has to be found."""

    def hides(self) -> bool:
        """Whether the caller leaves the next detail to be looked up."""
        return self.rng.random() < self.level

    def shuffled(self, things: Iterable[T]) -> list[T]:
        """The things in a random order."""
        drawn = list(things)
        self.rng.shuffle(drawn)
        return drawn

    @property
    def is_own(self) -> bool:
        """Whether the caller is the patient."""
        return self.caller.patient_id == self.patient.patient_id

    @property
    def own(self) -> str:
        """Whose things are spoken of."""
        return "{your}" if self.is_own else f"{self.patient.first_name}'s"

    @property
    def whom(self) -> str:
        """A suffix that says for whom something is done."""
        return "" if self.is_own else f" for {self.patient.first_name}"

    @property
    def subject(self) -> str:
        """The patient as the subject of 'to be'."""
        return "{you} are" if self.is_own else f"{self.patient.first_name} is"

    @property
    def relation(self) -> str:
        """What the patient is to the caller."""
        return "child" if age_on(self.patient, TODAY) < ADULT else "partner"

    def visits(self) -> list[Appointment]:
        """Appointments to come that nothing was asked about yet, shuffled."""
        return self.shuffled(
            visit
            for visit in upcoming(self.database, self.patient)
            if not {visit.appointment_id, visit.provider_id} & self.used
        )

    def prescriptions(self) -> list[Prescription]:
        """The patient's prescriptions nothing was asked about yet, shuffled."""
        return self.shuffled(
            each
            for each in self.database.prescriptions.values()
            if each.patient_id == self.patient.patient_id and each.prescription_id not in self.used
        )

    def providers(self) -> list[Provider]:
        """Providers of specialties nothing was asked about yet, shuffled."""
        return self.shuffled(
            each
            for each in self.database.providers.values()
            if not {each.provider_id, each.specialty} & self.used
        )

    def claim(self, *ids: str) -> None:
        """Keep other requests of this call away from these records."""
        self.used.update(ids)

    def provider_of(self, visit: Appointment) -> Provider:
        """Who the visit is with."""
        return self.database.providers[visit.provider_id]

    def name_visit(self, visit: Appointment) -> str:
        """The appointment by its id, or by what no other appointment to come has."""
        if not self.hides():
            return f"appointment {visit.appointment_id}"
        self.visit_hidden = True
        provider = self.provider_of(visit)
        others = [
            self.provider_of(each)
            for each in upcoming(self.database, self.patient)
            if each is not visit
        ]
        day = day_words(visit.date, is_exact=False)
        names = [
            f"{self.own} appointment with {title(provider)}",
            f"{self.own} appointment on {day} at {visit.time}",
        ]
        if provider.specialty not in self.used | {other.specialty for other in others}:
            self.claim(provider.specialty)
            names.append(f"{self.own} {provider.specialty} appointment")
        return self.rng.choice(names)


def title(provider: Provider) -> str:
    """The provider as people speak of them."""
    return f"Doctor {provider.name}"


def read_visit(visit: Appointment) -> Call:
    """The call that shows the appointment."""
    return "get_appointment", {"appointment_id": visit.appointment_id}


def clinic_question(case: Case, provider: Provider) -> Question:
    """Ask how to reach the clinic of a provider."""
    clinic = case.database.clinics[provider.clinic_id]
    reads: list[Call] = [
        ("get_provider_info", {"provider_id": provider.provider_id}),
        ("get_clinic_info", {"clinic_id": clinic.clinic_id}),
    ]
    return Question("the exact phone number of the clinic for that visit", clinic.phone, reads)
