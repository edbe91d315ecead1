"""The telecom generator: its tasks are solved by their gold calls, and by nothing less."""

from collections.abc import Iterable
from typing import Any

import pytest

from grpo_cl.domains import Domain, load_domain
from grpo_cl.domains.generators.telecom.generator import shipped_test_signatures
from grpo_cl.errors import ConfigError
from grpo_cl.types import EvaluationCriteria, RewardType, Task, ToolCall

TRAP_NAMES = {
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


def is_handed_over(task: Task) -> bool:
    return RewardType.ACTION in criteria(task).reward_basis


def start(task: Task, function: str) -> list[dict[str, Any]]:
    """The arguments of each use of ``function`` in the task's initial state."""
    assert task.initial_state is not None
    actions = task.initial_state.initialization_actions or ()
    return [action.arguments for action in actions if action.func_name == function]


def gold(task: Task, name: str) -> list[dict[str, Any]]:
    return [action.arguments for action in task.gold_actions if action.name == name]


def calls(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def outcome(domain: Domain, task: Task, played: Iterable[ToolCall], *, solo: bool = False) -> bool:
    """Whether all assertions hold after ``played``, none of which may fail."""
    environment = domain.environment(task, solo=solo)
    for call in played:
        mine = call.model_copy(update={"requestor": "assistant"}) if solo else call
        result = environment.call(mine)
        assert not result.error, f"{signature(task)}: {call.name}: {result.content}"
    return all(environment.holds(check) for check in criteria(task).env_assertions or ())


def own_line(task: Task) -> str:
    """The caller's line; in this database 555-123-2004 is L1004."""
    (user,) = start(task, "set_user_info")
    return f"L{user['phone_number'].split('-')[-1]}".replace("L2", "L1")


@pytest.mark.parametrize("solo", [False, True])
def test_gold_calls_solve_every_task(telecom: Domain, tasks: list[Task], solo: bool):
    unsolved = [t.id for t in tasks if not outcome(telecom, t, calls(t), solo=solo)]
    assert unsolved == []


def test_doing_nothing_solves_no_task(telecom: Domain, tasks: list[Task]):
    idle = [t.id for t in tasks if not is_handed_over(t) and outcome(telecom, t, [])]
    assert idle == []
    assert not any(task.is_refusal for task in tasks)


def test_no_gold_call_but_a_reboot_can_be_left_out(telecom: Domain, tasks: list[Task]):
    # Any later network search does what a reboot after a resumed line does.
    for task in tasks[:80]:
        played = calls(task)
        for index, call in enumerate(played):
            if is_handed_over(task) or call.name == "reboot_device":
                continue
            assert not outcome(telecom, task, played[:index] + played[index + 1 :]), call


def test_a_task_that_cannot_be_fixed_wants_a_transfer_in_any_words(tasks: list[Task]):
    handed_over = [task for task in tasks if is_handed_over(task)]
    assert handed_over
    for task in handed_over:
        (action,) = task.gold_actions
        assert action.name == "transfer_to_human_agents"
        assert action.compare_args == ()


def test_exactly_the_traps_are_handed_over_and_they_are_few(telecom: Domain):
    for level in (None, 0.3, 1.0):
        drawn = telecom.generate(seed=5, count=400, difficulty=level)
        assert all(is_handed_over(task) == bool(TRAP_NAMES & set(faults(task))) for task in drawn)
        assert 0 < sum(map(is_handed_over, drawn)) <= 0.15 * len(drawn)


def test_every_trap_is_drawn_sooner_or_later(telecom: Domain):
    drawn = telecom.generate(seed=6, count=600, difficulty=0.5)
    assert {name for task in drawn for name in faults(task)} >= TRAP_NAMES


def test_data_that_nobody_needs_fails_the_task(telecom: Domain, tasks: list[Task]):
    line = {"customer_id": "C1001", "line_id": "L1002"}
    refuel = ToolCall(name="refuel_data", arguments={**line, "gb_amount": 1.0})
    mine = [t for t in tasks if own_line(t) == "L1002"]
    chosen = [t for t in mine if "data_usage_exceeded" not in faults(t) and not is_handed_over(t)]
    assert chosen
    assert not any(outcome(telecom, task, [*calls(task), refuel]) for task in chosen)


def test_resuming_a_line_that_shall_stay_on_hold_fails_the_task(telecom: Domain, tasks: list[Task]):
    held = [
        (task, {"customer_id": arguments["customer_id"], "line_id": arguments["line_id"]})
        for task in tasks
        for arguments in start(task, "suspend_line")
        if arguments["line_id"] != own_line(task)
    ]
    assert held
    for task, line in held:
        resume = ToolCall(name="resume_line", arguments=line)
        assert not outcome(telecom, task, [*calls(task), resume])


def test_refuelling_stays_within_policy_wish_and_need(tasks: list[Task]):
    amounts: set[float] = set()
    for task in tasks:
        for arguments in gold(task, "refuel_data"):
            amounts.add(arguments["gb_amount"])
            assert task.ticket is not None
            is_named = f"{arguments['gb_amount']:g} GB" in task.ticket
            assert is_named or "maximum" in task.ticket or "rules allow" in task.ticket
            assert arguments["customer_id"] == "C1001"  # the only one with a draft bill
    assert amounts == {0.5, 1.0, 1.5, 2.0}


def test_a_line_is_resumed_only_after_its_overdue_bill_is_paid_with_permission(tasks: list[Task]):
    resumed = [task for task in tasks if gold(task, "resume_line")]
    assert {gold(task, "resume_line")[0]["customer_id"] for task in resumed} == {"C1001", "C1002"}
    for task in resumed:
        names = [action.name for action in task.gold_actions]
        order = ["send_payment_request", "make_payment", "resume_line", "reboot_device"]
        first = names.index(order[0])
        assert names[first : first + 4] == order
        assert not any(a["contract_ended"] for a in start(task, "suspend_line_for_overdue_bill"))
        assert task.ticket is not None
        assert "gives no permission" not in task.ticket and "No bill may" not in task.ticket


def test_roaming_is_enabled_only_for_who_is_abroad_and_says_so(tasks: list[Task]):
    roaming = [task for task in tasks if gold(task, "enable_roaming")]
    assert roaming
    for task in roaming:
        assert start(task, "set_user_location") == [{"abroad": True}]
        assert task.ticket is not None and "abroad in" in task.ticket


def test_place_in_the_texts_is_the_place_of_the_phone(tasks: list[Task]):
    for task in tasks:
        is_abroad = bool(start(task, "set_user_location"))
        assert task.ticket is not None
        assert ("abroad in" in task.ticket, "at home in" in task.ticket) == (
            is_abroad,
            not is_abroad,
        )


def test_texts_name_the_caller_and_what_they_agree_to(tasks: list[Task]):
    for task in tasks:
        (user,) = start(task, "set_user_info")
        scenario = task.user_scenario.instructions
        assert not isinstance(scenario, str) and task.ticket is not None
        for text in (task.ticket, scenario.known_info or ""):
            assert user["name"] in text
            assert user["phone_number"] in text
        assert "bill" in task.ticket
        assert "{" not in task.ticket + scenario.task_instructions


def test_tickets_are_worded_in_many_ways(tasks: list[Task]):
    openings = {task.ticket.split(". ")[0] for task in tasks if task.ticket}
    assert len(openings) == 12


def test_six_lines_of_two_customers_call(tasks: list[Task]):
    callers = {(a["name"], a["phone_number"]) for t in tasks for a in start(t, "set_user_info")}
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


def test_same_seed_gives_the_same_tasks_and_another_seed_others(telecom: Domain):
    first = telecom.generate(seed=7, count=40)
    assert telecom.generate(seed=7, count=40) == first
    assert telecom.generate(seed=8, count=40) != first


def test_a_longer_list_begins_with_the_shorter_one(telecom: Domain):
    assert telecom.generate(seed=7, count=90)[:30] == telecom.generate(seed=7, count=30)


def test_ids_name_split_seed_and_index(telecom: Domain):
    drawn = telecom.generate(seed=4, count=2, split="test")
    assert all(task.id.startswith("telecom-gen-test-4-") for task in drawn)
    assert [task.id[-2:] for task in drawn] == ["-0", "-1"]
    assert {task.domain for task in drawn} == {"telecom"}


def test_no_fault_set_is_in_train_and_test_or_in_the_shipped_test_split(telecom: Domain):
    train = {signature(task) for task in telecom.generate(seed=1, count=1000)}
    test = {signature(task) for task in telecom.generate(seed=1, count=400, split="test")}
    assert not train & test
    assert not (train | test) & shipped_test_signatures()


def test_shipped_test_fault_sets_are_read_from_the_split_file(telecom: Domain):
    assert len(shipped_test_signatures()) == len(telecom.splits["test"])
    (task_id, *_) = [i for i in telecom.splits["test"] if i.startswith("[mms_issue]")]
    names = task_id.removeprefix("[mms_issue]").split("[")[0].split("|")
    assert f"mms_issue: {' | '.join(sorted(names))}" in shipped_test_signatures()


def test_thousands_of_different_worlds_can_be_drawn(telecom: Domain):
    drawn = telecom.generate(seed=9, count=2500)
    worlds = {task.initial_state.model_dump_json() for task in drawn if task.initial_state}
    assert len(worlds) > 2400
    assert len({signature(task) for task in drawn}) > 1000


@pytest.mark.parametrize("split", ["train", "test"])
def test_easiest_tasks_have_one_fault_no_trap_and_no_distraction(telecom: Domain, split: str):
    for task in telecom.generate(seed=1, count=150, split=split, difficulty=0.0):
        assert len(faults(task)) == 1
        assert not is_handed_over(task)
        assert task.user_scenario.persona is None
        assert task.ticket is not None and "Another line" not in task.ticket


def test_harder_tasks_have_more_faults_and_more_gold_calls(telecom: Domain):
    by_level = [telecom.generate(seed=1, count=150, difficulty=d) for d in (0.0, 0.3, 0.6, 1.0)]
    fault_counts = [sum(len(faults(task)) for task in drawn) / 150 for drawn in by_level]
    call_counts = [sum(len(task.gold_actions) for task in drawn) / 150 for drawn in by_level]
    assert fault_counts == sorted(fault_counts)
    assert call_counts == sorted(call_counts)
    assert fault_counts[-1] > 5


def test_generating_leaves_the_shared_database_alone(telecom: Any):
    before = telecom.database.model.model_dump_json()
    telecom.generate(seed=1, count=50)
    assert telecom.database.model.model_dump_json() == before


def test_a_difficulty_or_split_that_does_not_exist_is_refused(telecom: Domain):
    with pytest.raises(ConfigError, match="outside"):
        telecom.generate(seed=1, count=1, difficulty=1.5)
    with pytest.raises(ConfigError, match="'base'"):
        telecom.generate(seed=1, count=1, split="base")
