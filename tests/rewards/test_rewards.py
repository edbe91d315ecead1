import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from grpo_cl.envs import Domain, load_domain
from grpo_cl.rewards import EvaluationType, RewardOracle
from grpo_cl.rewards.criteria import matches
from grpo_cl.rewards.oracle import judge_free
from grpo_cl.rollout.baselines import scripted_recording
from grpo_cl.rollout.recordings import Recording, execute, score_recording
from grpo_cl.types import (
    Action,
    EvaluationCriteria,
    Judgement,
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
    return execute(domain, task, scripted_recording(task, calls, communicates=gold)).trajectory


def action(**changes: object) -> Action:
    fields = {"action_id": "1", "name": "pay", "arguments": {"amount": 1, "to": "a"}}
    return Action.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("compare_args", "arguments", "expected"),
    [
        (None, {"amount": 1, "to": "a"}, True),
        (None, {"amount": 1}, True),  # a subset matches
        (None, {}, True),  # so does the empty set
        (None, {"amount": 1, "to": "a", "note": ""}, False),  # an extra argument does not
        (None, {"amount": 1.0, "to": "a"}, True),
        (None, {"amount": True, "to": "a"}, True),
        (None, {"amount": "1", "to": "a"}, False),
        (["to"], {"to": "a", "amount": 9}, True),
        (["to"], {"to": "b"}, False),
        ([], {"anything": 1}, True),
    ],
)
def test_arguments_are_compared_as_in_tau2(
    compare_args: list[str] | None, arguments: dict[str, object], expected: bool
) -> None:
    call = ToolCall.model_validate({"name": "pay", "arguments": arguments, "requestor": "user"})
    assert matches(action(compare_args=compare_args), call) is expected


def test_list_order_and_tool_name_must_match() -> None:
    gold = action(arguments={"items": [1, 2]})
    assert matches(gold, ToolCall(name="pay", arguments={"items": [1, 2]}))
    assert not matches(gold, ToolCall(name="pay", arguments={"items": [2, 1]}))
    assert not matches(gold, ToolCall(name="refund", arguments={"items": [1, 2]}))


def communicate_checks(domain: Domain, *texts: str, role: str = "assistant") -> tuple[bool, ...]:
    task = domain.task("create_task_1").model_copy(
        update={"evaluation_criteria": EvaluationCriteria(communicate_info=("1,234", "1628"))}
    )
    messages = tuple(Message.model_validate({"role": role, "content": text}) for text in texts)
    trajectory = Trajectory(task=task, messages=messages, termination=Termination.USER_STOP)
    return RewardOracle({"mock": domain}).score(trajectory).communicate_checks


def test_commas_are_removed_from_the_agents_text_but_not_from_the_required_text(
    domain: GetDomain,
) -> None:
    assert communicate_checks(domain("mock"), "It is $1,628.") == (False, True)
    assert communicate_checks(domain("mock"), "It is 1,234 and 1628") == (False, True)
    assert communicate_checks(domain("mock"), "1628", role="user") == (False, False)


def test_truncated_episode_has_reward_0_with_a_reason(domain: GetDomain) -> None:
    airline = domain("airline")
    task = airline.tasks("test")[0]
    early = played(airline, task).model_copy(update={"termination": Termination.MAX_STEPS})
    reward = RewardOracle({"airline": airline}).score(early)
    assert (reward.value, reward.basis) == (0.0, None)
    assert reward.reason == "the episode ended by max_steps"
    assert reward.components[RewardType.DB] == 1.0


def test_task_without_criteria_has_reward_1(domain: GetDomain) -> None:
    task = domain("mock").task("create_task_1").model_copy(update={"evaluation_criteria": None})
    trajectory = Trajectory(task=task, messages=(), termination=Termination.AGENT_STOP)
    assert RewardOracle({"mock": domain("mock")}).score(trajectory).value == 1.0


class FixedJudge:
    """A judge that gives every assertion the same verdict."""

    def __init__(self, *, answer: bool) -> None:
        self.answer = answer
        self.asked = 0

    def judge(self, task: Task, messages: Sequence[Message]) -> Judgement:
        assert messages
        self.asked += 1
        criteria = task.evaluation_criteria
        count = len(criteria.nl_assertions or ()) if criteria else 0
        return Judgement(model="fixed", votes=((self.answer,) * count,))


def task_with_assertions(domain: Domain) -> Task:
    task = domain.task("create_task_1")
    criteria = task.evaluation_criteria
    assert criteria is not None
    basis = (RewardType.DB, RewardType.NL_ASSERTION)
    return task.model_copy(
        update={"evaluation_criteria": criteria.model_copy(update={"reward_basis": basis})}
    )


def test_assertions_without_a_judge_are_not_judged_and_not_passed(
    domain: GetDomain,
) -> None:
    mock = domain("mock")
    reward = RewardOracle({"mock": mock}).score(played(mock, task_with_assertions(mock)))
    assert reward.not_judged == (RewardType.NL_ASSERTION,)
    assert RewardType.NL_ASSERTION not in reward.components
    assert reward.value == 1.0


@pytest.mark.parametrize("answer", [True, False])
def test_judge_decides_the_assertions(domain: GetDomain, answer: bool) -> None:
    mock, judge = domain("mock"), FixedJudge(answer=answer)
    reward = RewardOracle({"mock": mock}, judge=judge).score(
        played(mock, task_with_assertions(mock))
    )
    assert judge.asked == 1
    assert reward.not_judged == ()
    assert reward.components[RewardType.NL_ASSERTION] == reward.value == float(answer)


def test_judge_is_not_called_if_assertions_are_not_in_the_basis(domain: GetDomain) -> None:
    mock, judge = domain("mock"), FixedJudge(answer=False)
    reward = RewardOracle({"mock": mock}, judge=judge).score(
        played(mock, mock.task("create_task_1"))
    )
    assert (judge.asked, reward.value) == (0, 1.0)


def test_evaluation_type_selects_the_components(domain: GetDomain) -> None:
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


def test_action_checks_report_tool_and_argument_matches(domain: GetDomain) -> None:
    airline = domain("airline")
    task = next(task for task in airline.tasks("base") if len(task.gold_actions) == 1)
    gold = task.gold_actions[0].call
    wrong = gold.model_copy(update={"arguments": dict.fromkeys(gold.arguments, "no")})
    run = execute(airline, task, scripted_recording(task, [wrong]))
    reward = RewardOracle({"airline": airline}).score(run.trajectory)
    check = reward.action_checks[0]
    assert (check.name_match, check.arguments_match, check.match) == (True, False, False)
    assert reward.tool_accuracy == 0.0
    full = RewardOracle({"airline": airline}).score(played(airline, task))
    assert (full.action_checks[0].arguments_match, full.tool_accuracy) == (True, 1.0)


def test_call_without_arguments_matches_in_tau2_but_not_its_arguments(
    domain: GetDomain,
) -> None:
    airline = domain("airline")
    task = next(task for task in airline.tasks("base") if len(task.gold_actions) == 1)
    bare = task.gold_actions[0].call.model_copy(update={"arguments": {}})
    run = execute(airline, task, scripted_recording(task, [bare]))
    check = RewardOracle({"airline": airline}).score(run.trajectory).action_checks[0]
    assert (check.match, check.arguments_match) == (True, False)


def test_tool_result_that_differs_on_replay_gives_0_with_a_reason(
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


def test_missing_tool_result_and_user_message_in_solo_mode_give_0_with_a_reason(
    domain: GetDomain,
) -> None:
    mock = domain("mock")
    trajectory = played(mock, mock.task("create_task_1"))
    without_results = tuple(message for message in trajectory.messages if message.role != "tool")
    oracle = RewardOracle({"mock": mock})
    unanswered = oracle.score(trajectory.model_copy(update={"messages": without_results}))
    assert "has no answer" in (unanswered.reason or "")
    solo = oracle.score(trajectory.model_copy(update={"solo": True}))
    assert "a user speaks in a solo episode" in (solo.reason or "")
    assert unanswered.value == solo.value == 0.0


def test_unknown_assertion_gives_0_with_a_reason(domain: GetDomain) -> None:
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


def test_judge_free_basis_uses_communicate_if_assertions_restate_it() -> None:
    both = criteria("DB NL_ASSERTION", nl_assertions=["says 5"], communicate_info=["5"])
    assert judge_free(both) == (RewardType.DB, RewardType.COMMUNICATE)
    effects = criteria("DB NL_ASSERTION", nl_assertions=["cancels"])
    assert judge_free(effects) == (RewardType.DB,)
    unasserted = criteria("DB NL_ASSERTION", communicate_info=["5"])
    assert judge_free(unasserted) == (RewardType.DB,)
    plain = criteria("DB COMMUNICATE")
    assert judge_free(plain) == plain.reward_basis


def test_retail_needs_a_judge_in_40_tasks_and_in_none_with_the_judge_free_basis(
    tau2_data: Path,
) -> None:
    retail = load_domain("retail", tau2_data)
    num_not_judged = 0
    for task in retail.tasks("base"):
        trajectory = played(retail, task)
        num_not_judged += bool(RewardOracle({"retail": retail}).score(trajectory).not_judged)
        free = RewardOracle({"retail": retail}, basis="judge_free").score(trajectory)
        assert (free.value, free.not_judged, free.basis_name) == (1.0, (), "judge_free")
    assert num_not_judged == 40


def test_every_public_vector_agrees_with_tau2(vectors: Path, tau2_data: Path) -> None:
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
        "communicated": result["communicate_checks"],
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
        "communicated": [check["met"] for check in upstream["communicate_checks"]],
        "outputs": upstream["tool_outputs"],
        "hashes": upstream["hashes"],
    }
