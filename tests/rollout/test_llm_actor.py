"""Hosted models as agents, the policy as the user, and the budget of a run."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from architectures import built, llama
from chat_parts import Customers, GoldAgent
from chat_server import Body, ChatServer, Fault, calling, calling_text
from grpo_cl.cli import main, make_parser
from grpo_cl.cli.train import evaluation_settings
from grpo_cl.config import GRPOConfig, ModelsConfig, RolloutConfig, UserConfig
from grpo_cl.envs import Domain
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import BudgetError, ConfigError, ModelCallError
from grpo_cl.llm import GenerationParams, ModelPool, Prompt
from grpo_cl.policy.inference.policy_agent import PolicyActor
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.rollout.llm_actor import HostedActor, policy_as_user
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.resume import resume_point
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer.auxiliary_models import require_models
from grpo_cl.trainer.hosted import HostedEvaluation
from grpo_cl.types import Message, Task, Termination
from grpo_cl.users import LLMUserFactory
from parameters import mostly_slow
from small_runs import make_policy, small_config, small_trainer
from word_chat import WordChat

GetDomain = Callable[[str], Domain]
MODEL = "openai-api/loopback/frontier"
QUICK = {"cache_dir": None, "retries": 0, "backoff_s": 0.001, "timeout_s": 30}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


def settings(domain: str, **changes: Any) -> GRPOConfig:
    defaults: dict[str, Any] = {
        "task_order": (domain,),
        "tau2_data_dir": None,
        "rollout": {"user": "scripted", "replays": 0},
        "evaluation": {"max_tasks": 1},
        "models": QUICK,
    }
    return GRPOConfig.model_validate(defaults | changes)


def first_task(domain: Domain) -> Task:
    return TaskDataLoader(settings(domain.name)).evaluation_tasks(domain.name)[0]


def hosted(config: GRPOConfig, server: ChatServer) -> HostedEvaluation:
    return HostedEvaluation(config, MODEL, base_url=server.url)


@pytest.mark.parametrize("name", ["mock", "airline", "retail"])
def test_hosted_model_is_the_agent_of_any_domain(domain: GetDomain, name: str):
    task = first_task(domain(name))
    with ChatServer(GoldAgent(task, solo=False)) as server, hosted(settings(name), server) as model:
        cell = model.evaluate(name)
        assert model.auxiliary_models.spent[0] > 0
    assert cell.mean == 1.0
    assert list(cell.tasks) == [task.id]
    offered = {tool["function"]["name"] for tool in server.requests[0]["tools"]}
    assert offered == {tool["function"]["name"] for tool in domain(name).tools()}


def test_hosted_model_solves_a_ticket_in_solo_mode(domain: GetDomain):
    mock, task = domain("mock"), first_task(domain("mock"))
    pool = ModelPool(ModelsConfig.model_validate(QUICK))
    with ChatServer(GoldAgent(task, solo=True)) as server, pool as models:
        actor = HostedActor(models.open(MODEL, GenerationParams(0.0, 256), base_url=server.url))
        limits = RolloutConfig(user="solo")
        (episode,) = run_episodes(actor, {"mock": mock}, [task], limits, seeds=[3])
        played = actor.with_calls(episode)
    assert played.termination is Termination.AGENT_STOP
    assert {call.role for call in played.model_calls} == {"agent"}
    assert len(played.model_calls) == len(server.requests)


def test_evaluate_command_prints_the_score_of_a_hosted_model(
    domain: GetDomain, capsys: pytest.CaptureFixture[str]
):
    task = first_task(domain("mock"))
    with ChatServer(GoldAgent(task, solo=False)) as server:
        command = f"evaluate --model {MODEL} --base-url {server.url} --domain mock --user scripted"
        limits = "--evaluation.max_tasks 1 --models.cache_dir none --models.retries 0"
        assert main([*command.split(), *limits.split()]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["domain"], printed["model"], printed["reward_mean"]) == ("mock", MODEL, 1.0)
    assert printed["tokens_so_far"] > 0


def test_evaluate_arguments_are_expanded_to_settings():
    evaluate, _ = make_parser("evaluate").find_command(["evaluate"])
    asked = evaluate.parse(["--model=a/b", "--domain", "retail", "airline", "--user", "llm"])
    assert (asked.model, asked.base_url, asked.path) == ("a/b", None, None)
    words = ["--task_order", "retail", "airline", "--rollout.user", "llm"]
    assert evaluation_settings(asked) == words
    asked = evaluate.parse(["some/run", "--user.model", "x/y", "seed=3"])
    assert (asked.path, asked.settings) == ("some/run", ["--user.model", "x/y", "seed=3"])
    with pytest.raises(ConfigError, match="--model: expected one argument"):
        evaluate.parse(["--model", "--domain", "retail"])


def test_episodes_with_endpoint_failures_are_counted_and_not_in_the_mean(domain: GetDomain):
    task = first_task(domain("mock"))
    config = settings("mock", evaluation={"max_tasks": 1, "trials": 3})
    server = ChatServer(GoldAgent(task, solo=False), ["500"])
    with server, hosted(config, server) as model:
        cell = model.evaluate("mock")
    assert (cell.mean, cell.tasks, cell.left_out) == (1.0, {task.id: (2, 2)}, 1)
    assert cell.numbers()["left_out"] == 1


@pytest.mark.parametrize(
    "call",
    [calling_text("create_task", '{"user_id": "user_1", "ti'), calling("make_task", {})],
    ids=["cut off", "unknown"],
)
def test_a_broken_call_of_a_hosted_agent_is_left_out_and_not_scored_zero(
    call: dict[str, object],
):
    raises = pytest.raises(ModelCallError, match=r"none of 1 episodes.*gave no readable reply")
    server = ChatServer(lambda body: call)
    with server, hosted(settings("mock"), server) as model, raises:
        model.evaluate("mock")


def test_evaluation_without_a_valid_episode_is_an_error():
    def answer(body: Body) -> str:
        raise AssertionError(body)

    raises = pytest.raises(ModelCallError, match="none of 1 episodes could be played")
    with ChatServer(answer, ["500"]) as server, hosted(settings("mock"), server) as model, raises:
        model.evaluate("mock")


def test_policy_cannot_be_the_user_of_a_hosted_agent():
    config = settings("mock", rollout={"user": "llm"}, user={"model": "policy"})
    with pytest.raises(ConfigError, match=r"user\.model=policy needs a policy"):
        HostedEvaluation(config, "mockllm/model")


@pytest.mark.parametrize(
    ("user", "model", "message"),
    [
        ("llm", None, "name it with user.model"),
        ("scripted", "mockllm/model", "is unused: rollout.user is 'scripted'"),
        ("lmm", None, "Did you mean 'llm'"),
    ],
)
def test_model_driven_user_and_user_model_require_each_other(
    user: str, model: str | None, message: str
):
    with pytest.raises(ConfigError, match=message):
        require_models(settings("mock", rollout={"user": user}, user={"model": model}))


def word_actor(context: int) -> PolicyActor:
    sampler = TransformersSampler(built(llama), device="cpu", slots=4, context=context)
    return PolicyActor(WordChat(), sampler, temperature=1.0, max_new_tokens=9, top_p=1.0)


def test_policy_can_be_the_user(domain: GetDomain):
    mock = domain("mock")
    config = UserConfig(model="policy")
    users = LLMUserFactory(config, policy_as_user(word_actor(200), "policy"))
    agent = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
    limits = RolloutConfig(user="llm", max_steps=8)
    played = run_episodes(agent, {"mock": mock}, [first_task(mock)], limits, models=users)[0]
    user_texts = [message.content for message in played.messages if message.role == "user"]
    assert user_texts == [call.reply for call in played.model_calls if not call.rejected]
    assert {call.model for call in played.model_calls} == {"policy"}
    assert all(call.output_tokens for call in played.model_calls)


def test_prompt_longer_than_the_policys_context_is_a_model_call_error(domain: GetDomain):
    model = policy_as_user(word_actor(16), "policy")(first_task(domain("mock")))
    long = [Message(role="user", content="hello please") for _ in range(20)]
    with pytest.raises(ModelCallError, match="the policy cannot play the user"):
        asyncio.run(model.reply(Prompt("task", long), seed=1))


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


def all_customers(domain: GetDomain) -> Customers:
    return Customers(domain("mock"), domain("mock").tasks("base"))


def test_training_excludes_and_counts_episodes_with_endpoint_failures(
    domain: GetDomain, policy: Path, tmp_path: Path
):
    faults: list[Fault | None] = [*([None] * 6), "500"]
    with ChatServer(all_customers(domain), faults) as server:
        trainer = small_trainer(run_config(policy, tmp_path / "run", server))
        trainer.train()
        trainer.auxiliary_models.close()
    steps = list(read_journal(RunDir(tmp_path / "run").metrics_journal))
    counts = [step["infrastructure_errors"] for step in steps if "infrastructure_errors" in step]
    assert sum(counts) == 1
    episodes = list(read_journal(RunDir(tmp_path / "run").trajectories_journal))
    endings = [episode["termination"] for episode in episodes]
    assert endings.count("infrastructure_error") == 1
    assert all(episode["model_calls"] for episode in episodes)


@pytest.mark.slow
def test_exhausted_budget_ends_the_run_and_a_larger_budget_resumes_it(
    domain: GetDomain, policy: Path, tmp_path: Path
):
    run_dir = tmp_path / "run"
    cache: dict[str, Any] = {"cache_dir": tmp_path / "replies"}
    with ChatServer(all_customers(domain)) as server:
        # Enough for the first evaluation and one step of two.
        config = run_config(policy, run_dir, server, budget_tokens=12_000, **cache)
        trainer = small_trainer(config)
        with pytest.raises(BudgetError, match=r"budget_tokens=12000.*--resume_from"):
            trainer.train()
        trainer.auxiliary_models.close()
        point = resume_point(run_dir)
        assert point.checkpoint is not None
        spent = sum(line["tokens"] for line in read_journal(RunDir(run_dir).spending))
        assert 0 < spent <= 12_000
        config = run_config(policy, run_dir, server, budget_tokens=100_000, **cache)
        resumed = small_trainer(config.model_copy(update={"resume_from": run_dir}))
        resumed.train()
        resumed.auxiliary_models.close()
    assert resumed.auxiliary_models.spent[0] > spent
    assert RunDir(run_dir).r_matrix.exists()


@pytest.mark.parametrize("model", mostly_slow(["policy", "frozen"], fast=["frozen"]))
def test_policy_or_a_frozen_copy_is_the_user_of_a_run(policy: Path, tmp_path: Path, model: str):
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
