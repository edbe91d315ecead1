"""Domains are loaded once; reference data beside the checkout is used where it is present."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from grpo_cl.envs import Domain, load_domain
from paths import SHARED

# Before torch is imported: on busy cores a second thread makes tiny models slower, not faster.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Likewise: Triton decides when it is imported whether its kernels are interpreted on a CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Examples may take any time: on a busy machine a deadline fails without a fault.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")


@pytest.fixture(scope="session")
def domain() -> Callable[[str], Domain]:
    loaded: dict[str, Domain] = {}

    def get(name: str) -> Domain:
        if name not in loaded:
            loaded[name] = load_domain(name)
        return loaded[name]

    return get


@pytest.fixture(scope="session")
def tau2_data() -> Path:
    """Current τ² task files, as a user with a checkout has them."""
    path = Path(os.environ.get("GRPO_CL_TAU2_DATA_DIR", SHARED / "tau2_data"))
    if not path.is_dir():
        pytest.skip(f"no current τ² task files at {path}; set GRPO_CL_TAU2_DATA_DIR")
    return path


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Trajectories with the reference evaluators' results."""
    path = SHARED / "vectors" / "oracle_public.jsonl"
    if not path.exists():
        pytest.skip(f"no reference vectors at {path}")
    return path
