"""Own tools: Python functions beside the tools of a domain."""

import sys
from pathlib import Path

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.envs import DOMAINS, domain_for, load_domain
from grpo_cl.envs.own_tools import load_tools
from grpo_cl.errors import ConfigError
from grpo_cl.types import ToolCall

TOOLS = '''
from __future__ import annotations

from math import prod

PRICES = {"JFK": 45}


def _price(airport: str) -> int:
    return PRICES[airport]


def lounge_price(airport: str, guests: int = 0) -> int:
    """Price of a lounge visit in dollars.

    Args:
        airport: The airport's code.
        guests: Number of guests.
    """
    return prod([_price(airport), 1 + guests])


def forget_owners(self) -> str:
    """Remove all owners of tasks."""
    for user_id in list(self.db.users):
        del self.db.users[user_id]
    return "removed"
'''


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS)
    return str(path)


@pytest.mark.parametrize("name", sorted(set(DOMAINS) - {"memory"}))
def test_public_functions_are_tools_of_every_domain(tools: str, name: str) -> None:
    plain, domain = load_domain(name), load_domain(name, tools=tools)
    added = [tool["function"] for tool in domain.tools()[len(plain.tools()) :]]
    assert [tool["name"] for tool in added] == ["lounge_price", "forget_owners"]
    assert added[0]["description"] == "Price of a lounge visit in dollars."
    assert added[0]["parameters"]["required"] == ["airport"]
    assert added[0]["parameters"]["properties"]["guests"]["type"] == "integer"
    environment = domain.environment(domain.tasks("base")[0])
    call = ToolCall(name="lounge_price", arguments={"airport": "JFK", "guests": 2})
    assert environment.call(call).content == '"135"'
    assert environment.call(ToolCall(name="lounge_price", arguments={"airport": "X"})).error
    assert plain.environment(plain.tasks("base")[0]).call(call).error


def test_function_with_self_writes_to_the_database_of_its_episode_only(tools: str) -> None:
    domain = load_domain("mock", tools=tools)
    task = domain.tasks("base")[0]
    environment, other = domain.environment(task), domain.environment(task)
    call = ToolCall(name="forget_owners")
    assert environment.mutates(call)
    assert not environment.mutates(ToolCall(name="lounge_price"))
    assert environment.call(call).content == "removed"
    assert environment.state().agent
    assert not other.state().agent


def test_release_names_the_own_tools(tools: str) -> None:
    plain, domain = load_domain("mock"), load_domain("mock", tools=tools)
    assert domain.release.startswith(f"{plain.release} with own tools sha256:")
    assert domain.own_tools == {"lounge_price", "forget_owners"}


def test_run_takes_the_tools_of_its_config_from_any_directory(
    tools: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = GRPOConfig.model_validate({"tools": "my_tools.py", "task_order": ["mock"]})
    assert config.tools == tools
    assert domain_for(config, "mock").own_tools


def test_tools_are_named_by_module_and_object(
    tools: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del tools
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_tools", raising=False)
    assert [tool.name for tool in load_tools("my_tools:lounge_price")] == ["lounge_price"]
    with pytest.raises(ConfigError, match="module 'my_tools' has no 'lounge'"):
        load_tools("my_tools:lounge")
    with pytest.raises(ConfigError, match="must be a function or a list of functions"):
        load_tools("my_tools:PRICES")
    monkeypatch.delitem(sys.modules, "my_tools")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no public function"),
        ("def f(x: int) -> int:\n    return x\n", "'f' .*no docstring"),
        ('def f(x) -> int:\n    """Do."""\n    return x\n', "parameter 'x' has no type hint"),
        ('def f(*x: int) -> int:\n    """Do."""\n    return 1\n', "name the parameters"),
        ('async def f(x: int) -> int:\n    """Do."""\n    return x\n', "it is async"),
        ("def f(:\n", "cannot import the tools"),
        ("import no_such_module\n", "cannot import the tools .*no_such_module"),
        ('def create_task() -> int:\n    """Do."""\n    return 1\n', "'mock' has already"),
        ('def done() -> int:\n    """Do."""\n    return 1\n', "'mock' has already"),
    ],
)
def test_file_that_has_no_usable_tools_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load_domain("mock", tools=str(path))


def test_domain_with_its_own_score_takes_no_own_tools(tools: str) -> None:
    for name in ("memory", "toy_left"):
        with pytest.raises(ConfigError, match=f"{name!r} takes no own tools"):
            load_domain(name, tools=tools)
