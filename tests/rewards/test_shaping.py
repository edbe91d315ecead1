from collections.abc import Callable, Sequence

import pytest

from grpo_cl.config import RewardConfig
from grpo_cl.envs import Domain
from grpo_cl.rewards import SHAPINGS, RewardOracle, shaped_reward, training_reward
from grpo_cl.rollout.baselines import scripted_recording
from grpo_cl.rollout.recordings import execute
from grpo_cl.types import Judgement, Reward, RewardType, Task, Termination, ToolCall

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
    run = execute(domain, task, scripted_recording(task, calls, communicates=bool(calls)))
    return RewardOracle({domain.name: domain}).score(run.trajectory)


def progress(reward: Reward) -> float:
    return shaped_reward(reward, "progress", {})


def gold(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def test_shaped_rewards_equal_hand_computed_fractions() -> None:
    weights = {RewardType.DB: 3.0, RewardType.COMMUNICATE: 1.0}
    assert progress(some_reward()) == pytest.approx((1 / 2 + 1 / 4 + 2 / 3 + 1) / 4)
    assert shaped_reward(some_reward(), "tool_accuracy", {}) == pytest.approx(1 / 3)
    assert shaped_reward(some_reward(), "weighted", weights) == 1 / 4


def test_progress_uses_the_components_of_the_basis_that_have_checks() -> None:
    assert progress(some_reward(basis=("DB",))) == 1 / 2
    assert progress(some_reward(basis=("DB",), agreement=None)) == 0.0
    assert progress(some_reward(basis=("ENV_ASSERTION",))) == 1 / 4
    assert progress(some_reward(basis=("DB", "COMMUNICATE"))) == 3 / 4
    assert progress(some_reward(basis=("DB", "COMMUNICATE"), communicate_checks=())) == 1 / 2
    judgement = Judgement(model="judge", votes=((True, False, True, True),))
    judged = some_reward(basis=("DB", "NL_ASSERTION"), judgement=judgement)
    assert progress(judged) == (1 / 2 + 3 / 4) / 2
    assert progress(judged.model_copy(update={"judgement": None})) == 1 / 2


def test_shaped_reward_without_checks_is_the_reward() -> None:
    bare = some_reward(basis=(), components={}, action_checks=(), value=1.0)
    assert [shaped_reward(bare, name, {}) for name in SHAPINGS] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", sorted(SHAPINGS))
def test_truncated_episode_has_shaped_reward_0(domain: GetDomain, name: str) -> None:
    airline = domain("airline")
    task = airline.task("37")
    run = execute(airline, task, scripted_recording(task, gold(task), communicates=True))
    early = run.trajectory.model_copy(update={"termination": Termination.MAX_STEPS})
    reward = RewardOracle({"airline": airline}).score(early)
    assert (reward.tool_accuracy, reward.agreement) == (1.0, 1.0)
    weights = {RewardType.DB: 1.0} if name == "weighted" else {}
    assert shaped_reward(reward, name, weights) == 0.0
    rule = RewardConfig.model_validate({"shaping": name, "weights": weights})
    assert training_reward(reward, rule) == 0.0


def test_progress_on_an_airline_task_equals_hand_computed_values(domain: GetDomain) -> None:
    airline = domain("airline")
    task = airline.task("37")  # cancels one reservation (3 leaves), upgrades another (5 leaves)
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
def test_failed_calls_add_no_progress(domain: GetDomain, name: str) -> None:
    known = domain(name)
    for task in known.tasks("test"):
        idle = score(known, task, [])
        bare = [call.model_copy(update={"arguments": {}}) for call in gold(task)] * 4
        reward = score(known, task, bare).model_copy(
            update={
                "communicate_checks": idle.communicate_checks
            }  # the closing text has all required texts
        )
        assert not bare or reward.tool_accuracy == 1.0  # τ² counts each of them
        assert progress(reward) == progress(idle)


def test_half_of_the_telecom_assertions_is_progress_one_half(domain: GetDomain) -> None:
    telecom = domain("telecom")
    broken = ("airplane_mode_on", "data_usage_exceeded")
    task = next(task for task in telecom.tasks("test") if all(what in task.id for what in broken))
    reward = score(telecom, task, gold(task)[:-1])
    assert reward.basis == (RewardType.ENV_ASSERTION,)
    assert (reward.env_assertions, reward.value) == ((False, True), 0.0)
    assert progress(reward) == 1 / 2
    assert progress(score(telecom, task, [])) == 0.0


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "mock"])
def test_progress_is_1_if_and_only_if_the_reward_is_1(domain: GetDomain, name: str) -> None:
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
