import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from grpo_cl.audit import scripted
from grpo_cl.domains import Domain, load_domain
from grpo_cl.recordings import Recording, execute, score_recording
from grpo_cl.rewards import EvaluationType, RewardOracle
from grpo_cl.rewards.criteria import matches
from grpo_cl.rewards.oracle import judge_free
from grpo_cl.transcripts import Judgement
from grpo_cl.types import (
    Action,
    EvaluationCriteria,
    Message,
    RewardType,
    Task,
    Termination,
    ToolCall,
    Trajectory,
)

GetDomain = Callable[[str], Domain]


def played(domain: Domain, task: Task, *, gold: bool = True) -> Trajectory:
    calls = [action.call for action in task.gold_actions] if gold else []
    return execute(domain, task, scripted(task, calls, told=gold)).trajectory


def action(**changes: object) -> Action:
    fields = {"action_id": "1", "name": "pay", "arguments": {"amount": 1, "to": "a"}}
    return Action.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("compare_args", "arguments", "expected"),
    [
        (None, {"amount": 1, "to": "a"}, True),
        (None, {"amount": 1}, True),  # a subset is enough
        (None, {}, True),  # so is nothing at all
        (None, {"amount": 1, "to": "a", "note": ""}, False),  # but not more
        (None, {"amount": 1.0, "to": "a"}, True),
        (None, {"amount": True, "to": "a"}, True),
        (None, {"amount": "1", "to": "a"}, False),
        (["to"], {"to": "a", "amount": 9}, True),
        (["to"], {"to": "b"}, False),
        ([], {"anything": 1}, True),
    ],
)
def test_arguments_are_compared_as_the_reference_does(
    compare_args: list[str] | None, arguments: dict[str, object], expected: bool
) -> None:
    call = ToolCall.model_validate({"name": "pay", "arguments": arguments, "requestor": "user"})
    assert matches(action(compare_args=compare_args), call) is expected


def test_the_order_of_a_list_matters_and_the_name_of_the_tool_does() -> None:
    gold = action(arguments={"items": [1, 2]})
    assert matches(gold, ToolCall(name="pay", arguments={"items": [1, 2]}))
    assert not matches(gold, ToolCall(name="pay", arguments={"items": [2, 1]}))
    assert not matches(gold, ToolCall(name="refund", arguments={"items": [1, 2]}))


def told(domain: Domain, *texts: str, role: str = "assistant") -> tuple[bool, ...]:
    task = domain.task("create_task_1").model_copy(
        update={"evaluation_criteria": EvaluationCriteria(communicate_info=("1,234", "1628"))}
    )
    said = tuple(Message.model_validate({"role": role, "content": text}) for text in texts)
    trajectory = Trajectory(task=task, messages=said, termination=Termination.USER_STOP)
    return RewardOracle({"mock": domain}).score(trajectory).communicate_checks


def test_commas_are_dropped_from_what_was_said_and_not_from_what_should_be(
    domain: GetDomain,
) -> None:
    assert told(domain("mock"), "It is $1,628.") == (False, True)
    assert told(domain("mock"), "It is 1,234 and 1628") == (False, True)
    assert told(domain("mock"), "1628", role="user") == (False, False)


def test_an_episode_that_ended_too_early_is_worth_nothing_and_says_so(domain: GetDomain) -> None:
    airline = domain("airline")
    task = airline.tasks("test")[0]
    early = played(airline, task).model_copy(update={"termination": Termination.MAX_STEPS})
    reward = RewardOracle({"airline": airline}).score(early)
    assert (reward.value, reward.basis) == (0.0, None)
    assert reward.reason == "the episode ended by max_steps"
    assert reward.components[RewardType.DB] == 1.0


def test_a_task_without_criteria_is_always_solved(domain: GetDomain) -> None:
    task = domain("mock").task("create_task_1").model_copy(update={"evaluation_criteria": None})
    trajectory = Trajectory(task=task, messages=(), termination=Termination.AGENT_STOP)
    assert RewardOracle({"mock": domain("mock")}).score(trajectory).value == 1.0


class YesMan:
    def __init__(self, *, answer: bool) -> None:
        self.answer = answer
        self.asked = 0

    def judge(self, task: Task, messages: Sequence[Message]) -> Judgement:
        assert messages
        self.asked += 1
        criteria = task.evaluation_criteria
        count = len(criteria.nl_assertions or ()) if criteria else 0
        return Judgement(model="yes-man", votes=((self.answer,) * count,))


def needing_judge(domain: Domain) -> Task:
    task = domain.task("create_task_1")
    criteria = task.evaluation_criteria
    assert criteria is not None
    basis = (RewardType.DB, RewardType.NL_ASSERTION)
    return task.model_copy(
        update={"evaluation_criteria": criteria.model_copy(update={"reward_basis": basis})}
    )


def test_without_a_judge_assertions_are_reported_as_not_judged_never_as_passed(
    domain: GetDomain,
) -> None:
    mock = domain("mock")
    reward = RewardOracle({"mock": mock}).score(played(mock, needing_judge(mock)))
    assert reward.not_judged == (RewardType.NL_ASSERTION,)
    assert RewardType.NL_ASSERTION not in reward.components
    assert reward.value == 1.0


@pytest.mark.parametrize("answer", [True, False])
def test_a_judge_decides_where_there_is_one(domain: GetDomain, answer: bool) -> None:
    mock, judge = domain("mock"), YesMan(answer=answer)
    reward = RewardOracle({"mock": mock}, judge=judge).score(played(mock, needing_judge(mock)))
    assert judge.asked == 1
    assert reward.not_judged == ()
    assert reward.components[RewardType.NL_ASSERTION] == reward.value == float(answer)


def test_a_judge_is_not_asked_about_what_the_basis_leaves_out(domain: GetDomain) -> None:
    mock, judge = domain("mock"), YesMan(answer=False)
    reward = RewardOracle({"mock": mock}, judge=judge).score(
        played(mock, mock.task("create_task_1"))
    )
    assert (judge.asked, reward.value) == (0, 1.0)


def test_evaluation_types_pick_their_components(domain: GetDomain) -> None:
    telecom = domain("telecom")
    task = next(task for task in telecom.tasks("test") if "lock_sim_card_pin" in task.id)
    oracle = RewardOracle({"telecom": telecom})
    idle = played(telecom, task, gold=False)
    values = {kind: oracle.score(idle, kind).value for kind in EvaluationType}
    # The task asks for a transfer and for the phone to stay without service.
    assert values == {
        EvaluationType.ENV: 1.0,
        EvaluationType.ACTION: 0.0,
        EvaluationType.COMMUNICATE: 1.0,
        EvaluationType.NL_ASSERTION: 1.0,
        EvaluationType.ALL: 0.0,
    }


def test_checks_say_whether_tool_and_arguments_were_right(domain: GetDomain) -> None:
    airline = domain("airline")
    task = next(task for task in airline.tasks("base") if len(task.gold_actions) == 1)
    gold = task.gold_actions[0].call
    wrong = gold.model_copy(update={"arguments": dict.fromkeys(gold.arguments, "no")})
    run = execute(airline, task, scripted(task, [wrong]))
    reward = RewardOracle({"airline": airline}).score(run.trajectory)
    check = reward.action_checks[0]
    assert (check.name_match, check.arguments_match, check.match) == (True, False, False)
    assert reward.tool_accuracy == 0.0
    full = RewardOracle({"airline": airline}).score(played(airline, task))
    assert (full.action_checks[0].arguments_match, full.tool_accuracy) == (True, 1.0)


def test_a_call_without_its_arguments_counts_for_the_reference_and_not_as_right_arguments(
    domain: GetDomain,
) -> None:
    airline = domain("airline")
    task = next(task for task in airline.tasks("base") if len(task.gold_actions) == 1)
    bare = task.gold_actions[0].call.model_copy(update={"arguments": {}})
    run = execute(airline, task, scripted(task, [bare]))
    check = RewardOracle({"airline": airline}).score(run.trajectory).action_checks[0]
    assert (check.match, check.arguments_match) == (True, False)


def test_a_recorded_answer_that_replay_does_not_give_is_a_zero_with_a_reason(
    domain: GetDomain,
) -> None:
    mock = domain("mock")
    trajectory = played(mock, mock.task("create_task_1"))
    forged = tuple(
        message.model_copy(update={"content": "{}"}) if message.role == "tool" else message
        for message in trajectory.messages
    )
    reward = RewardOracle({"mock": mock}).score(trajectory.model_copy(update={"messages": forged}))
    assert reward.value == 0.0
    assert "answered" in (reward.reason or "")


def test_a_call_without_an_answer_and_a_user_in_solo_mode_are_zeros_with_reasons(
    domain: GetDomain,
) -> None:
    mock = domain("mock")
    trajectory = played(mock, mock.task("create_task_1"))
    lost = tuple(message for message in trajectory.messages if message.role != "tool")
    oracle = RewardOracle({"mock": mock})
    unanswered = oracle.score(trajectory.model_copy(update={"messages": lost}))
    assert "has no answer" in (unanswered.reason or "")
    alone = oracle.score(trajectory.model_copy(update={"solo": True}))
    assert "a user speaks in a solo episode" in (alone.reason or "")
    assert unanswered.value == alone.value == 0.0


def test_an_assertion_that_cannot_be_run_is_a_zero_with_a_reason(domain: GetDomain) -> None:
    mock = domain("mock")
    task = mock.task("create_task_1_with_env_assertions")
    broken = json.loads(task.model_dump_json())
    broken["evaluation_criteria"]["env_assertions"][0]["func_name"] = "assert_nothing"
    trajectory = played(mock, Task.model_validate(broken))
    reward = RewardOracle({"mock": mock}).score(trajectory)
    assert reward.value == 0.0
    assert "assert_nothing" in (reward.reason or "")


def criteria(basis: str, **fields: object) -> EvaluationCriteria:
    return EvaluationCriteria.model_validate({"reward_basis": basis.split(), **fields})


def test_the_judge_free_basis_keeps_communication_where_assertions_restate_it() -> None:
    both = criteria("DB NL_ASSERTION", nl_assertions=["says 5"], communicate_info=["5"])
    assert judge_free(both) == (RewardType.DB, RewardType.COMMUNICATE)
    effects = criteria("DB NL_ASSERTION", nl_assertions=["cancels"])
    assert judge_free(effects) == (RewardType.DB,)
    unasserted = criteria("DB NL_ASSERTION", communicate_info=["5"])
    assert judge_free(unasserted) == (RewardType.DB,)
    plain = criteria("DB COMMUNICATE")
    assert judge_free(plain) == plain.reward_basis


def test_current_retail_needs_a_judge_in_forty_tasks_and_none_by_the_judge_free_basis(
    tau2_data: Path,
) -> None:
    retail = load_domain("retail", tau2_data)
    needing = 0
    for task in retail.tasks("base"):
        trajectory = played(retail, task)
        needing += bool(RewardOracle({"retail": retail}).score(trajectory).not_judged)
        free = RewardOracle({"retail": retail}, basis="judge_free").score(trajectory)
        assert (free.value, free.not_judged, free.basis_name) == (1.0, (), "judge_free")
    assert needing == 40


def test_every_public_vector_agrees_with_the_reference(vectors: Path, tau2_data: Path) -> None:
    domains = {name: load_domain(name, tau2_data) for name in ("airline", "retail", "telecom")}
    oracle = RewardOracle(domains)
    lines = vectors.read_text().splitlines()
    assert len(lines) > 400
    for line in lines:
        entry = json.loads(line)
        upstream = entry["upstream"]
        recording = Recording.model_validate(entry["input"])
        result = score_recording(domains[recording.domain], oracle, recording)
        assert _comparable(result) == _expected(upstream), recording.id


def _comparable(result: dict[str, object]) -> dict[str, object]:
    components: dict[str, float] = result["components"]  # type: ignore[assignment]
    checks: list[dict[str, object]] = result["action_checks"]  # type: ignore[assignment]
    return {
        "reward": result["reward"],
        "components": {key: value for key, value in components.items() if key != "NL_ASSERTION"},
        "needs_judge": result["not_judged"] == ["NL_ASSERTION"],
        "actions": [(check["action_id"], check["match"]) for check in checks],
        "assertions": result["env_assertions"],
        "told": result["communicate_checks"],
        "outputs": result["tool_outputs"],
        "hashes": result["state_hashes"],
    }


def _expected(upstream: dict[str, list[dict[str, object]]]) -> dict[str, object]:
    return {
        "reward": upstream["reward_skip_nl"],
        "components": upstream["breakdown"],
        "needs_judge": upstream["nl_required"],
        "actions": [(check["action_id"], check["match"]) for check in upstream["action_checks"]],
        "assertions": [check["met"] for check in upstream["env_assertions"]],
        "told": [check["met"] for check in upstream["communicate_checks"]],
        "outputs": upstream["tool_outputs"],
        "hashes": upstream["hashes"],
    }
