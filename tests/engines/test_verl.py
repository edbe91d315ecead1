"""verl's real ``AgentLoopWorker`` and dataset on a CPU, with a server that writes real tokens."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown elsewhere.

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is in an environment of its own: make test-engine-verl")

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

import grpo_cl
from grpo_cl.config import GRPOConfig
from grpo_cl.domains import load_domain
from grpo_cl.engines.verl.training import command
from grpo_cl.episodes import FOLDER_VARIABLE, read_episode
from grpo_cl.errors import ConfigError
from grpo_cl.rewards import RewardOracle
from grpo_cl.rows import row, write_table
from grpo_cl.tasks import TaskDataLoader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of verl and what it brings
    pytest.mark.timeout(600),
]

TINY_DIR = Path(grpo_cl.__file__).parent / "policy" / "tiny"
CONFIGS = Path(__file__).parents[2] / "configs" / "engines"
TINY = GRPOConfig.model_validate(
    {"model_name_or_path": "tiny", "task_order": ["retail"], "max_tasks_per_domain": 3, "seed": 3}
)
LENGTHS = {"prompt_length": 256, "response_length": 1024}


class TokenServer:
    """Speaks as verl's servers do, and writes with the embedded policy."""

    def __init__(self) -> None:
        module = AutoModelForCausalLM.from_pretrained(TINY_DIR, dtype=torch.float32)
        self._module: Any = module.eval()
        self.requests: list[dict[str, Any]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        self.requests.append({"id": request_id, "ids": list(prompt_ids), **sampling_params})
        read = torch.tensor([prompt_ids])
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(len(self.requests))
            made = self._module.generate(
                read,
                attention_mask=torch.ones_like(read),
                do_sample=sampling_params["temperature"] > 0,
                max_new_tokens=sampling_params["max_tokens"],
                eos_token_id=sampling_params["stop_token_ids"],
                return_dict_in_generate=True,
                output_logits=True,
                top_k=0,
            )
        ids = made.sequences[0, len(prompt_ids) :].tolist()
        drawn = [float(x[0].log_softmax(-1)[n]) for x, n in zip(made.logits, ids, strict=True)]
        fields = {"min_global_steps": 7, "max_global_steps": 7}
        return TokenOutput(token_ids=ids, log_probs=drawn, extra_fields=fields)


def settings(folder: Path, *words: str, **changes: Any) -> Any:
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
                *words,
            ],
        )


def batch(folder: Path, config: Any, *, repeat: int) -> DataProto:
    domain = load_domain("retail", None)
    tasks = TaskDataLoader(TINY).train_tasks("retail")
    rows = [row(domain, task, split="train", index=n, user="solo") for n, task in enumerate(tasks)]
    write_table(folder / "train.parquet", rows)
    tokenizer = AutoTokenizer.from_pretrained(TINY_DIR)
    data = RLHFDataset(config.data.train_files, tokenizer, config.data)
    made = DataProto.from_single_dict(collate_fn([data[n] for n in range(len(data))]))
    return made.repeat(repeat, interleave=True)


def test_the_worker_plays_rows_with_the_rewards_and_tokens_of_a_local_run(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "rollouts"))
    config = settings(tmp_path, seed=11)
    server = TokenServer()
    worker = AgentLoopWorker(config, server)
    given = batch(tmp_path, config, repeat=4)
    given.meta_info = {"validate": False, "global_steps": 1}
    made = asyncio.run(worker.generate_sequences(given))

    assert len(made) == len(given) == 12
    scores = made.batch["rm_scores"].sum(dim=1)
    assert {float(score) for score in scores} == {0.0, 1.0}
    lines = [
        json.loads(line)
        for path in (tmp_path / "rollouts").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    played = {tuple(line["tokens"]["ids"]): line for line in lines}
    assert len(lines) == 12
    width = LENGTHS["prompt_length"]
    for n in range(len(made)):
        mask = made.batch["response_mask"][n].bool()
        ids = made.batch["responses"][n]
        whole = made.batch["input_ids"][n][made.batch["attention_mask"][n].bool()].tolist()
        # Every request that the episode made begins the conversation it was trained on.
        asked = [r["ids"] for r in server.requests if r["ids"] == whole[: len(r["ids"])]]
        assert asked
        assert float(scores[n]) == own_reward(played[tuple(whole)])
        assert mask[0]
        assert (made.batch["rollout_log_probs"][n][mask] <= 0).all()
        assert made.batch["attention_mask"][n][width:].sum() >= mask.sum()
        assert ids.shape == (LENGTHS["response_length"],)
    assert set(made.non_tensor_batch["min_global_steps"]) == {7}
    assert list(made.non_tensor_batch["success"]) == pytest.approx(scores.tolist())


def own_reward(line: dict[str, Any]) -> float:
    domain = load_domain("retail", None)
    oracle = RewardOracle({"retail": domain})
    return oracle.score(read_episode(line, domain.task(line["task_id"]), oracle).trajectory).value


def test_a_prompt_that_verl_would_cut_is_refused_with_the_setting_to_change(tmp_path):
    config = settings(tmp_path, "actor_rollout_ref.rollout.prompt_length=8", seed=12)
    worker = AgentLoopWorker(config, TokenServer())
    given = batch(tmp_path, config, repeat=1)
    given.meta_info = {"validate": False, "global_steps": 1}
    with pytest.raises(ConfigError, match="max_prompt_length"):
        asyncio.run(worker.generate_sequences(given))


def test_an_episode_ends_where_the_response_length_does_and_scores_nothing(tmp_path):
    config = settings(tmp_path, "actor_rollout_ref.rollout.response_length=16", seed=13)
    worker = AgentLoopWorker(config, TokenServer())
    given = batch(tmp_path, config, repeat=1)
    given.meta_info = {"validate": True, "global_steps": 1}
    made = asyncio.run(worker.generate_sequences(given))
    assert made.batch["responses"].shape[1] == 16
    assert made.batch["rm_scores"].sum() == 0


def test_the_command_starts_verl_with_the_settings_of_this_project():
    words = command(["trainer.nnodes=2"], CONFIGS / "verl.yaml")
    assert words[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    assert words[-1] == "trainer.nnodes=2"
    assert any(word.endswith(str(CONFIGS / "verl_loop.yaml")) for word in words)
    with pytest.raises(ConfigError, match="start from the project's folder"):
        command([], Path("nowhere.yaml"))


def test_the_settings_are_taken_by_verl(tmp_path):
    config = settings(tmp_path)
    assert config.algorithm.adv_estimator == "grpo"
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "grpo_cl"
    assert config.actor_rollout_ref.rollout.calculate_log_probs
    assert np.isclose(config.actor_rollout_ref.actor.optim.lr, 1e-6)
