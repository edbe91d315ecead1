"""The doordash domain and its database, shared by the tests of this folder."""

import pytest

from grpo_cl.envs import load_domain
from grpo_cl.envs.doordash.database import DoordashDB
from grpo_cl.envs.doordash.domain import DoordashDomain


@pytest.fixture(scope="package")
def doordash() -> DoordashDomain:
    domain = load_domain("doordash")
    assert isinstance(domain, DoordashDomain)
    return domain


@pytest.fixture(scope="package")
def database(doordash: DoordashDomain) -> DoordashDB:
    model = doordash.database.model
    assert isinstance(model, DoordashDB)
    return model
