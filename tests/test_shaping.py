from collections.abc import Callable, Sequence

import pytest

from grpo_cl.audit import scripted
from grpo_cl.config import RewardConfig
from grpo_cl.domains import Domain
from grpo_cl.recordings import execute
from grpo_cl.rewards import SHAPINGS, RewardOracle, learned_value, shaped
from grpo_cl.transcripts import Judgement
from grpo_cl.types import Reward, RewardType, Task, Termination, ToolCall

GetDomain = Callable[[str], Domain]


def some_reward(**changes: object) -> Reward:
    check = {"action_id": "1", "name": "a", "requestor": "assistant", "is_write": True}
    good = check | {"match": True, "name_match": True, "arguments_match": True}
    lax = good | {"arguments_match": False}
    missed = lax | {"match": False}
    fields: dict[str, object] = {
        "value": 0.0,
        "basis": ("DB", "ENV_ASSERTION", "ACTION", "COMMUNICATE"),
        "basis_name": "tau2",
        "components": {"DB": 0.0, "ENV_ASSERTION": 0.0, "ACTION": 0.0, "COMMUNICATE": 1.0},
        "action_checks": (good, lax, missed),
        "env_assertions": (True, False, False, False),
        "communicate_checks": (True,),
        "agreement": 0.5,
    }
    return Reward.model_validate(fields | changes)


def score(domain: Domain, task: Task, calls: Sequence[ToolCall]) -> Reward:
    run = execute(domain, task, scripted(task, calls, told=bool(calls)))
    return RewardOracle({domain.name: domain}).score(run.trajectory)


def progress(reward: Reward) -> float:
    return shaped(reward, "progress", {})


def gold(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def test_shaped_rewards_are_the_shares_worked_out_by_hand() -> None:
    weights = {RewardType.DB: 3.0, RewardType.COMMUNICATE: 1.0}
    assert progress(some_reward()) == pytest.approx((1 / 2 + 1 / 4 + 2 / 3 + 1) / 4)
    assert shaped(some_reward(), "tool_accuracy", {}) == pytest.approx(1 / 3)
    assert shaped(some_reward(), "weighted", weights) == 1 / 4


def test_progress_looks_at_the_basis_alone_and_passes_over_what_has_no_checks() -> None:
    assert progress(some_reward(basis=("DB",))) == 1 / 2
    assert progress(some_reward(basis=("DB",), agreement=None)) == 0.0
    assert progress(some_reward(basis=("ENV_ASSERTION",))) == 1 / 4
    assert progress(some_reward(basis=("DB", "COMMUNICATE"))) == 3 / 4
    assert progress(some_reward(basis=("DB", "COMMUNICATE"), communicate_checks=())) == 1 / 2
    judgement = Judgement(model="judge", votes=((True, False, True, True),))
    judged = some_reward(basis=("DB", "NL_ASSERTION"), judgement=judgement)
    assert progress(judged) == (1 / 2 + 3 / 4) / 2
    assert progress(judged.model_copy(update={"judgement": None})) == 1 / 2


def test_where_nothing_can_be_checked_a_shaped_reward_is_the_reward() -> None:
    bare = some_reward(basis=(), components={}, action_checks=(), value=1.0)
    assert [shaped(bare, name, {}) for name in SHAPINGS] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", sorted(SHAPINGS))
def test_an_episode_that_was_cut_short_is_worth_nothing_however_it_is_shaped(
    domain: GetDomain, name: str
) -> None:
    airline = domain("airline")
    task = airline.task("37")
    run = execute(airline, task, scripted(task, gold(task), told=True))
    early = run.trajectory.model_copy(update={"termination": Termination.MAX_STEPS})
    reward = RewardOracle({"airline": airline}).score(early)
    assert (reward.tool_accuracy, reward.agreement) == (1.0, 1.0)
    weights = {RewardType.DB: 1.0} if name == "weighted" else {}
    assert shaped(reward, name, weights) == 0.0
    rule = RewardConfig.model_validate({"shaping": name, "weights": weights})
    assert learned_value(reward, rule) == 0.0


def test_progress_on_an_airline_task_is_worked_out_by_hand(domain: GetDomain) -> None:
    airline = domain("airline")
    task = airline.task("37")  # cancels one reservation (3 places), upgrades another (5 places)
    cancel, upgrade = gold(task)[0], gold(task)[-1]
    # A cancellation is a new status and a refund, which has an amount and a card.
    other = cancel.model_copy(update={"arguments": {"reservation_id": "Z7GOZK"}})
    assert progress(score(airline, task, [cancel, upgrade])) == 1.0
    assert progress(score(airline, task, [])) == 0.0
    assert progress(score(airline, task, [cancel])) == 3 / 8
    assert progress(score(airline, task, [upgrade])) == 5 / 8
    assert progress(score(airline, task, [cancel, upgrade, other])) == 8 / 11
    assert progress(score(airline, task, [other])) == 0.0
    assert score(airline, task, [cancel]).value == 0.0


@pytest.mark.parametrize("name", ["airline", "retail"])
def test_calls_that_the_tools_refuse_earn_nothing_however_many(
    domain: GetDomain, name: str
) -> None:
    known = domain(name)
    for task in known.tasks("test"):
        idle = score(known, task, [])
        bare = [call.model_copy(update={"arguments": {}}) for call in gold(task)] * 4
        reward = score(known, task, bare).model_copy(
            update={"communicate_checks": idle.communicate_checks}  # the closing words tell all
        )
        assert not bare or reward.tool_accuracy == 1.0  # the reference counts each of them
        assert progress(reward) == progress(idle)


def test_half_of_the_telecom_assertions_is_half_of_the_way(domain: GetDomain) -> None:
    telecom = domain("telecom")
    broken = ("airplane_mode_on", "data_usage_exceeded")
    task = next(task for task in telecom.tasks("test") if all(what in task.id for what in broken))
    reward = score(telecom, task, gold(task)[:-1])
    assert reward.basis == (RewardType.ENV_ASSERTION,)
    assert (reward.env_assertions, reward.value) == ((False, True), 0.0)
    assert progress(reward) == 1 / 2
    assert progress(score(telecom, task, [])) == 0.0


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "mock"])
def test_progress_is_one_for_a_success_and_for_nothing_else(domain: GetDomain, name: str) -> None:
    known = domain(name)
    for task in known.tasks("test" if "test" in known.splits else "base"):
        calls = gold(task)
        for made in (calls, calls[: len(calls) // 2], []):
            reward = score(known, task, made)
            assert (progress(reward) == 1.0) == (reward.value == 1.0), task.id
            if RewardType.DB in (reward.basis or ()):
                assert (reward.agreement == 1.0) == (reward.components[RewardType.DB] == 1.0)
            else:
                assert reward.agreement is None
