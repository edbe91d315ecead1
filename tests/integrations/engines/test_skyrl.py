"""The real ``skyrl_gym`` and SkyRL's generator with our environment, on a CPU."""
# pyright: basic, reportMissingImports=false

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

WHY = "SkyRL needs a separate environment: make test-engine-skyrl"
skyrl_gym = pytest.importorskip("skyrl_gym", reason=WHY)
pytest.importorskip("skyrl.train", reason=WHY)

import ray
from ray import cloudpickle
from skyrl.train.config.config import FSDPConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.utils import get_rollout_metrics
from skyrl.train.utils.trainer_utils import build_dataloader
from torch import distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM

from chat_server import ChatServer
from chat_templates import tokenizer_of
from documented_plans import documented_arguments
from engine_steps import Step, read_steps
from grpo_cl.cli import main
from grpo_cl.config import RewardConfig, RolloutConfig
from grpo_cl.envs import DOMAINS, Domain
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.plan.folder import CONFIG_VARIABLE
from grpo_cl.integrations.rows import read_table, task_row
from grpo_cl.integrations.skyrl import workers
from grpo_cl.integrations.skyrl.environment import register
from grpo_cl.integrations.skyrl.settings import load_settings, read_settings
from grpo_cl.integrations.skyrl.training import (
    Experiment,
    GrpoClGenerator,
    on_worker,
    ordered_loader,
    workers_for,
)
from grpo_cl.integrations.text_chat import TextChat
from grpo_cl.policy.chat.chat import chat_for
from grpo_cl.rewards import RewardOracle, training_reward
from grpo_cl.rollout import Agent, Scene, ScriptedActor, run_episodes
from grpo_cl.runs.episodes import FOLDER_VARIABLE
from grpo_cl.types import Message, Task, ToolCall
from skyrl_clients import InferenceClient, PolicyClient, ScriptedClient, training_table
from tiny_policies import SIZES, byte_tokenizer

GetDomain = Callable[[str], Domain]
OURS = "environment.skyrl_gym.grpo_cl"
PLAIN = TextChat("json")
"""The dialect of the byte tokenizer, whose chat template has no tools."""


def communicated(task: Task) -> str:
    criteria = task.evaluation_criteria
    return " ".join((criteria.communicate_info or ()) if criteria else ())


GOLD = ScriptedActor(
    lambda task: [action.call for action in task.gold_actions], closing=communicated
)


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def texts(task: Task, *, solo: bool) -> list[str]:
    """The gold solution as reply texts, followed by spare closing replies."""
    agent: Agent = GOLD.join(Scene(task, "", (), solo, 0))
    turns = [asyncio.run(agent.act(())) for _ in range(len(task.gold_actions) + 8)]
    return [PLAIN.observation([turn])[0]["content"] for turn in turns]


def extras(domain: Domain, task: Task, user: str) -> dict[str, Any]:
    row = task_row(domain, task, split="train", index=0, user=user)
    return {"extra_info": row["extra_info"], "max_turns": 40}


def first_task(domain: Domain) -> Task:
    return domain.tasks("test" if "test" in domain.splits else "base")[0]


@pytest.mark.parametrize("user", ["solo", "scripted"])
@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_episode_of_every_domain_has_the_reward_of_a_local_run(
    domain: GetDomain, name: str, user: str
) -> None:
    played_domain = domain(name)
    task = first_task(played_domain)
    (local,) = run_episodes(GOLD, {name: played_domain}, [task], RolloutConfig(user=user))
    played_as = extras(played_domain, task, user)
    env = skyrl_gym.make("grpo_cl", env_config={"dialect": PLAIN.dialect}, extras=played_as)
    opening, _ = env.init([])
    assert opening[0]["role"] == "system"
    assert played_domain.policy_text(solo=user == "solo") in opening[0]["content"]
    assert all(tool["function"]["name"] in opening[0]["content"] for tool in played_domain.tools())
    replies = iter(texts(task, solo=user == "solo"))
    steps = [env.step(next(replies))]
    while not steps[-1]["done"]:
        assert steps[-1]["observations"]
        steps.append(env.step(next(replies)))
    reward = RewardOracle({name: played_domain}).score(local)
    expected = training_reward(reward, RewardConfig())
    assert [step["reward"] for step in steps] == [0.0] * (len(steps) - 1) + [expected]
    assert env.get_metrics()[f"reward/{name}"] == reward.value
    env.close()


def generator_of(client: InferenceClient, *overrides: str) -> GrpoClGenerator:
    settings = read_settings(["generator.sampling_params.max_generate_length=64", *overrides])
    return GrpoClGenerator(
        generator_cfg=settings.generator,
        skyrl_gym_cfg=settings.environment.skyrl_gym,
        inference_engine_client=client,
        tokenizer=client.tokenizer,
    )


def generated(client: InferenceClient, batch: dict[str, Any], *overrides: str) -> dict[str, Any]:
    generator = generator_of(client, *overrides)
    generator.generation_prompt_ids = client.tokenizer.encode("<|start|>assistant\n")
    return asyncio.run(generator.generate(batch, disable_tqdm=True))


def batch_of(dataset: PromptDataset, items: list[int], samples: int) -> dict[str, Any]:
    rows = [dataset[index] for index in items for _ in range(samples)]
    ids = [TrajectoryID(item[3], number % samples) for number, item in enumerate(rows)]
    return {
        "prompts": [item[0] for item in rows],
        "env_classes": [item[1] for item in rows],
        "env_extras": [dict(item[2]) for item in rows],
        "sampling_params": None,
        "trajectory_ids": ids,
        "batch_metadata": None,
    }


def dataset_of(table: Path) -> PromptDataset:
    return PromptDataset([str(table)], byte_tokenizer(), max_prompt_length=30000, num_workers=1)


def recorded(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("user", ["solo", "scripted"])
def test_gold_solution_gets_its_reward_from_the_generator(
    domain: GetDomain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    monkeypatch.setenv("GRPO_CL_ROLLOUTS", str(tmp_path / "rollouts"))
    table = training_table(tmp_path, "--domains", "mock", "retail", "--user", user)
    dataset = dataset_of(table)
    tasks = [Task.model_validate_json(dataset[i][2]["extra_info"]["task"]) for i in range(8)]
    written = [texts(task, solo=user == "solo") for task in tasks]
    client = ScriptedClient(byte_tokenizer(), lambda name: written[int(name.split("_")[0])])
    batch = batch_of(dataset, list(range(8)), samples=2)
    seed = "environment.skyrl_gym.grpo_cl.seed=1"  # a separate context with a separate log
    output = generated(client, batch, seed, "generator.max_input_length=200000")

    domains = {name: domain(name) for name in ("mock", "retail")}
    local = run_episodes(GOLD, domains, tasks, RolloutConfig(user=user))
    expected = [RewardOracle(domains).score(trajectory).value for trajectory in local]
    assert [sum(rewards) for rewards in output["rewards"]] == [r for r in expected for _ in "12"]
    conversations = {
        tuple(m["content"] or "" for m in episode["messages"])
        for episode in recorded(tmp_path / "rollouts")
    }
    assert conversations == {
        tuple(m.content or "" for m in trajectory.messages) for trajectory in local
    }


CALL = ToolCall(name="find_order", arguments={"order": "W1"})


@pytest.mark.parametrize("style", ["hermes", "chatml", "llama", "mistral"])
def test_calls_are_parsed_as_the_policy_was_taught_to_write_them(style: str) -> None:
    tokenizer = tokenizer_of(style)
    options = generator_of(InferenceClient(tokenizer)).skyrl_gym_cfg.grpo_cl
    call = Message(role="assistant", tool_calls=(CALL,))
    written = str(tokenizer.decode(chat_for(tokenizer, "auto").encode_reply(call)))
    parsed = TextChat(options["dialect"]).reply(written).tool_calls
    assert [(one.name, one.arguments) for one in parsed or ()] == [(CALL.name, CALL.arguments)]


@pytest.mark.parametrize("name", ["dialect", "sampling.dialect"])
def test_dialect_that_is_set_overrides_the_chat_template(name: str) -> None:
    client = InferenceClient(byte_tokenizer())
    options = generator_of(client, f"{OURS}.{name}=llama").skyrl_gym_cfg.grpo_cl
    assert options["dialect"] == "llama"


def test_dialects_that_contradict_each_other_are_refused() -> None:
    given = [f"{OURS}.dialect=llama", f"{OURS}.sampling.dialect=hermes"]
    with pytest.raises(ConfigError, match=r"'llama' and .*'hermes' are one .* leave one of them"):
        read_settings(given)
    assert read_settings([given[0], f"{OURS}.sampling.dialect=llama"])


def test_settings_stay_as_given_when_the_generator_reads_the_chat_template() -> None:
    client = InferenceClient(byte_tokenizer())
    settings = read_settings([])
    generator = GrpoClGenerator(
        generator_cfg=settings.generator,
        skyrl_gym_cfg=settings.environment.skyrl_gym,
        inference_engine_client=client,
        tokenizer=client.tokenizer,
    )
    assert settings.environment.skyrl_gym.grpo_cl["dialect"] == "auto"
    assert generator.skyrl_gym_cfg.grpo_cl["dialect"] == "json"


def test_environment_without_a_dialect_is_refused(domain: GetDomain) -> None:
    mock = domain("mock")
    with pytest.raises(ConfigError, match=r"set environment.skyrl_gym.grpo_cl.dialect to"):
        skyrl_gym.make("grpo_cl", extras=extras(mock, first_task(mock), "solo"))


def test_trained_tokens_are_the_sampled_tokens(
    domain: GetDomain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_CL_ROLLOUTS", str(tmp_path / "rollouts"))
    dataset = dataset_of(training_table(tmp_path, "--domains", "mock", "--user", "scripted"))
    client = PolicyClient(max_new_tokens=24)
    batch = batch_of(dataset, [0, 1], samples=2)
    limits = ("generator.max_turns=3", "environment.skyrl_gym.grpo_cl.seed=2")
    output = generated(client, batch, *limits)
    for index, name in enumerate(batch["trajectory_ids"]):
        turns = client.replies[name.to_string()]
        assert 1 <= len(turns) <= 3
        ids, mask = output["response_ids"][index], output["loss_masks"][index]
        trained = [token for token, counts in zip(ids, mask, strict=True) if counts]
        assert trained == [token for turn in turns for token in turn]
        logprobs = output["rollout_logprobs"][index]
        assert [p for p, counts in zip(logprobs, mask, strict=True) if counts] == pytest.approx(
            client.logprobs[name.to_string()]
        )
        assert output["rewards"][index][-1] == sum(output["rewards"][index])
    mock = domain("mock")
    played = [json.loads(json.dumps(episode)) for episode in recorded(tmp_path / "rollouts")]
    assert len(played) == 4
    assert {episode["termination"] for episode in played} <= {
        "max_steps",
        "user_stop",
        "agent_error",
    }
    assert all(mock.has_task(episode["task_id"]) for episode in played)


def test_episode_with_a_failing_user_is_masked_from_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    dataset = dataset_of(training_table(tmp_path, "--domains", "mock", "--user", "llm"))
    client = ScriptedClient(byte_tokenizer(), lambda name: ["Hello"] * 9)
    with ChatServer(lambda body: "Hi", ("500",) * 99) as server:
        ours = "environment.skyrl_gym.grpo_cl"
        output = generated(
            client,
            batch_of(dataset, [0], samples=2),
            f"{ours}.user_model=openai-api/loopback/customer",
            f"{ours}.user_base_url={server.url}",
            f"{ours}.models.retries=0",
            f"{ours}.models.cache_dir=null",
        )
    assert not any(sum(mask) for mask in output["loss_masks"])
    assert output["rollout_metrics"]["environment/lost"] == 1.0


DOCS = Path(__file__).parents[3] / "docs" / "engines" / "skyrl.md"


def documented_commands(folder: Path) -> list[tuple[list[str], list[str]]]:
    """Arguments of ``prepare-data`` and of the training command of each example, in ``folder``."""
    blocks = re.findall(r"```sh\n(grpo-cl prepare-data.*?)```", DOCS.read_text(), re.DOTALL)
    commands: list[tuple[list[str], list[str]]] = []
    for block in blocks:
        text = block.replace("$PWD", str(folder)).replace("\\\n", " ")
        prepare, train = (shlex.split(line) for line in text.splitlines())
        assert prepare[:2] == ["grpo-cl", "prepare-data"]
        assert train[:3] == ["python", "-m", "grpo_cl.integrations.skyrl"]
        commands.append((prepare[1:], train[3:]))
    return commands


@pytest.mark.parametrize("index", [0, 1])
def test_documented_command_has_batches_to_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare, overrides = documented_commands(tmp_path)[index]
    assert main(prepare) == 0
    load_settings(overrides)  # as printed
    byte_tokenizer().save_pretrained(tmp_path / "model")
    model = f"trainer.policy.model.path={tmp_path / 'model'}"
    no_gpus = "trainer.placement.colocate_all=false"
    settings = load_settings([*overrides, model, no_gpus])
    experiment = Experiment(settings)
    loader = build_dataloader(settings, experiment.train_dataset, is_train=True)
    assert len(loader) >= 2
    batch = next(iter(loader))
    assert len(batch) == settings.trainer.train_batch_size
    assert {row["env_class"] for row in batch} == {"grpo_cl"}
    assert len(experiment.eval_dataset) >= 1
    settings.trainer.max_prompt_length = 100
    with pytest.raises(ConfigError, match=r"only 0 rows .*max_prompt_length=100"):
        experiment.get_train_dataset()


def test_documented_settings_for_one_gpu_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    training_table(tmp_path / "data", "--domains", "telecom")
    text = DOCS.read_text()
    (block,) = re.findall(r"```sh\n(VLLM_USE_FLASHINFER_SAMPLER=0 .*?)```", text, re.DOTALL)
    words = shlex.split(block.replace("$PWD", str(tmp_path)).replace("\\\n", " "))
    overrides = words[words.index("grpo_cl.integrations.skyrl") + 1 :]
    contexts = re.findall(r"`(\S+ trainer\.max_prompt_length=\S+ \S+)`", text)
    assert len(contexts) == 2
    for context in contexts:
        settings = load_settings([*overrides, *context.split()])
        assert settings.generator.max_input_length + 256 in {8192, 16384}


def test_documented_settings_for_24_steps_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DOCS.parents[2])
    settings = load_settings(documented_arguments(DOCS, "skyrl", tmp_path / "plan"))
    trainer, generator = settings.trainer, settings.generator
    assert trainer.train_batch_size * generator.n_samples_per_prompt == 64
    assert trainer.policy_mini_batch_size == trainer.train_batch_size  # one update per batch
    (table,) = settings.data.train_data
    assert len(read_table(Path(table)).tasks) == 24 * trainer.train_batch_size


def test_overrides_set_skyrl_settings_and_ours() -> None:
    settings = read_settings(
        [
            "trainer.epochs=100",
            "generator.n_samples_per_prompt=5",
            f"{OURS}.user_strategy=llm",
            f"{OURS}.user_model=gpt-4o",
            f"{OURS}.max_turns=12",
        ]
    )
    assert settings.trainer.epochs == 100
    assert settings.environment.env_class == "grpo_cl"
    assert settings.environment.skyrl_gym.grpo_cl["max_turns"] == 12
    assert read_settings([]).generator.max_turns == 20
    sampling = "generator.sampling_params"
    optional = read_settings([f"{sampling}.logprobs=null", f"{sampling}.top_p=1"]).generator
    assert (optional.sampling_params.logprobs, optional.sampling_params.top_p) == (None, 1)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("--help", "key=value"),
        ("trainer.no_such_setting=1", "unknown SkyRL setting 'trainer.no_such_setting'"),
        ("generator.num_inference_engines=4", r"mean 'generator\.inference_engine\.num_engines'"),
        ("+generator.max_turns=4", r"write 'generator\.max_turns'"),
        ("trainer.epochs=many", "trainer.epochs must be an integer, not 'many'"),
        ("trainer.epochs=null", "trainer.epochs must be an integer, not None"),
        ("trainer.epochs=true", "trainer.epochs must be an integer, not True"),
        ("generator.inference_engine_tensor_parallel_size=2", r"engine\.tensor_parallel_size'"),
        ("data.train_data=train.parquet", "data.train_data must be a list"),
        ("trainer.flash_attn=true", "need flash-attn, which is not installed"),
        ("trainer.remove_microbatch_padding=true", "need flash-attn, which is not installed"),
        ("generator.batched=true", "one sequence"),
        ("environment.env_class=tau2", "'tau2' is not the environment"),
        ("environment.skyrl_gym.tau2.user_model=gpt-4o", f"under {OURS}"),
        (f"{OURS}=3", "is a section"),
        (f"{OURS}.user_stratgy=solo", "unknown setting 'user_stratgy', did you mean 'user_str"),
        (f"{OURS}.max_turns=many", "rollout.max_turns: .*valid integer"),
        (f"{OURS}.dialect=hermess", "unknown dialect 'hermess'.*'hermes'"),
        (f"{OURS}.sampling.dialect=compact", "unknown dialect 'compact'; known: hermes, json"),
        (f"{OURS}.user_model=my-model", "'my-model' names no provider.*openai-api/SERVICE"),
    ],
)
def test_setting_that_cannot_be_used_is_refused_with_the_reason(override: str, reason: str) -> None:
    free = "generator.inference_engine.engine_init_kwargs.seed=1"
    with pytest.raises(ConfigError, match=reason):
        read_settings([free, override])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["data.train_data=[]"], "data.train_data is not set"),
        (["data.train_data=['absent.parquet']"], r"absent\.parquet.*no such file"),
        (["data.train_data=['tasks.json']"], r"tasks\.json.*No such file"),
        (["trainer.train_batch_size=1024"], r"1024 must be between 1 and the \d rows"),
        (["trainer.policy_mini_batch_size=2", "trainer.train_batch_size=3"], "2 must divide .*3"),
        (["trainer.logger=wandb"], "SkyRL rejects.*WANDB_API_KEY"),
        ([f"{OURS}.user_strategy=llm"], "'llm' is driven by a model .*not set.*PROVIDER/MODEL"),
        ([f"{OURS}.user_strategy=llm", f"{OURS}.user_model=policy"], "another engine has it"),
        ([f"{OURS}.user_model=gpt-4o"], "'openai/gpt-4o' is unused"),
        ([f"{OURS}.tools=absent.py"], r"cannot import the tools .*absent\.py"),
    ],
)
def test_run_that_cannot_start_is_refused_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    table = training_table(tmp_path, "--domains", "mock", "--train_ratio", "0.5")
    with pytest.raises(ConfigError, match=reason):
        load_settings([f"data.train_data=['{table}']", *overrides])


LOUNGE = '''
def lounge_price(airport: str, guests: int = 0) -> int:
    """Price of a lounge visit.

    Args:
        airport: The airport's code.
        guests: Number of guests.
    """
    return 45 * (1 + guests)
'''


def test_task_file_with_own_tools_is_rewarded_by_the_generator(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(LOUNGE)
    action = {"name": "lounge_price", "kwargs": {"airport": "JFK", "guests": 1}}
    tasks = [
        {
            "instruction": f"You want the price at gate {gate}.",
            "actions": [action],
            "domain": "mock",
        }
        for gate in range(3)
    ]
    source = tmp_path / "tasks.json"
    source.write_text(json.dumps({"tasks": tasks}))
    tools = f"{OURS}.tools={tmp_path / 'my_tools.py'}"
    overrides = [f"data.train_data=['{source}']", f"trainer.export_path={tmp_path}"]
    settings = load_settings([*overrides, tools])
    assert settings.trainer.train_batch_size == 3
    (table,) = settings.data.train_data
    with pytest.raises(ConfigError, match=r"needs the tool 'lounge_price'.*tools=FILE\.py"):
        load_settings([f"data.train_data=['{table}']"])
    dataset = dataset_of(Path(table))
    gold = texts(Task.model_validate_json(dataset[0][2]["extra_info"]["task"]), solo=True)
    answers = {"0": gold, "1": gold[1:]}  # the second one does not call the tool
    client = ScriptedClient(byte_tokenizer(), lambda name: answers[name.split("_")[0]])
    batch = batch_of(dataset, [0, 1], samples=1)
    output = generated(client, batch, tools, "generator.max_input_length=200000")
    assert [sum(rewards) for rewards in output["rewards"]] == [1.0, 0.0]


def test_rows_keep_their_order_without_shuffling(tmp_path: Path) -> None:
    dataset = dataset_of(training_table(tmp_path, "--domains", "retail"))
    settings = read_settings(["data.shuffle=false", "trainer.train_batch_size=8"])
    seen = [row["uid"] for batch in ordered_loader(settings, dataset) for row in batch]
    assert seen == [str(index) for index in range(len(dataset) // 8 * 8)]


def test_attention_needs_no_flash_attn_where_it_is_not_installed() -> None:
    trainer = read_settings([]).trainer
    assert (trainer.flash_attn, trainer.remove_microbatch_padding) == (False, False)


def test_workers_start_in_a_process_without_flash_attn(tmp_path: Path) -> None:
    classes = tmp_path / "workers.pkl"
    classes.write_bytes(
        cloudpickle.dumps([workers.PolicyWorker, workers.CriticWorker, workers.RefWorker])
    )
    # Ray starts a worker with nothing but its pickled class.
    code = (
        "import pickle, sys; from importlib.util import find_spec\n"
        f"policy, *_ = pickle.load(open({str(classes)!r}, 'rb'))\n"
        "assert policy.__mro__[1].__name__ == 'FSDPPolicyWorkerBase'\n"
        "assert find_spec('flash_attn') is None  # vLLM would use it\n"
        "sys.modules['flash_attn.bert_padding'].unpad_input()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "remove_microbatch_padding=true needs flash-attn" in done.stderr.splitlines()[-1]


def test_trainer_starts_our_workers_with_fsdp() -> None:
    settings, given = read_settings([]), ("policy", "critic", "ref")
    names = [
        actor.__ray_metadata__.modified_class.__name__ for actor in workers_for(settings, given)
    ]
    assert names == ["PolicyWorker", "CriticWorker", "RefWorker"]
    settings.trainer.strategy = "megatron"
    assert workers_for(settings, given) == given


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_embeddings_are_still_tied_when_the_model_is_sharded(is_tied: bool) -> None:
    config = LlamaConfig(vocab_size=300, **SIZES, tie_word_embeddings=is_tied)
    model: Any = LlamaForCausalLM(config)
    model.to("meta")  # as SkyRL does: the output layer gets a weight of its own
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    # Without flash-attn it is importable only after the adapter's workers.
    sharding = import_module("skyrl.backends.skyrl_train.distributed.fsdp_strategy")
    sharding.apply_fsdp2(model, {"mesh": mesh}, FSDPConfig())
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == is_tied


def test_evaluation_is_off_without_validation_data() -> None:
    assert read_settings([]).trainer.eval_interval == -1
    assert read_settings(["data.val_data=['x.parquet']"]).trainer.eval_interval > 0


def test_end_of_turn_token_is_removed_from_a_reply() -> None:
    assert PLAIN.reply("Bye.<|im_end|>") == Message(role="assistant", content="Bye.")


CONSOLE = """
import json, sys
from loguru import logger
from skyrl.train.utils.tracking import Tracking
from skyrl.train.utils.utils import configure_ray_worker_logging
configure_ray_worker_logging()
tracking = Tracking("grpo-cl", "skyrl", backend="console")
for step, metrics in enumerate(json.loads(sys.argv[1])):
    tracking.log(metrics, step=step, commit=True)
logger.complete()
"""


def test_times_that_skyrl_logs_are_read_from_its_console(tmp_path: Path) -> None:
    masks = [[1] * 150 + [0] * 350] * 3 + [[1] * 250 + [0] * 450]
    responses = [[7] * len(mask) for mask in masks]
    metrics = get_rollout_metrics(responses, [1.0, 0.0, 0.0, 1.0], loss_masks=masks)
    metrics |= {"generate/batch_num_seq": 4, "reward/avg_raw_reward": 0.5}
    metrics |= {"policy/policy_loss": float("nan"), "trainer/global_step": 1}
    times = {"step": 50.5, "generate": 30.25, "fwd_logprobs_values_reward": 4.5}
    times |= {"train_critic_and_policy": 10.0, "save_hf_model": 2.5, "sync_weights": 3.0}
    metrics |= {f"timing/{name}": seconds for name, seconds in times.items()}
    logged = json.dumps([{"eval/all/avg_score": 0.25}, metrics])
    # A process of its own: SkyRL replaces the handlers of the root logger.
    done = subprocess.run(
        [sys.executable, "-c", CONSOLE, logged], capture_output=True, text=True, check=True
    )
    log = tmp_path / "skyrl.txt"
    log.write_text(done.stderr)
    assert "\x1b[1m\x1b[32mStep 1: " in log.read_text()
    assert read_steps(log) == [
        Step(
            step_s=48.0,
            rollouts_s=30.25,
            logprobs_s=4.5,
            update_s=10.0,
            sync_s=3.0,
            episodes=4,
            generated_tokens=700.0,
            peak_gib=None,
            reward=0.5,
        )
    ]


def test_workers_of_a_running_cluster_have_the_variables_of_a_plan(monkeypatch) -> None:
    names = FOLDER_VARIABLE, CONFIG_VARIABLE
    for name in names:
        monkeypatch.delenv(name, raising=False)
    ray.init(num_cpus=1, include_dashboard=False, runtime_env={"env_vars": {"OF_JOB": "job"}})
    try:
        for name in names:
            monkeypatch.setenv(name, f"of {name}")
        variables = ray.get(on_worker(lambda: dict(os.environ)).remote())
    finally:
        ray.shutdown()
    assert [variables[name] for name in names] == [f"of {name}" for name in names]
    assert variables["OF_JOB"] == "job"
