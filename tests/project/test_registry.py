"""Algorithms, domains and users registered in code."""

from pathlib import Path

import pytest
from typing_extensions import override

import grpo_cl
from grpo_cl import register_algorithm, register_domain, register_user
from grpo_cl.algorithms import CLAlgorithm, TrainerView, find_algorithm
from grpo_cl.envs import load_domain
from grpo_cl.envs.mock.domain import MockDomain
from grpo_cl.errors import ConfigError
from grpo_cl.users import make_user
from grpo_cl.users.scripted.user import ScriptedUser
from toy_runs import toy_run


class CountingCL(CLAlgorithm):
    """Counts its steps."""

    steps = 0

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        self.steps += 1


def test_an_algorithm_registered_in_code_trains_by_its_name(tmp_path: Path) -> None:
    register_algorithm("counting", CountingCL)
    trainer = toy_run(tmp_path, cl_algorithm="counting", num_steps_per_task=2)
    assert isinstance(trainer.cl_algorithm, CountingCL)
    assert trainer.cl_algorithm.steps == 4
    with pytest.raises(ConfigError, match=r"known: agem, .*counting"):
        find_algorithm("countin")


def test_a_taken_name_is_refused_and_the_same_class_may_be_registered_again():
    register_algorithm("twice", CountingCL)
    register_algorithm("twice", CountingCL)
    again = type("CountingCL", (CLAlgorithm,), {"__module__": __name__})
    register_algorithm("twice", again)  # a notebook's cell, run again
    assert find_algorithm("twice") is again
    for name in ("twice", "replay"):
        with pytest.raises(ConfigError, match=f"the algorithm '{name}' exists already"):
            register_algorithm(name, type("Other", (CLAlgorithm,), {}))


def test_only_an_algorithm_is_registered_as_one():
    with pytest.raises(ConfigError, match="'number' must be a subclass of CLAlgorithm"):
        register_algorithm("number", 3)  # pyright: ignore[reportArgumentType]


def test_domains_and_users_are_registered_in_the_same_way():
    register_domain("my_mock", MockDomain)
    domain = load_domain("my_mock")
    assert isinstance(domain, MockDomain)
    register_user("my_user", ScriptedUser)
    assert isinstance(make_user("my_user", domain.tasks("base")[0], ()), ScriptedUser)
    with pytest.raises(ConfigError, match="the domain 'airline' exists already"):
        register_domain("airline", MockDomain)
    for name in ("solo", "llm"):
        with pytest.raises(ConfigError, match=f"the user strategy '{name}' exists already"):
            register_user(name, ScriptedUser)


def test_the_package_exports_the_functions_that_register():
    names = {"register_algorithm", "register_domain", "register_user"}
    assert names <= set(grpo_cl.__all__)
