"""Generated telecom tasks are solved by all of their gold calls and not by fewer."""

from collections.abc import Iterable
from typing import Any

import pytest

from grpo_cl.envs import Domain, load_domain
from grpo_cl.envs.telecom.generator.generator import shipped_test_signatures
from grpo_cl.errors import ConfigError
from grpo_cl.types import EvaluationCriteria, RewardType, Task, ToolCall

UNFIXABLE_NAMES = {
    "lock_sim_card_pin",
    "lock_sim_card_puk",
    "contract_end_suspension",
    "overdue_bill_refused",
    "data_usage_refuel_refused",
}


@pytest.fixture(scope="module")
def telecom() -> Domain:
    return load_domain("telecom")


@pytest.fixture(scope="module")
def tasks(telecom: Domain) -> list[Task]:
    return telecom.generate(seed=1, count=300) + telecom.generate(seed=2, count=100, split="test")


def criteria(task: Task) -> EvaluationCriteria:
    assert task.evaluation_criteria is not None
    return task.evaluation_criteria


def signature(task: Task) -> str:
    assert task.description is not None and task.description.purpose is not None
    return task.description.purpose


def faults(task: Task) -> list[str]:
    return signature(task).split(": ")[1].split(" | ")


def needs_transfer(task: Task) -> bool:
    return RewardType.ACTION in criteria(task).reward_basis


def initial_calls(task: Task, function: str) -> list[dict[str, Any]]:
    """The arguments of each use of ``function`` in the task's initial state."""
    assert task.initial_state is not None
    actions = task.initial_state.initialization_actions or ()
    return [action.arguments for action in actions if action.func_name == function]


def gold_calls(task: Task, name: str) -> list[dict[str, Any]]:
    return [action.arguments for action in task.gold_actions if action.name == name]


def calls(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def is_solved(
    domain: Domain, task: Task, played: Iterable[ToolCall], *, solo: bool = False
) -> bool:
    """Whether all assertions hold after ``played``, none of which may fail."""
    environment = domain.environment(task, solo=solo)
    for call in played:
        solo_call = call.model_copy(update={"requestor": "assistant"}) if solo else call
        result = environment.call(solo_call)
        assert not result.error, f"{signature(task)}: {call.name}: {result.content}"
    return all(environment.holds(check) for check in criteria(task).env_assertions or ())


def own_line(task: Task) -> str:
    """The caller's line; in this database 555-123-2004 is L1004."""
    (user,) = initial_calls(task, "set_user_info")
    return f"L{user['phone_number'].split('-')[-1]}".replace("L2", "L1")


@pytest.mark.parametrize("solo", [False, True])
def test_gold_calls_solve_every_task(telecom: Domain, tasks: list[Task], solo: bool):
    unsolved = [t.id for t in tasks if not is_solved(telecom, t, calls(t), solo=solo)]
    assert unsolved == []


def test_doing_nothing_solves_no_task(telecom: Domain, tasks: list[Task]):
    idle = [t.id for t in tasks if not needs_transfer(t) and is_solved(telecom, t, [])]
    assert idle == []
    assert not any(task.is_refusal for task in tasks)


def test_every_gold_call_but_a_reboot_is_necessary(telecom: Domain, tasks: list[Task]):
    # Any later network search does what a reboot after a resumed line does.
    for task in tasks[:80]:
        played = calls(task)
        for index, call in enumerate(played):
            if needs_transfer(task) or call.name == "reboot_device":
                continue
            assert not is_solved(telecom, task, played[:index] + played[index + 1 :]), call


def test_an_unfixable_task_requires_a_transfer_with_any_summary(tasks: list[Task]):
    transferred = [task for task in tasks if needs_transfer(task)]
    assert transferred
    for task in transferred:
        (action,) = task.gold_actions
        assert action.name == "transfer_to_human_agents"
        assert action.compare_args == ()


def test_exactly_the_unfixable_faults_require_a_transfer_and_are_rare(telecom: Domain):
    for level in (None, 0.3, 1.0):
        drawn = telecom.generate(seed=5, count=400, difficulty=level)
        assert all(
            needs_transfer(task) == bool(UNFIXABLE_NAMES & set(faults(task))) for task in drawn
        )
        assert 0 < sum(map(needs_transfer, drawn)) <= 0.15 * len(drawn)


def test_every_unfixable_fault_is_drawn(telecom: Domain):
    drawn = telecom.generate(seed=6, count=600, difficulty=0.5)
    assert {name for task in drawn for name in faults(task)} >= UNFIXABLE_NAMES


def test_unnecessary_data_fails_the_task(telecom: Domain, tasks: list[Task]):
    line = {"customer_id": "C1001", "line_id": "L1002"}
    refuel = ToolCall(name="refuel_data", arguments={**line, "gb_amount": 1.0})
    candidates = [t for t in tasks if own_line(t) == "L1002"]
    chosen = [
        t for t in candidates if "data_usage_exceeded" not in faults(t) and not needs_transfer(t)
    ]
    assert chosen
    assert not any(is_solved(telecom, task, [*calls(task), refuel]) for task in chosen)


def test_resuming_a_line_on_hold_fails_the_task(telecom: Domain, tasks: list[Task]):
    held = [
        (task, {"customer_id": arguments["customer_id"], "line_id": arguments["line_id"]})
        for task in tasks
        for arguments in initial_calls(task, "suspend_line")
        if arguments["line_id"] != own_line(task)
    ]
    assert held
    for task, line in held:
        resume = ToolCall(name="resume_line", arguments=line)
        assert not is_solved(telecom, task, [*calls(task), resume])


def test_added_data_matches_policy_request_and_need(tasks: list[Task]):
    amounts: set[float] = set()
    for task in tasks:
        for arguments in gold_calls(task, "refuel_data"):
            amounts.add(arguments["gb_amount"])
            assert task.ticket is not None
            is_named = f"{arguments['gb_amount']:g} GB" in task.ticket
            assert is_named or "maximum" in task.ticket or "rules allow" in task.ticket
            assert arguments["customer_id"] == "C1001"  # the only one with a draft bill
    assert amounts == {0.5, 1.0, 1.5, 2.0}


def test_a_line_is_resumed_only_after_its_overdue_bill_is_paid_with_permission(tasks: list[Task]):
    resumed = [task for task in tasks if gold_calls(task, "resume_line")]
    assert {gold_calls(task, "resume_line")[0]["customer_id"] for task in resumed} == {
        "C1001",
        "C1002",
    }
    for task in resumed:
        names = [action.name for action in task.gold_actions]
        order = ["send_payment_request", "make_payment", "resume_line", "reboot_device"]
        first = names.index(order[0])
        assert names[first : first + 4] == order
        assert not any(
            a["contract_ended"] for a in initial_calls(task, "suspend_line_for_overdue_bill")
        )
        assert task.ticket is not None
        assert "gives no permission" not in task.ticket and "No bill may" not in task.ticket


def test_roaming_is_enabled_only_if_the_ticket_says_abroad(tasks: list[Task]):
    roaming = [task for task in tasks if gold_calls(task, "enable_roaming")]
    assert roaming
    for task in roaming:
        assert initial_calls(task, "set_user_location") == [{"abroad": True}]
        assert task.ticket is not None and "abroad in" in task.ticket


def test_the_location_in_the_ticket_is_that_of_the_phone(tasks: list[Task]):
    for task in tasks:
        is_abroad = bool(initial_calls(task, "set_user_location"))
        assert task.ticket is not None
        assert ("abroad in" in task.ticket, "at home in" in task.ticket) == (
            is_abroad,
            not is_abroad,
        )


def test_texts_contain_the_caller_and_their_consent(tasks: list[Task]):
    for task in tasks:
        (user,) = initial_calls(task, "set_user_info")
        scenario = task.user_scenario.instructions
        assert not isinstance(scenario, str) and task.ticket is not None
        for text in (task.ticket, scenario.known_info or ""):
            assert user["name"] in text
            assert user["phone_number"] in text
        assert "bill" in task.ticket
        assert "{" not in task.ticket + scenario.task_instructions


def test_tickets_have_twelve_openings(tasks: list[Task]):
    openings = {task.ticket.split(". ")[0] for task in tasks if task.ticket}
    assert len(openings) == 12


def test_callers_are_six_lines_of_two_customers(tasks: list[Task]):
    callers = {
        (a["name"], a["phone_number"]) for t in tasks for a in initial_calls(t, "set_user_info")
    }
    assert {name for name, _ in callers} == {"John Smith", "Sarah Johnson"}
    assert {number[-1] for _, number in callers} == set("124567")


def test_every_intent_is_in_both_splits(telecom: Domain):
    for split in ("train", "test"):
        for level in (0.0, 0.5):
            drawn = telecom.generate(seed=3, count=120, split=split, difficulty=level)
            assert {signature(task).split(": ")[0] for task in drawn} == {
                "service_issue",
                "mobile_data_issue",
                "mms_issue",
            }


def test_tasks_depend_on_the_seed_only(telecom: Domain):
    first = telecom.generate(seed=7, count=40)
    assert telecom.generate(seed=7, count=40) == first
    assert telecom.generate(seed=8, count=40) != first


def test_a_larger_count_keeps_the_first_tasks(telecom: Domain):
    assert telecom.generate(seed=7, count=90)[:30] == telecom.generate(seed=7, count=30)


def test_ids_contain_split_seed_and_index(telecom: Domain):
    drawn = telecom.generate(seed=4, count=2, split="test")
    assert all(task.id.startswith("telecom-gen-test-4-") for task in drawn)
    assert [task.id[-2:] for task in drawn] == ["-0", "-1"]
    assert {task.domain for task in drawn} == {"telecom"}


def test_no_task_has_the_fault_set_of_a_tau2_test_task(tasks: list[Task]):
    assert not {signature(task) for task in tasks} & shipped_test_signatures()


def test_the_first_line_of_each_customer_calls_in_test_tasks_only(tasks: list[Task]):
    lines = {
        split: {own_line(task) for task in tasks if f"-{split}-" in task.id}
        for split in ("train", "test")
    }
    assert lines == {"train": {"L1002", "L1005", "L1006", "L1007"}, "test": {"L1001", "L1004"}}
    for task in tasks:
        calls = initial_calls(task, "suspend_line") + initial_calls(task, "set_data_usage")
        mentioned = {str(arguments["line_id"]) for arguments in calls} - {own_line(task)}
        assert not mentioned & lines["test" if "-train-" in task.id else "train"]


def test_skills_are_the_faults(tasks: list[Task]):
    assert all(task.skills == tuple(sorted(set(faults(task)))) for task in tasks)


def test_tau2_test_fault_sets_are_read_from_the_split_file(telecom: Domain):
    assert len(shipped_test_signatures()) == len(telecom.splits["test"])
    (task_id, *_) = [i for i in telecom.splits["test"] if i.startswith("[mms_issue]")]
    names = task_id.removeprefix("[mms_issue]").split("[")[0].split("|")
    assert f"mms_issue: {' | '.join(sorted(names))}" in shipped_test_signatures()


@pytest.mark.slow
def test_thousands_of_tasks_have_different_initial_states(telecom: Domain):
    drawn = telecom.generate(seed=9, count=2500)
    states = {task.initial_state.model_dump_json() for task in drawn if task.initial_state}
    assert len(states) > 2400
    assert len({signature(task) for task in drawn}) > 1000


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_easiest_tasks_have_one_fixable_fault_and_no_distractor(telecom: Domain, split: str):
    for task in telecom.generate(seed=1, count=150, split=split, difficulty=0.0):
        assert len(faults(task)) == 1
        assert not needs_transfer(task)
        assert task.user_scenario.persona is None
        assert task.ticket is not None and "Another line" not in task.ticket


def test_harder_tasks_have_more_faults_and_more_gold_calls(telecom: Domain):
    by_level = [telecom.generate(seed=1, count=150, difficulty=d) for d in (0.0, 0.3, 0.6, 1.0)]
    fault_counts = [sum(len(faults(task)) for task in drawn) / 150 for drawn in by_level]
    call_counts = [sum(len(task.gold_actions) for task in drawn) / 150 for drawn in by_level]
    assert fault_counts == sorted(fault_counts)
    assert call_counts == sorted(call_counts)
    assert fault_counts[-1] > 5


def test_generating_does_not_change_the_shared_database(telecom: Any):
    before = telecom.database.model.model_dump_json()
    telecom.generate(seed=1, count=50)
    assert telecom.database.model.model_dump_json() == before


def test_an_invalid_difficulty_or_split_is_rejected(telecom: Domain):
    with pytest.raises(ConfigError, match="outside"):
        telecom.generate(seed=1, count=1, difficulty=1.5)
    with pytest.raises(ConfigError, match="'base'"):
        telecom.generate(seed=1, count=1, split="base")
