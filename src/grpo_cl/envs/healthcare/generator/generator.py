"""Healthcare tasks: callers of the database with requests that the policy allows or forbids."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from grpo_cl.envs.generation.requests import (
    RequestMaker,
    RequestMix,
    SpecWriter,
    request_task_maker,
)
from grpo_cl.envs.generation.tasks import TaskMaker, in_split
from grpo_cl.envs.healthcare.database import ADULT_AGE, TODAY, HealthcareDB, Patient, age_on
from grpo_cl.envs.healthcare.generator.case import HealthcareCase
from grpo_cl.envs.healthcare.generator.refills import refill, update_contact
from grpo_cl.envs.healthcare.generator.refusals import (
    FORBIDDEN,
    book_with_alternative,
    cancel_visit_of_other_patient,
    unsupported,
)
from grpo_cl.envs.healthcare.generator.scenario import write_spec
from grpo_cl.envs.healthcare.generator.visits import book, cancel, move, rebook

REPRESENTATIVE_SHARE = 0.4
"""Share of tasks at difficulty 1 in which the caller represents another patient."""
MIX: RequestMix[HealthcareCase] = RequestMix(
    allowed={book: 4, move: 3, cancel: 3, refill: 3, update_contact: 1},
    hard={rebook: 1, book_with_alternative: 2},
    forbidden=FORBIDDEN,
    last_resort=cancel_visit_of_other_patient,
    handed_over=(unsupported,),
)


class HealthcareIndex(NamedTuple):
    """The patients of one split; all patients of a household are in the same split."""

    database: HealthcareDB
    patients: Sequence[Patient]
    adults: Sequence[Patient]
    represented: Sequence[Patient]

    def open_case(
        self,
        rng: Random,
        level: float,
        first: RequestMaker[HealthcareCase] | None,
        count: int,
    ) -> HealthcareCase:
        """A caller without requests, who calls as a patient or represents one."""
        del first, count  # every caller is tried for every request
        patient = caller = rng.choice(self.adults)
        if rng.random() < REPRESENTATIVE_SHARE * level:
            patient = rng.choice(self.represented)
            caller = self.database.patients[rng.choice(patient.representatives)]
        return HealthcareCase(
            database=self.database,
            caller=caller,
            patient=patient,
            all_patients=self.patients,
            rng=rng,
            level=level,
        )


def task_maker(
    database: HealthcareDB, split: str, *, write: SpecWriter[HealthcareCase] = write_spec
) -> TaskMaker:
    """The function that draws tasks about patients of ``split``."""
    patients = [
        patient for patient in database.patients.values() if in_split(patient.address, split)
    ]
    index = HealthcareIndex(
        database,
        patients,
        [patient for patient in patients if age_on(patient, TODAY) >= ADULT_AGE],
        [patient for patient in patients if patient.representatives],
    )
    return request_task_maker(MIX, index.open_case, write, domain="healthcare")
