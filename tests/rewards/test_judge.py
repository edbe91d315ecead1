"""The LLM judge of natural-language assertions against a real server on loopback."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chat_server import Answer, Body, ChatServer, Fault, form_of
from grpo_cl.config import JudgeConfig, ModelsConfig, RolloutConfig
from grpo_cl.envs import Domain
from grpo_cl.errors import ModelCallError
from grpo_cl.llm import ModelPool
from grpo_cl.llm.json_replies import parse_verdicts
from grpo_cl.metrics.rmatrix import measure
from grpo_cl.rewards import RewardOracle
from grpo_cl.rewards.judge import LLMJudge
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.trainer.evaluate import require_valid
from grpo_cl.types import Judgement, Reward, RewardType, Task, Termination, Trajectory

GetDomain = Callable[[str], Domain]
MODEL = "openai-api/loopback/judge"
QUICK = ModelsConfig(cache_dir=None, retries=1, backoff_s=0.001, timeout_s=30)
ASSERTIONS = ("The agent created a task.", "The agent said goodbye.", "The agent was polite.")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


def verdicts(*met: bool) -> str:
    entries = [{"number": n, "reason": "So it is.", "met": m} for n, m in enumerate(met, 1)]
    return json.dumps({"verdicts": entries})


def judged_task(mock: Domain) -> Task:
    task = mock.task("create_task_1")
    assert task.evaluation_criteria is not None
    criteria = task.evaluation_criteria.model_copy(
        update={
            "nl_assertions": ASSERTIONS,
            "reward_basis": (RewardType.DB, RewardType.NL_ASSERTION),
        }
    )
    return task.model_copy(update={"evaluation_criteria": criteria})


def solved(mock: Domain) -> Trajectory:
    gold = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
    return run_episodes(gold, {"mock": mock}, [judged_task(mock)], RolloutConfig(user="scripted"))[
        0
    ]


def scored(
    mock: Domain,
    answer: Answer,
    faults: Sequence[Fault | None] = (),
    *,
    judge: JudgeConfig | None = None,
    models: ModelsConfig = QUICK,
) -> tuple[Reward, ChatServer]:
    with ChatServer(answer, faults) as server, ModelPool(models) as opened:
        config = (judge or JudgeConfig(model=MODEL)).model_copy(update={"base_url": server.url})
        oracle = RewardOracle({"mock": mock}, judge=LLMJudge(opened, config))
        return oracle.score(solved(mock)), server


@pytest.mark.parametrize("met", [(True, True, True), (True, False, True)])
def test_all_assertions_are_decided_in_one_call(domain: GetDomain, met: tuple[bool, ...]):
    reward, server = scored(domain("mock"), lambda body: verdicts(*met))
    assert reward.value == reward.components[RewardType.NL_ASSERTION] == float(all(met))
    assert reward.not_judged == ()
    (body,) = server.requests
    assert form_of(body) == "verdict"
    case = body["messages"][1]["content"]
    assert all(text in case for text in ASSERTIONS)
    assert "[calls create_task(" in case


def test_reward_records_the_judge_and_its_calls(domain: GetDomain):
    reward, _ = scored(domain("mock"), lambda body: verdicts(True, True, True))
    assert reward.judgement is not None
    assert reward.judgement.model == MODEL
    assert reward.judgement.votes == ((True, True, True),)
    assert reward.judgement.calls[0].purpose == "verdict"
    assert Reward.model_validate_json(reward.model_dump_json()) == reward


def test_majority_of_votes_decides_and_agreement_is_measured(domain: GetDomain):
    answers = iter(
        [verdicts(True, False, True), verdicts(True, True, False), verdicts(True, True, True)]
    )
    judge = JudgeConfig(model=MODEL, votes=3, temperature=1.0)
    reward, server = scored(domain("mock"), lambda body: next(answers), judge=judge)
    assert reward.judgement is not None
    assert reward.judgement.met == (True, True, True)
    assert reward.judgement.agreement == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert len(set(server.seeds)) == 3
    assert measure({"t": [reward]}).numbers()["judge_agreement"] == pytest.approx(7 / 9)


def test_tie_counts_as_not_met():
    assert Judgement(model="m", votes=((True,), (False,))).met == (False,)


def test_several_votes_at_temperature_0_are_a_config_error():
    with pytest.raises(ValueError, match=r"judge\.votes above 1 require judge\.temperature"):
        JudgeConfig(model=MODEL, votes=3)


def test_unreadable_verdict_is_asked_for_once_more(domain: GetDomain):
    answers = iter(["They did fine.", verdicts(True, True, True)])
    reward, _ = scored(domain("mock"), lambda body: next(answers))
    assert reward.value == 1.0
    assert reward.judgement is not None
    assert [call.rejected for call in reward.judgement.calls] == ["unreadable", None]


@pytest.mark.parametrize(
    "text",
    [
        verdicts(True, False),
        f"Let me see.\n```json\n{verdicts(True, False)}\n```",
        '{"verdicts": [{"number": 2, "met": false}, {"number": 1, "met": true}]}',
        '{"verdicts": [{"met": "yes"}, {"met": "no"}]}',
    ],
)
def test_verdicts_are_parsed_leniently(text: str):
    assert parse_verdicts(text, 2) == (True, False)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '{"verdicts": "all met"}',
        '{"verdicts": [{"met": true}]}',
        '{"verdicts": [{"number": 1, "met": true}, {"number": 1, "met": true}]}',
        '{"verdicts": [{"met": true}, {"reason": "hm"}]}',
        '{"verdicts": [{"number": [1], "met": true}, {"met": true}]}',
        verdicts(True, True, True),
    ],
)
def test_incomplete_verdicts_are_an_error(text: str):
    with pytest.raises(ValueError):
        parse_verdicts(text, 2)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["429", "500", "garbage", "truncated"])
def test_transient_failure_does_not_change_the_verdict(domain: GetDomain, fault: Fault):
    reward, _ = scored(domain("mock"), lambda body: verdicts(True, True, True), [fault])
    assert reward.value == 1.0
    assert reward.judgement is not None
    assert reward.judgement.calls[0].retries == 1


def test_episode_without_a_verdict_ends_by_an_infrastructure_error(domain: GetDomain):
    mock = domain("mock")
    episode = solved(mock)
    one_by_one = QUICK.model_copy(update={"concurrency": 1})
    server = ChatServer(lambda body: verdicts(True, True, True), ["500", "500"])
    with server, ModelPool(one_by_one) as models:
        judge = LLMJudge(models, JudgeConfig(model=MODEL, base_url=server.url))
        lost, told = RewardOracle({"mock": mock}, judge=judge).score_all([episode, episode])
    endings = {lost.trajectory.termination, told.trajectory.termination}
    assert endings == {Termination.INFRASTRUCTURE_ERROR, Termination.USER_STOP}
    assert [one.reward.value for one in require_valid([lost, told])] == [1.0]


def test_run_ends_with_a_reason_if_no_episode_has_a_verdict(domain: GetDomain):
    mock = domain("mock")
    with ChatServer(lambda body: "Hm.") as server, ModelPool(QUICK) as models:
        judge = LLMJudge(models, JudgeConfig(model=MODEL, base_url=server.url))
        lost = RewardOracle({"mock": mock}, judge=judge).score_all([solved(mock)])
    with pytest.raises(
        ModelCallError, match=r"none of 1 episodes.*no readable verdict.*resume_from"
    ):
        require_valid(lost)


def test_scoring_a_stored_trajectory_again_uses_the_cache(domain: GetDomain, tmp_path: Path):
    mock = domain("mock")
    cached = QUICK.model_copy(update={"cache_dir": tmp_path})
    text = solved(mock).model_dump_json()

    def score(models: ModelPool, server: ChatServer) -> Reward:
        judge = LLMJudge(models, JudgeConfig(model=MODEL, base_url=server.url))
        oracle = RewardOracle({"mock": mock}, judge=judge)
        return oracle.score(Trajectory.model_validate_json(text))

    with ChatServer(lambda body: verdicts(True, False, True)) as server:
        with ModelPool(cached) as models:
            first = score(models, server)
        with ModelPool(cached) as models:
            again = score(models, server)
    assert len(server.requests) == 1
    assert (again.value, again.judgement and again.judgement.votes) == (0.0, ((True, False, True),))
    assert first.components == again.components


def test_truncated_episode_is_not_judged(domain: GetDomain):
    mock = domain("mock")
    early = solved(mock).model_copy(update={"termination": Termination.MAX_STEPS})

    def never(body: Body) -> str:
        raise AssertionError(body)

    with ChatServer(never) as server, ModelPool(QUICK) as models:
        judge = LLMJudge(models, JudgeConfig(model=MODEL, base_url=server.url))
        reward = RewardOracle({"mock": mock}, judge=judge).score(early)
    assert (reward.value, server.requests) == (0.0, [])
