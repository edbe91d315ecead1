"""verl's real ``AgentLoopWorker`` and dataset on a CPU, with a server that samples real tokens."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown elsewhere.

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from chat_server import ChatServer
from documented_plans import documented_arguments
from paths import ROOT

pytest.importorskip("verl", reason="verl needs a separate environment: make test-engine-verl")

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo.metric_utils import (
    compute_data_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
)
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.tracking import Tracking
from verl.workers.rollout.replica import TokenOutput

import grpo_cl
from engine_steps import Step, read_steps
from grpo_cl.config import GRPOConfig
from grpo_cl.envs import load_domain
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import episode_config
from grpo_cl.integrations.plan.folder import CONFIG_VARIABLE
from grpo_cl.integrations.rows import task_row, write_table
from grpo_cl.integrations.verl.__main__ import check_users, verl_command
from grpo_cl.rewards import RewardOracle
from grpo_cl.runs.episodes import FOLDER_VARIABLE, read_episode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of verl and its dependencies
    pytest.mark.timeout(600),
]

TINY_DIR = Path(grpo_cl.__file__).parent / "policy" / "tiny"
CONFIGS = ROOT / "configs" / "engines"
TINY = GRPOConfig.model_validate(
    {"model_name_or_path": "tiny", "task_order": ["retail"], "max_tasks_per_domain": 3, "seed": 3}
)
LENGTHS = {"prompt_length": 256, "response_length": 1024}


class TokenServer:
    """verl's server interface; samples from the embedded policy."""

    def __init__(self) -> None:
        module = AutoModelForCausalLM.from_pretrained(TINY_DIR, dtype=torch.float32)
        self._module: Any = module.eval()
        self.requests: list[dict[str, Any]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        self.requests.append({"id": request_id, "ids": list(prompt_ids), **sampling_params})
        input_ids = torch.tensor([prompt_ids])
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(len(self.requests))
            output = self._module.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                do_sample=sampling_params["temperature"] > 0,
                max_new_tokens=sampling_params["max_tokens"],
                eos_token_id=sampling_params["stop_token_ids"],
                return_dict_in_generate=True,
                output_logits=True,
                top_k=0,
            )
        ids = output.sequences[0, len(prompt_ids) :].tolist()
        logprobs = [float(x[0].log_softmax(-1)[n]) for x, n in zip(output.logits, ids, strict=True)]
        fields = {"min_global_steps": 7, "max_global_steps": 7}
        return TokenOutput(token_ids=ids, log_probs=logprobs, extra_fields=fields)


def settings(folder: Path, *overrides: str, **changes: Any) -> Any:
    loop = folder / "loop.yaml"
    (entry,) = OmegaConf.load(CONFIGS / "verl_loop.yaml")
    entry.settings = {"model_name_or_path": "tiny", **changes}
    OmegaConf.save(OmegaConf.create([entry]), loop)
    lengths = [f"actor_rollout_ref.rollout.{name}={count}" for name, count in LENGTHS.items()]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose(
            "verl",
            [
                f"actor_rollout_ref.model.path={TINY_DIR}",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loop}",
                f"data.train_files={folder / 'train.parquet'}",
                *lengths,
                *overrides,
            ],
        )


def batch(folder: Path, config: Any, *, repeat: int) -> DataProto:
    domain = load_domain("retail", None)
    tasks = TaskDataLoader(TINY).train_tasks("retail")
    rows = [
        task_row(domain, task, split="train", index=n, user="solo") for n, task in enumerate(tasks)
    ]
    write_table(folder / "train.parquet", rows)
    tokenizer = AutoTokenizer.from_pretrained(TINY_DIR)
    data = RLHFDataset(config.data.train_files, tokenizer, config.data)
    batched = DataProto.from_single_dict(collate_fn([data[n] for n in range(len(data))]))
    return batched.repeat(repeat, interleave=True)


def test_worker_returns_the_rewards_and_tokens_of_a_local_run(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "rollouts"))
    config = settings(tmp_path, seed=11)
    server = TokenServer()
    worker = AgentLoopWorker(config, server)
    prompts = batch(tmp_path, config, repeat=4)
    prompts.meta_info = {"validate": False, "global_steps": 1}
    output = asyncio.run(worker.generate_sequences(prompts))

    assert len(output) == len(prompts) == 12
    scores = output.batch["rm_scores"].sum(dim=1)
    assert {float(score) for score in scores} == {0.0, 1.0}
    lines = [
        json.loads(line)
        for path in (tmp_path / "rollouts").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    episodes = {tuple(line["tokens"]["ids"]): line for line in lines}
    assert len(lines) == 12
    width = LENGTHS["prompt_length"]
    for n in range(len(output)):
        mask = output.batch["response_mask"][n].bool()
        ids = output.batch["responses"][n]
        sequence = output.batch["input_ids"][n][output.batch["attention_mask"][n].bool()].tolist()
        # Every request of the episode is a prefix of the trained sequence.
        requests = [r["ids"] for r in server.requests if r["ids"] == sequence[: len(r["ids"])]]
        assert requests
        assert float(scores[n]) == local_reward(episodes[tuple(sequence)])
        assert mask[0]
        assert (output.batch["rollout_log_probs"][n][mask] <= 0).all()
        assert output.batch["attention_mask"][n][width:].sum() >= mask.sum()
        assert ids.shape == (LENGTHS["response_length"],)
    assert set(output.non_tensor_batch["min_global_steps"]) == {7}
    assert list(output.non_tensor_batch["success"]) == pytest.approx(scores.tolist())


def local_reward(line: dict[str, Any]) -> float:
    domain = load_domain("retail", None)
    oracle = RewardOracle({"retail": domain})
    return oracle.score(read_episode(line, domain.task(line["task_id"]), oracle).trajectory).value


def test_prompt_that_verl_would_truncate_is_rejected_with_the_setting_to_change(tmp_path):
    config = settings(tmp_path, "actor_rollout_ref.rollout.prompt_length=8", seed=12)
    worker = AgentLoopWorker(config, TokenServer())
    prompts = batch(tmp_path, config, repeat=1)
    prompts.meta_info = {"validate": False, "global_steps": 1}
    with pytest.raises(ConfigError, match="max_prompt_length"):
        asyncio.run(worker.generate_sequences(prompts))


def test_episode_that_exceeds_the_response_length_has_reward_zero(tmp_path):
    config = settings(tmp_path, "actor_rollout_ref.rollout.response_length=16", seed=13)
    worker = AgentLoopWorker(config, TokenServer())
    prompts = batch(tmp_path, config, repeat=1)
    prompts.meta_info = {"validate": True, "global_steps": 1}
    output = asyncio.run(worker.generate_sequences(prompts))
    assert output.batch["responses"].shape[1] == 16
    assert output.batch["rm_scores"].sum() == 0


def test_command_starts_verl_with_the_settings_of_this_project():
    command = verl_command(["trainer.nnodes=2"], CONFIGS / "verl.yaml")
    assert command[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    assert command[-1] == "trainer.nnodes=2"
    assert any(argument.endswith(str(CONFIGS / "verl_loop.yaml")) for argument in command)
    with pytest.raises(ConfigError, match="start from the project's folder"):
        verl_command([], Path("nowhere.yaml"))


def test_settings_load_in_verl(tmp_path):
    config = settings(tmp_path)
    assert config.algorithm.adv_estimator == "grpo"
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "grpo_cl"
    assert config.actor_rollout_ref.rollout.calculate_log_probs
    assert np.isclose(config.actor_rollout_ref.actor.optim.lr, 1e-6)


def test_documented_settings_for_24_steps_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = ROOT / "docs" / "engines" / "verl.md"
    arguments = documented_arguments(page, "verl", tmp_path / "plan")
    check_users(arguments)
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose("verl", arguments)
    OmegaConf.resolve(config)
    has_reference, has_critic = need_reference_policy(config), need_critic(config)
    validate_config(config, use_reference_policy=has_reference, use_critic=has_critic)
    assert not has_reference and not has_critic
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert rollout.max_model_len == rollout.prompt_length + rollout.response_length
    assert config.trainer.total_training_steps == 24
    assert config.data.train_batch_size * rollout.n == 64


def test_shipped_settings_leave_the_limits_of_a_planned_run(tmp_path, monkeypatch):
    planned = TINY.model_copy(update={"max_new_tokens": 77})
    (tmp_path / "config.json").write_text(planned.model_dump_json())
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config.json"))
    (entry,) = OmegaConf.to_container(OmegaConf.load(CONFIGS / "verl_loop.yaml"))
    config = episode_config({"user_strategy": "solo", **entry["settings"]})
    assert config.max_new_tokens == 77
    assert config.rollout.max_turns == planned.rollout.max_turns


def test_episode_without_a_reply_has_the_step_of_the_weights_that_verl_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    with ChatServer(lambda body: "Hi", ("500",) * 99) as server:
        config = settings(
            tmp_path,
            user_strategy="llm",
            user_model="openai-api/loopback/customer",
            user_base_url=server.url,
            models={"retries": 0, "cache_dir": None},
            seed=14,
        )
        worker = AgentLoopWorker(config, TokenServer())
        prompts = batch(tmp_path, config, repeat=1)
        prompts.meta_info = {"validate": False, "global_steps": 1}
        output = asyncio.run(worker.generate_sequences(prompts))
    assert list(output.non_tensor_batch["lost"]) == [1.0, 1.0, 1.0]
    steps = np.array(output.non_tensor_batch["min_global_steps"], dtype=int)  # as verl does
    assert steps.tolist() == [0, 0, 0]


def test_times_that_verl_logs_are_read_from_its_console(tmp_path, capsys):
    lengths = {
        "prompt_length": torch.tensor([4.0, 5.0, 6.0, 5.0]),
        "response_length": torch.tensor([10.0, 9.0, 8.0, 10.0]),
    }
    rows = {"advantages", "returns", "response_mask", "responses"}
    scores = torch.nn.functional.pad(torch.tensor([[1.0], [0.0], [0.0], [0.0]]), (9, 0))
    batch = DataProto.from_dict(
        {name: torch.ones(4, 10) for name in rows}
        | {"token_level_scores": scores, "token_level_rewards": scores}
        | {"prompts": torch.ones(4, 6), **lengths},
        meta_info={"global_token_num": [14, 14, 14, 15]},
    )
    batch.non_tensor_batch["__num_turns__"] = np.array([3, 4, 5, 6], dtype=np.int32)
    times = {"gen": 21.0, "old_log_prob": 2.0, "ref": 1.0, "adv": 0.01, "update_actor": 8.0}
    times |= {"save_checkpoint": 6.0, "update_weights": 3.0, "step": 47.0}
    memory = rename_dict({"perf/max_memory_allocated_gb": [10.5]}, "actor/")
    logged = {
        **reduce_metrics(memory),
        **compute_data_metrics(batch, use_critic=False),
        **compute_timing_metrics(batch, times),
        **compute_throughout_metrics(batch, times, 1),
    }
    tracking = Tracking("grpo-cl", "verl", ["console"])
    tracking.log({"val-core/grpo_cl/reward/mean@1": np.float64(0.25)}, step=0)
    tracking.log(logged, step=1)
    log = tmp_path / "verl.txt"
    log.write_text(capsys.readouterr().out)
    assert "np.float64(4.5)" in log.read_text()
    assert read_steps(log) == [
        Step(
            step_s=41.0,
            rollouts_s=21.0,
            logprobs_s=3.0,
            update_s=8.0,
            sync_s=3.0,
            episodes=4,
            generated_tokens=None,
            peak_gib=10.5,
            reward=0.25,
        )
    ]
