"""The healthcare domain, its database and generated tasks, shared by the tests of this folder."""

import pytest

from grpo_cl.envs.healthcare.database import HealthcareDB
from grpo_cl.envs.healthcare.database_builder import build_database
from grpo_cl.envs.healthcare.domain import HealthcareDomain
from grpo_cl.types import Task


@pytest.fixture(scope="package")
def healthcare() -> HealthcareDomain:
    return HealthcareDomain()


@pytest.fixture(scope="package")
def database() -> HealthcareDB:
    return build_database()


@pytest.fixture(scope="package")
def mixed_tasks(healthcare: HealthcareDomain) -> list[Task]:
    return healthcare.generate(seed=11, count=200)


@pytest.fixture(scope="package")
def hard_tasks(healthcare: HealthcareDomain) -> list[Task]:
    return healthcare.generate(seed=12, count=200, difficulty=1.0)
