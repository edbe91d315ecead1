"""Models in every part of a run: hosted agents, the policy as the user, and what it may cost."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from architectures import built, llama
from chat_parts import Customers, GoldAgent
from chat_server import Body, ChatServer, Fault
from grpo_cl.casting import policy_as_user
from grpo_cl.cli import main
from grpo_cl.cli.agent import take_agent
from grpo_cl.config import GRPOConfig, RolloutConfig
from grpo_cl.domains import Domain
from grpo_cl.errors import BudgetError, ConfigError, ModelCallError
from grpo_cl.models import Prompt
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.roles import UserConfig
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.rundir import RunDir, read_journal, resume_point
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer.cast import LEDGER, require_cast
from grpo_cl.trainer.hosted import HostedEvaluation
from grpo_cl.types import Message, Task, Termination
from grpo_cl.users import ModelUsers
from small_runs import make_policy, small_config, small_trainer
from word_chat import WordChat

GetDomain = Callable[[str], Domain]
MODEL = "openai-api/loopback/frontier"
QUICK = {"cache_dir": None, "retries": 0, "backoff_s": 0.001, "timeout_s": 30}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


def settings(domain: str, **changes: Any) -> GRPOConfig:
    whole: dict[str, Any] = {
        "task_order": (domain,),
        "tau2_data_dir": None,
        "rollout": {"user": "scripted", "replays": 0},
        "evaluation": {"max_tasks": 1},
        "models": QUICK,
    }
    return GRPOConfig.model_validate(whole | changes)


def first_task(domain: Domain) -> Task:
    return TaskDataLoader(settings(domain.name)).evaluation_tasks(domain.name)[0]


def hosted(config: GRPOConfig, server: ChatServer) -> HostedEvaluation:
    return HostedEvaluation(config, MODEL, base_url=server.url)


@pytest.mark.parametrize("name", ["mock", "airline", "retail"])
def test_a_hosted_model_plays_the_agent_of_any_domain(domain: GetDomain, name: str):
    task = first_task(domain(name))
    with ChatServer(GoldAgent(task, solo=False)) as server, hosted(settings(name), server) as model:
        cell = model.evaluate(name)
        assert model.cast.spent[0] > 0
    assert cell.mean == 1.0
    assert list(cell.tasks) == [task.id]
    offered = {tool["function"]["name"] for tool in server.requests[0]["tools"]}
    assert offered == {tool["function"]["name"] for tool in domain(name).tools()}


def test_a_hosted_model_works_alone_from_a_ticket(domain: GetDomain):
    task = first_task(domain("mock"))
    config = settings("mock", rollout={"user": "solo"})
    with ChatServer(GoldAgent(task, solo=True)) as server, hosted(config, server) as model:
        (played,) = model.play([task], [3])
    assert played.termination is Termination.AGENT_STOP
    assert {call.role for call in played.model_calls} == {"agent"}
    assert len(played.model_calls) == len(server.requests)


def test_the_command_prints_what_a_hosted_model_reaches(
    domain: GetDomain, capsys: pytest.CaptureFixture[str]
):
    task = first_task(domain("mock"))
    with ChatServer(GoldAgent(task, solo=False)) as server:
        words = f"evaluate --model {MODEL} --base-url {server.url} --domain mock --user scripted"
        limits = "--evaluation.max_tasks 1 --models.cache_dir none --models.retries 0"
        assert main([*words.split(), *limits.split()]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["domain"], told["model"], told["reward_mean"]) == ("mock", MODEL, 1.0)
    assert told["tokens_so_far"] > 0


def test_the_words_of_evaluate_are_written_out():
    asked = take_agent(["--model=a/b", "--domain", "retail", "airline", "--user", "llm"])
    assert (asked.model, asked.base_url) == ("a/b", None)
    assert asked.settings == ["--task_order", "retail", "airline", "--rollout.user", "llm"]
    assert take_agent(["--user.model", "x/y", "seed=3"]).settings == [
        "--user.model",
        "x/y",
        "seed=3",
    ]
    with pytest.raises(ConfigError, match="--model takes the name of a hosted model"):
        take_agent(["--model", "--domain", "retail"])


def test_episodes_that_an_endpoint_lost_are_counted_and_not_in_the_mean(domain: GetDomain):
    task = first_task(domain("mock"))
    config = settings("mock", evaluation={"max_tasks": 1, "trials": 3})
    server = ChatServer(GoldAgent(task, solo=False), ["500"])
    with server, hosted(config, server) as model:
        cell = model.evaluate("mock")
    assert (cell.mean, cell.tasks, cell.left_out) == (1.0, {task.id: (2, 2)}, 1)
    assert cell.numbers()["left_out"] == 1


def test_an_evaluation_of_which_nothing_is_left_is_an_error():
    def answer(body: Body) -> str:
        raise AssertionError(body)

    lost = pytest.raises(ModelCallError, match="none of 1 episodes could be played")
    with ChatServer(answer, ["500"]) as server, hosted(settings("mock"), server) as model, lost:
        model.evaluate("mock")


def test_a_hosted_agent_leaves_no_policy_to_play_the_user():
    config = settings("mock", rollout={"user": "llm"}, user={"model": "policy"})
    with pytest.raises(ConfigError, match=r"user\.model=policy needs a policy"):
        HostedEvaluation(config, "mockllm/model")


@pytest.mark.parametrize(
    ("user", "model", "complaint"),
    [
        ("llm", None, "name it with user.model"),
        ("scripted", "mockllm/model", "has no part: rollout.user is 'scripted'"),
        ("lmm", None, "Did you mean 'llm'"),
    ],
)
def test_a_user_and_its_model_go_together(user: str, model: str | None, complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        require_cast(settings("mock", rollout={"user": user}, user={"model": model}))


def word_actor(context: int) -> PolicyActor:
    sampler = TransformersSampler(built(llama), device="cpu", slots=4, context=context)
    return PolicyActor(WordChat(), sampler, temperature=1.0, max_new_tokens=9, top_p=1.0)


def test_a_policy_can_play_the_user(domain: GetDomain):
    mock = domain("mock")
    config = UserConfig(model="policy")
    users = ModelUsers(config, policy_as_user(word_actor(200), "policy"))
    agent = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
    limits = RolloutConfig(user="llm", max_steps=8)
    played = run_episodes(agent, {"mock": mock}, [first_task(mock)], limits, models=users)[0]
    spoken = [message.content for message in played.messages if message.role == "user"]
    assert spoken == [call.reply for call in played.model_calls if not call.rejected]
    assert {call.model for call in played.model_calls} == {"policy"}
    assert all(call.output_tokens for call in played.model_calls)


def test_a_policy_that_cannot_read_so_much_is_no_fault_of_the_agent(domain: GetDomain):
    speaker = policy_as_user(word_actor(16), "policy")(first_task(domain("mock")))
    long = [Message(role="user", content="hello please") for _ in range(20)]
    with pytest.raises(ModelCallError, match="the policy cannot play the user"):
        asyncio.run(speaker.reply(Prompt("task", long), seed=1))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


def run_config(policy: Path, log_dir: Path, server: ChatServer, **models: Any) -> GRPOConfig:
    return small_config(
        policy,
        log_dir,
        task_order=("mock",),
        rollout={"user": "llm", "prompt": "compact", "max_turns": 2, "replays": 0},
        user={"model": MODEL, "base_url": server.url},
        models={**QUICK, **models},
    )


def everybody(domain: GetDomain) -> Customers:
    return Customers(domain("mock"), domain("mock").tasks("base"))


def test_training_leaves_lost_episodes_out_and_counts_them(
    domain: GetDomain, policy: Path, tmp_path: Path
):
    faults: list[Fault | None] = [*([None] * 6), "500"]
    with ChatServer(everybody(domain), faults) as server:
        trainer = small_trainer(run_config(policy, tmp_path / "run", server))
        trainer.train()
        trainer.cast.close()
    steps = list(read_journal(RunDir(tmp_path / "run").metrics_journal))
    lost = [step["infrastructure_errors"] for step in steps if "infrastructure_errors" in step]
    assert sum(lost) == 1
    episodes = list(read_journal(RunDir(tmp_path / "run").trajectories_journal))
    endings = [episode["termination"] for episode in episodes]
    assert endings.count("infrastructure_error") == 1
    assert all(episode["model_calls"] for episode in episodes)


def test_a_spent_budget_ends_the_run_and_a_larger_one_goes_on_with_it(
    domain: GetDomain, policy: Path, tmp_path: Path
):
    run_dir = tmp_path / "run"
    cache: dict[str, Any] = {"cache_dir": tmp_path / "replies"}
    with ChatServer(everybody(domain)) as server:
        # Enough for the first evaluation and one step of two.
        config = run_config(policy, run_dir, server, budget_tokens=12_000, **cache)
        trainer = small_trainer(config)
        with pytest.raises(BudgetError, match=r"budget_tokens=12000.*--resume_from"):
            trainer.train()
        trainer.cast.close()
        point = resume_point(run_dir)
        assert point.checkpoint is not None
        spent = sum(line["tokens"] for line in read_journal(run_dir / LEDGER))
        assert 0 < spent <= 12_000
        config = run_config(policy, run_dir, server, budget_tokens=100_000, **cache)
        again = small_trainer(config.model_copy(update={"resume_from": run_dir}))
        again.train()
        again.cast.close()
    assert again.cast.spent[0] > spent
    assert RunDir(run_dir).r_matrix.exists()


@pytest.mark.parametrize("model", ["policy", "frozen"])
def test_the_policy_or_a_frozen_copy_plays_the_user_of_a_run(
    policy: Path, tmp_path: Path, model: str
):
    config = small_config(
        policy,
        tmp_path / "run",
        task_order=("mock",),
        num_steps_per_task=1,
        rollout={"user": "llm", "prompt": "compact", "max_turns": 1},
        sampling={"max_context": 2048, "dialect": "compact", "slots": 8},
        user={"model": model, "temperature": 1.0, "guard_retries": 5},
    )
    small_trainer(config).train()
    (episode, *_) = read_journal(RunDir(tmp_path / "run").trajectories_journal)
    assert episode["model_calls"][0]["model"] == model
