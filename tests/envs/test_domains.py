import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_cl.envs import DOMAINS, load_domain
from grpo_cl.envs.banking.domain import _count_matches, _knowledge
from grpo_cl.envs.base import State
from grpo_cl.envs.tau2 import Tau2Domain
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.types import ToolCall

GetDomain = Callable[[str], Tau2Domain]

SPLITS = {
    "airline": {"train": 30, "test": 20, "base": 50},
    "retail": {"train": 74, "test": 40, "base": 114},
    "telecom": {"train": 74, "test": 40, "base": 114, "small": 20, "full": 2285},
    "mock": {"base": 9},
    "banking_knowledge": {"base": 97},
    "doordash": {"train": 74, "test": 40, "base": 114},
    "memory": {"train": 74, "test": 40, "base": 114},
}
TOOLS = {
    "airline": 14,
    "retail": 16,
    "telecom": 13,
    "mock": 4,
    "banking_knowledge": 15,
    "doordash": 20,
    "memory": 5,
}


def call(name: str, requestor: str = "assistant", /, **arguments: object) -> ToolCall:
    return ToolCall.model_validate(
        {"id": "1", "name": name, "arguments": arguments, "requestor": requestor}
    )


@pytest.mark.parametrize("name", SPLITS)
def test_splits_have_the_sizes_of_tau2_bench(domain: GetDomain, name: str) -> None:
    assert {split: len(ids) for split, ids in domain(name).splits.items()} == SPLITS[name]


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "doordash", "memory"])
def test_train_and_test_share_no_task(domain: GetDomain, name: str) -> None:
    splits = domain(name).splits
    assert not set(splits["train"]) & set(splits["test"])
    assert set(splits["train"]) | set(splits["test"]) == set(splits["base"])


@pytest.mark.parametrize("name", DOMAINS)
def test_schemas_and_tools_have_the_same_names(domain: GetDomain, name: str) -> None:
    environment = domain(name).environment(domain(name).tasks("base")[0])
    agent = {tool["function"]["name"] for tool in domain(name).tools()}
    user = {tool["function"]["name"] for tool in domain(name).user_tools}
    assert agent == environment.tools.tools
    assert user == (environment.user_tools.tools if environment.user_tools else set())
    solo = {tool["function"]["name"] for tool in domain(name).tools(solo=True)}
    assert solo == agent | user | {"done"}


@pytest.mark.parametrize("name", TOOLS)
def test_tool_counts_are_those_of_tau2_bench(domain: GetDomain, name: str) -> None:
    assert len(domain(name).tools()) == TOOLS[name]


def test_policies_have_the_lengths_of_tau2_bench(domain: GetDomain) -> None:
    lengths = {name: len(domain(name).policy_text()) for name in ("airline", "retail", "telecom")}
    # Up to the newline at the end of a file, and the four tags around telecom's two parts.
    assert lengths["airline"] == pytest.approx(7676, abs=2)
    assert lengths["retail"] == pytest.approx(6699, abs=2)
    assert lengths["telecom"] == pytest.approx(23318, abs=80)
    solo = len(domain("telecom").policy_text(solo=True))
    assert solo == pytest.approx(22819, abs=80)
    workflow = domain("telecom-workflow")
    assert workflow.policy_text() != domain("telecom").policy_text()


def test_an_unknown_domain_raises_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'telecom'"):
        load_domain("telcom")


def test_an_unknown_split_or_task_raises_with_the_known_ones(domain: GetDomain) -> None:
    with pytest.raises(ConfigError, match="known: base, test, train"):
        domain("airline").tasks("dev")
    with pytest.raises(TaskDataError, match="no task 'x'"):
        domain("airline").task("x")


def test_tasks_are_read_from_a_checkout_and_the_release_names_it(tau2_data: Path) -> None:
    installed, current = load_domain("airline"), load_domain("airline", tau2_data)
    assert installed.release.startswith("inspect-evals 0.26.0")
    assert current.release.startswith("tau2_data_dir")
    assert installed.task("2").gold_actions != current.task("2").gold_actions
    assert len(load_domain("mock", tau2_data).tasks("base")) == 10
    assert load_domain("telecom", tau2_data).release.startswith("inspect-evals")


def test_a_checkout_can_be_given_by_its_root(tau2_data: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tau2").symlink_to(tau2_data)
    assert load_domain("retail", tmp_path).release == load_domain("retail", tau2_data).release


def test_a_folder_that_is_no_checkout_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no 'domains' folder"):
        load_domain("airline", tmp_path)


def test_an_invalid_task_is_reported_with_its_id_and_release(tmp_path: Path) -> None:
    folder = tmp_path / "domains" / "airline"
    folder.mkdir(parents=True)
    (folder / "tasks.json").write_text(json.dumps([{"id": "1"}]))
    with pytest.raises(TaskDataError, match="task '1' of tau2_data_dir"):
        load_domain("airline", tmp_path).tasks("base")


@pytest.mark.parametrize(
    ("name", "wrong_call", "text"),
    [
        ("airline", call("refund_customer"), "Error: Tool 'refund_customer' not found."),
        ("airline", call("_get_user", user_id="x"), "Error: Tool '_get_user' not found."),
        ("airline", call("initialize"), "Error: Tool 'initialize' not found."),
        (
            "airline",
            call("cancel_reservation"),
            "Error: AirlineTools.cancel_reservation() missing 1 required positional argument: "
            "'reservation_id'",
        ),
        (
            "airline",
            call("get_reservation_details", reservation_id="X", note="n"),
            "Error: AirlineTools.get_reservation_details() got an unexpected keyword argument "
            "'note'",
        ),
        ("airline", call("get_user_details", "user"), "Error: User tools not available"),
        ("airline", call("calculate", expression="1/0"), "Error: division by zero"),
        ("retail", call("get_order_details", order_id="#W0"), "Error: Order not found"),
        ("retail", call("get_item_details", item_id="0"), "Error: Item not found"),
        ("telecom", call("reboot_device"), "Error: Tool 'reboot_device' not found."),
        (
            "telecom",
            call("get_details_by_id", id="X1"),
            "Error: Unknown ID format or type: X1",
        ),
    ],
)
def test_a_wrong_call_returns_the_error_of_tau2_bench(
    domain: GetDomain, name: str, wrong_call: ToolCall, text: str
) -> None:
    environment = domain(name).environment(domain(name).tasks("base")[0])
    before = environment.state()
    result = environment.call(wrong_call)
    assert (result.content, result.error) == (text, True)
    assert environment.state() == before


@pytest.mark.parametrize(
    "value", [None, 5, [], {}, "", [[1]], {"a": None}, True, 1e308, "x" * 5000]
)
@pytest.mark.parametrize(
    "name", ["airline", "retail", "telecom", "mock", "banking_knowledge", "doordash", "memory"]
)
def test_no_argument_value_of_any_tool_raises(domain: GetDomain, name: str, value: object) -> None:
    selected = domain(name)
    environment = selected.environment(selected.tasks("base")[0], solo=True)
    for tool in selected.tools(solo=True):
        function = tool["function"]
        arguments = dict.fromkeys(function["parameters"]["properties"], value)
        result = environment.call(call(function["name"], **arguments))
        assert isinstance(result.content, str)


def test_numbers_in_a_dict_become_text_and_numbers_in_a_record_do_not(domain: GetDomain) -> None:
    telecom = domain("telecom")
    environment = telecom.environment(telecom.tasks("small")[0])
    refuel = call("refuel_data", customer_id="C1001", line_id="L1002", gb_amount=2.0)
    assert json.loads(environment.call(refuel).content)["charge"] == "4.0"
    plan = json.loads(environment.call(call("get_details_by_id", id="P1002")).content)
    assert isinstance(plan["price_per_month"], float)


def test_changes_of_one_episode_are_not_visible_in_another(domain: GetDomain) -> None:
    airline = domain("airline")
    task = airline.tasks("base")[0]
    first, second = airline.environment(task), airline.environment(task)
    first.call(call("cancel_reservation", reservation_id="Z7GOZK"))
    assert first.state().agent
    assert second.state() == State({}, {})
    assert (
        '"status": null'
        in second.call(call("get_reservation_details", reservation_id="Z7GOZK")).content
    )


def test_a_broken_vpn_does_not_leak_into_the_next_episode(domain: GetDomain) -> None:
    telecom = domain("telecom")
    broken = next(task for task in telecom.tasks("full") if "bad_vpn" in task.id)
    clean = next(task for task in telecom.tasks("full") if "bad_vpn" not in task.id)
    telecom.environment(broken)
    environment = telecom.environment(clean)
    environment.call(call("connect_vpn", "user"))
    assert "excellent" in environment.call(call("check_vpn_status", "user")).content.lower()


def test_a_new_bill_has_the_same_id_in_every_episode(domain: GetDomain) -> None:
    telecom = domain("telecom")
    task = telecom.tasks("small")[0]
    hashes = set()
    for _ in range(2):
        environment = telecom.environment(task)
        refuel = call("refuel_data", customer_id="C1002", line_id="L1004", gb_amount=1.0)
        assert not environment.call(refuel).error
        hashes.add(environment.state_hash())
    assert len(hashes) == 1


def test_a_solo_agent_can_call_the_users_tools(domain: GetDomain) -> None:
    telecom = domain("telecom")
    environment = telecom.environment(telecom.tasks("small")[0], solo=True)
    assert not environment.call(call("check_status_bar")).error


def test_agent_and_user_databases_are_synchronised_after_every_call(domain: GetDomain) -> None:
    telecom = domain("telecom")
    task = next(task for task in telecom.tasks("small") if "roaming" in task.id)
    environment = telecom.environment(task)
    environment.call(call("enable_roaming", customer_id="C1001", line_id="L1002"))
    assert environment.user_tools is not None
    assert environment.user_tools.db.surroundings.roaming_allowed is True


def test_initial_data_is_merged_for_its_task_only(domain: GetDomain) -> None:
    mock = domain("mock")
    environment = mock.environment(mock.task("update_task_with_initialization_data"))
    assert "task_2" in environment.tools.db.tasks
    plain = mock.environment(mock.task("update_task_1"))
    assert "task_2" not in plain.tools.db.tasks


def test_the_calls_of_a_message_history_change_the_database(domain: GetDomain) -> None:
    mock = domain("mock")
    environment = mock.environment(mock.task("update_task_with_message_history"))
    assert "task_2" in environment.tools.db.tasks


@pytest.mark.parametrize("pattern", [r"(?:\w|\w\w)+#~", r"(.*)*#~", r"(\w+\s?){1,50}#~"])
def test_patterns_that_backtrack_without_end_are_searched_in_linear_time(
    pattern: str, domain: GetDomain
) -> None:
    banking = domain("banking_knowledge")
    environment = banking.environment(banking.tasks("base")[0])
    found = environment.call(call("grep", pattern=pattern))
    assert found.content == f"No matches found for pattern: {pattern}"


def test_text_that_is_no_pattern_is_searched_for_as_it_is(domain: GetDomain) -> None:
    banking = domain("banking_knowledge")
    environment = banking.environment(banking.tasks("base")[0])
    assert "ID:" in environment.call(call("grep", pattern="(e.g")).content
    assert not environment.call(call("grep", pattern="[unclosed")).error


@pytest.mark.parametrize("pattern", [r"(?=fee)", r"(.)\1", r"(?<!late )fee", r"\w++"])
def test_patterns_without_a_bound_on_their_work_are_refused(
    pattern: str, domain: GetDomain
) -> None:
    banking = domain("banking_knowledge")
    environment = banking.environment(banking.tasks("base")[0])
    found = environment.call(call("grep", pattern=pattern))
    assert found.error
    assert "use a simpler pattern" in found.content


@pytest.mark.parametrize("pattern", ["((a{99}){99}){99}", r"[^#]{0,999}[^!]{0,999}#!", "a{5000}"])
def test_patterns_that_repeat_too_much_are_refused(pattern: str, domain: GetDomain) -> None:
    banking = domain("banking_knowledge")
    environment = banking.environment(banking.tasks("base")[0])
    assert "use smaller counts" in environment.call(call("grep", pattern=pattern)).content


@pytest.mark.parametrize(
    "pattern",
    [
        "credit card",
        "cash.?back",
        "annual fee|late fee",
        r"\bfee\b",
        r"\b\w",
        r"\d+%",
        r"\$\d[\d,]*(\.\d+)?",
        r"^#",
        r"(?m)^#+ .*$",
        r"\.$",
        "[^a-z]{5,}",
        "fee{,3}s",
        "transfer.*limit",
        r"(?s)dispute.*(60|90) days",
    ],
)
def test_ordinary_patterns_match_as_in_python(pattern: str) -> None:
    texts = [document.content for document in _knowledge().documents.values()]
    expected = [len(re.findall(pattern, text, re.IGNORECASE)) for text in texts]
    assert sum(expected) > 0
    assert _count_matches(pattern) == expected


@pytest.mark.slow
def test_loading_a_database_leaves_no_temporary_file(tmp_path: Path) -> None:
    code = (
        "from grpo_cl.envs import load_domain\n"
        "for name in ('airline', 'retail'):\n"
        "    domain = load_domain(name)\n"
        "    domain.environment(domain.tasks('base')[0])\n"
    )
    environment = {"TMPDIR": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".json"]


def test_temporary_files_are_created_in_the_directory_that_is_checked() -> None:
    """The test above can fail: ``tempfile`` creates files in the directory that it checks."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        assert Path(file.name).parent == Path(tempfile.gettempdir())
