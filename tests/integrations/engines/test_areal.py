"""AReaL's real workflow classes with the embedded policy, on a CPU."""
# pyright: basic, reportMissingImports=false

import asyncio
import getpass
import logging
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

WHY = "AReaL needs a separate environment: make test-engine-areal"
pytest.importorskip("areal.api", reason=WHY)

from areal.api import ModelRequest, ModelResponse
from areal.api.cli_args import GenerationHyperparameters
from areal.infra.remote_inf_engine import GroupedRolloutWorkflow
from areal.infra.workflow_executor import check_trajectory_format

from chat_server import ChatServer
from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig
from grpo_cl.envs import Domain
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.areal.legacy_settings import current_arguments
from grpo_cl.integrations.areal.training import (
    dataset,
    read_settings,
    task_rows,
    workflow_arguments,
)
from grpo_cl.integrations.areal.workflow import GrpoClWorkflow, has_reward_variance
from grpo_cl.integrations.plan.scripts import ENGINES
from grpo_cl.policy.inference.policy_agent import PolicyActor
from grpo_cl.policy.inference.sampler import GenerationRequest, TokenCompletion
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.model.loading import load_tokenizer, resolve
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import run_episodes
from grpo_cl.types import Task
from paths import ROOT

GetDomain = Callable[[str], Domain]
VERSION = 3
GREEDY = GenerationHyperparameters(
    n_samples=1, max_new_tokens=128, max_tokens=3072, temperature=0.0, greedy=True
)
TINY = {
    "user_strategy": "solo",
    "max_turns": 20,
    "rollout": {"prompt": "compact"},
    "sampling": {"dialect": "compact"},
}


def sampler(policy: PolicyModel) -> TransformersSampler:
    return TransformersSampler(policy.module, context=policy.context, slots=8, device="cpu")


class Engine:
    """AReaL's inference engine interface over our sampler."""

    def __init__(self, policy: PolicyModel) -> None:
        self._sampler = sampler(policy)
        self._num_requests = 0

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        self._num_requests += 1
        generation = GenerationRequest(
            id=self._num_requests,
            sequence=self._num_requests,
            append=request.input_ids,
            max_new_tokens=min(
                request.gconfig.max_new_tokens,
                request.gconfig.max_tokens - len(request.input_ids),
            ),
            temperature=0.0 if request.gconfig.greedy else request.gconfig.temperature,
            top_p=1.0,
            stop_ids=tuple(request.gconfig.stop_token_ids),
            seed=self._num_requests,
        )
        self._sampler.submit([generation])
        completions: list[TokenCompletion] = []
        while not completions:
            completions = self._sampler.poll()
        self._sampler.release(self._num_requests)
        return ModelResponse(
            input_tokens=request.input_ids,
            output_tokens=completions[0].ids,
            output_logprobs=completions[0].logprobs,
            output_versions=[VERSION] * len(completions[0].ids),
            stop_reason=completions[0].reason,
        )


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return PolicyModel.load(GRPOConfig(model_name_or_path="tiny"), device=torch.device("cpu"))


def row(task: Task) -> dict[str, str]:
    return {"task": task.model_dump_json(exclude_none=True)}


def tokenizer() -> Any:
    return load_tokenizer(resolve("tiny"))


def test_embedded_policy_samples_the_tokens_of_a_local_run(
    domain: GetDomain, policy: PolicyModel
) -> None:
    retail = domain("retail")
    tasks = retail.generate(seed=5, count=8, split="test", difficulty=0.2)
    config = GRPOConfig(model_name_or_path="tiny", task_order=("retail",))
    actor = PolicyActor(
        policy.chat, sampler(policy), temperature=0.0, max_new_tokens=128, top_p=1.0
    )
    local = run_episodes(actor, {"retail": retail}, tasks, config.rollout)
    rewards = [RewardOracle({"retail": retail}).score(trajectory).value for trajectory in local]
    assert 0.0 < sum(rewards) < len(rewards)

    workflow = GrpoClWorkflow(TINY, GREEDY, tokenizer())
    engine: Any = Engine(policy)
    for task, trajectory, reward in zip(tasks, local, rewards, strict=True):
        tensors = asyncio.run(workflow.arun_episode(engine, row(task)))
        assert check_trajectory_format(tensors)
        assert tensors is not None and trajectory.tokens is not None
        assert tensors["input_ids"][0].tolist() == list(trajectory.tokens.ids)
        mask = tensors["loss_mask"][0].bool()
        assert mask.tolist() == list(trajectory.tokens.mask)
        assert tensors["logprobs"][0][mask].tolist() == pytest.approx(
            trajectory.tokens.logprobs, abs=1e-4
        )
        assert set(tensors["versions"][0][mask].tolist()) == {VERSION}
        assert set(tensors["versions"][0][~mask].tolist()) == {-1}
        assert tensors["rewards"].tolist() == [reward]


def test_group_is_one_batch_of_padded_rows(domain: GetDomain, policy: PolicyModel) -> None:
    sampled = GREEDY.new(greedy=False, temperature=1.0)
    group = GroupedRolloutWorkflow(
        GrpoClWorkflow(TINY, sampled, tokenizer()), 4, logging.getLogger("test")
    )
    (task,) = domain("retail").generate(seed=6, count=1, split="test", difficulty=0.0)
    engine: Any = Engine(policy)
    tensors = asyncio.run(group.arun_episode(engine, row(task)))
    assert check_trajectory_format(tensors, batch_size=4)
    assert tensors is not None
    assert tensors["rewards"].shape == (4,)


def test_episode_with_a_failing_user_is_dropped(
    domain: GetDomain, policy: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    task = domain("retail").tasks("test")[0]
    engine: Any = Engine(policy)
    with ChatServer(lambda body: "Hi", ("500",) * 99) as server:
        settings = TINY | {
            "user_strategy": "llm",
            "user_model": "openai-api/loopback/customer",
            "user_base_url": server.url,
            "models": {"retries": 0, "cache_dir": None},
        }
        workflow = GrpoClWorkflow(settings, GREEDY, tokenizer())
        assert asyncio.run(workflow.arun_episode(engine, row(task))) is None


def test_only_groups_with_different_rewards_pass_the_filter() -> None:
    assert has_reward_variance({"rewards": torch.tensor([0.0, 1.0])})
    assert not has_reward_variance({"rewards": torch.tensor([1.0, 1.0])})


def settings_of(folder: Path, *overrides: str) -> Any:
    return read_settings(current_arguments([*overrides, f"cluster.fileroot={folder}"]))


def test_shipped_settings_load_in_areal_with_our_section(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        "econfig.domain=telecom",
        "econfig.solo_mode=true",
        "train_dataset.path=small",
        "actor.use_lora=true",
        "actor.lora_rank=8",
    )
    assert settings.econfig.settings["user_strategy"] == "solo"
    assert settings.rollout.use_lora and settings.sglang.enable_lora
    assert settings.sglang.max_lora_rank == 8
    assert workflow_arguments(settings, settings.gconfig)["tokenizer"] == settings.actor.path
    with pytest.raises(ConfigError, match="no_such_setting"):
        settings_of(tmp_path, "actor.no_such_setting=1")
    with pytest.raises(ConfigError, match="has no user"):
        settings_of(tmp_path, "econfig.solo_mode=true", "econfig.user_model=openai/gpt-4o")


@pytest.mark.parametrize(("page", "count"), [("engines/areal.md", 2), ("migrating.md", 1)])
def test_documented_commands_have_valid_settings(tmp_path: Path, page: str, count: int) -> None:
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"```sh\n(python -m grpo_cl\.integrations\.areal .*?)```", text, re.DOTALL)
    for block in blocks:
        python, _, module, *arguments = shlex.split(block.replace("\\\n", " "))
        assert (python, module) == ("python", "grpo_cl.integrations.areal")
        settings = settings_of(tmp_path, *arguments)
        rows: Any = dataset(settings.train_dataset, settings.econfig)
        assert len(rows) >= settings.train_dataset.batch_size
    assert len(blocks) == count


OLD_SETTINGS = """
experiment_name: old
trial_name: trial0
total_train_epochs: 20
tokenizer_path: ${actor.path}
async_training: true
allocation_mode: sglang.d4p1t1+d4p1t1
cluster: {n_nodes: 1, n_gpus_per_node: 8, fileroot: /nowhere}
rollout:
  experiment_name: ${experiment_name}
  trial_name: ${trial_name}
  consumer_batch_size: ${train_dataset.batch_size}
  max_head_offpolicyness: 2
  openai: {mode: inline, turn_discount: "${econfig.turn_discount}"}
gconfig: {n_samples: 4, max_new_tokens: 256, temperature: 1.0}
actor:
  experiment_name: ${experiment_name}
  trial_name: ${trial_name}
  path: Qwen/Qwen2.5-1.5B-Instruct
  backend: fsdp
  group_size: ${gconfig.n_samples}
  use_decoupled_loss: true
  behav_imp_weight_cap: 5.0
  dynamic_sampling: true
ref:
  experiment_name: ${experiment_name}
  trial_name: ${trial_name}
  path: ${actor.path}
  backend: fsdp
econfig:
  domain: telecom
  max_steps: 20
  solo_mode: true
  user_llm: null
  user_llm_args: null
  turn_discount: 1.0
  invalid_format_penalty: 0.1
train_dataset: {batch_size: 8, path: tau2/train, type: rl}
valid_dataset: {batch_size: 16, path: tau2/test, type: rl}
launcher: {trainer_cpus_per_gpu: 4, trainer_mem_per_gpu: 32768}
"""
"""Keys of AReaL's τ² recipe before 1.0."""
PLACES = ["experiment_name", "trial_name", "fileroot"]


def test_settings_file_from_before_areal_1_loads(tmp_path: Path) -> None:
    sections = {
        name: {place: f"${{{'cluster.' * (place == 'fileroot')}{place}}}" for place in PLACES}
        for name in ("saver", "recover", "evaluator", "stats_logger")
    }
    path = tmp_path / "old.yaml"
    path.write_text(OLD_SETTINGS + yaml.safe_dump(sections))
    settings = settings_of(
        tmp_path / "out",
        *("--config", str(path), "+actor.peft.enable=True", "+actor.peft.r=8"),
        *("allocation_mode=sglang.d2p1t1+d2p1t1", "econfig.max_steps=30"),
    )
    assert (settings.rollout.backend, settings.actor.backend) == ("sglang:d2p1t1", "fsdp:d2p1t1")
    assert settings.ref.backend == settings.actor.backend
    assert settings.ref.scheduling_strategy.target == "actor"
    assert settings.scheduler.type == "local"
    assert settings.actor.scheduling_spec[0].gpu == settings.rollout.scheduling_spec[0].gpu == 1
    assert settings.actor.rejection_sampling.action == "mask"
    assert settings.econfig.drop_flat_groups
    assert settings.econfig.settings == {
        "rollout": {"max_steps": 30},
        "user_strategy": "solo",
    }
    assert settings.actor.use_lora and settings.rollout.use_lora and settings.sglang.enable_lora
    assert settings.actor.lora_rank == settings.sglang.max_lora_rank == 8


def test_logs_and_checkpoints_are_below_fileroot_by_experiment_and_trial(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "experiment_name=tau", "trial_name=t1")
    for section in (settings.saver, settings.recover, settings.evaluator, settings.stats_logger):
        assert [getattr(section, place) for place in PLACES] == ["tau", "t1", str(tmp_path)]
    assert settings.cluster.name_resolve.nfs_record_root == f"{tmp_path}/name_resolve"
    logged = tmp_path / "logs" / getpass.getuser() / "tau" / "t1" / "config.yaml"
    assert yaml.safe_load(logged.read_text())["trial_name"] == "t1"
    elsewhere = settings_of(tmp_path, f"stats_logger.fileroot={tmp_path / 'stats'}")
    assert elsewhere.stats_logger.fileroot == str(tmp_path / "stats")
    assert elsewhere.saver.fileroot == str(tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor.backend=fsdp:x", r"actor\.backend='fsdp:x' is no backend .* such as sglang:d6"),
        ("actor.use_lora=true actor.backend=archon:d2", "needs an FSDP backend.* write fsdp:d2"),
        ("+actor.attn_impl=sdpa", "attn_impl=sdpa lets packed sequences attend to each other"),
        ("total_train_epochs=0", "rejects these settings: total_train_epochs must be positive"),
        ("stats_logger.wandb.mode=on", "rejects these settings: Invalid wandb mode"),
        ("stats_logger.fileroot=/proc/none", r"cannot write the logs .* set cluster\.fileroot"),
    ],
)
def test_unusable_settings_are_refused_in_a_sentence(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        settings_of(tmp_path, *override.split())
    assert "\n" not in str(refused.value)


def test_arguments_of_a_plan_are_valid_settings(tmp_path: Path) -> None:
    values = {"batch": 8, "steps": 2, "samples": 4, "temperature": 1.0, "max_new_tokens": 64}
    arguments = [
        argument.format(**values, learning_rate=1e-6, user="solo")
        for argument in ENGINES["areal"].arguments
    ]
    settings = settings_of(tmp_path, *shlex.split(" ".join(arguments)))
    assert settings.gconfig.n_samples == 4
    assert settings.econfig.settings["user_strategy"] == "solo"


@pytest.mark.parametrize("split", ["small", "train", "test"])
def test_splits_are_selected_by_name(domain: GetDomain, tmp_path: Path, split: str) -> None:
    settings = settings_of(
        tmp_path, "econfig.domain=telecom", f"train_dataset.path={split}", "econfig.solo_mode=true"
    )
    rows: Any = dataset(settings.train_dataset, settings.econfig)
    ids = [Task.model_validate_json(entry["task"]).id for entry in rows]
    assert ids == [task.id for task in domain("telecom").tasks(split)]


def test_tasks_are_repeated_to_fill_a_batch_and_domains_are_combined(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path, "econfig.domain='mock,telecom'", "train_dataset.batch_size=500"
    )
    rows: Any = dataset(settings.train_dataset, settings.econfig)
    assert len(rows) >= 500
    assert {Task.model_validate_json(entry["task"]).domain for entry in rows} == {"mock", "telecom"}


def test_parquet_file_of_prepare_data_is_read(tmp_path: Path) -> None:
    assert main(["prepare-data", "--domains", "mock", "--output_dir", str(tmp_path)]) == 0
    rows = task_rows(str(tmp_path / "train.parquet"), [], GRPOConfig())
    assert {Task.model_validate_json(entry["task"]).domain for entry in rows} == {"mock"}
    with pytest.raises(ConfigError, match="prepare-data"):
        task_rows(str(tmp_path / "none.parquet"), [], GRPOConfig())
