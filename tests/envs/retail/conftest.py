"""Generated retail tasks that the tests of this folder share."""

from typing import Any

import pytest
from inspect_evals.tau2.retail.data_model import RetailDB

from generation import retail as generate
from grpo_cl.envs import Domain, load_domain
from grpo_cl.types import Task


@pytest.fixture(scope="package")
def retail() -> Domain:
    return load_domain("retail")


@pytest.fixture(scope="package")
def database(retail: Any) -> RetailDB:
    return retail.database.model


@pytest.fixture(scope="package")
def mixed(database: RetailDB) -> list[Task]:
    return generate(database, seed=11, count=400, split="train", difficulty=None)


@pytest.fixture(scope="package")
def hardest(database: RetailDB) -> list[Task]:
    return generate(database, seed=12, count=400, split="train", difficulty=1.0)
