"""AReaL's real workflow classes play our episodes with a real policy; no GPU is needed for it."""
# pyright: basic, reportMissingImports=false

import asyncio
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

WHY = "AReaL has an environment of its own: make test-engine-areal"
pytest.importorskip("areal.api", reason=WHY)

from areal.api import ModelRequest, ModelResponse
from areal.api.cli_args import GenerationHyperparameters
from areal.infra.remote_inf_engine import GroupedRolloutWorkflow
from areal.infra.workflow_executor import check_trajectory_format

from chat_server import ChatServer
from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig
from grpo_cl.domains import Domain
from grpo_cl.engines.areal.tables import task_rows
from grpo_cl.engines.areal.training import dataset, read_settings, workflow_arguments
from grpo_cl.engines.areal.workflow import GrpoClWorkflow, is_telling
from grpo_cl.errors import ConfigError
from grpo_cl.plans.scripts import ENGINES
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.loading import load_tokenizer, resolve
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.sampler import Completion, Request
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import run_episodes
from grpo_cl.types import Task

GetDomain = Callable[[str], Domain]
VERSION = 3
GREEDY = GenerationHyperparameters(
    n_samples=1, max_new_tokens=128, max_tokens=1536, temperature=0.0, greedy=True
)
TINY = {
    "user_strategy": "solo",
    "max_turns": 16,
    "rollout": {"prompt": "compact"},
    "sampling": {"dialect": "compact"},
}


def sampler(policy: PolicyModel) -> TransformersSampler:
    return TransformersSampler(policy.module, context=policy.context, slots=8, device="cpu")


class Engine:
    """AReaL's inference engine over our own sampler."""

    def __init__(self, policy: PolicyModel) -> None:
        self._sampler = sampler(policy)
        self._asked = 0

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        self._asked += 1
        wanted = Request(
            id=self._asked,
            sequence=self._asked,
            append=request.input_ids,
            max_new_tokens=min(
                request.gconfig.max_new_tokens,
                request.gconfig.max_tokens - len(request.input_ids),
            ),
            temperature=0.0 if request.gconfig.greedy else request.gconfig.temperature,
            top_p=1.0,
            stop_ids=tuple(request.gconfig.stop_token_ids),
            seed=self._asked,
        )
        self._sampler.submit([wanted])
        found: list[Completion] = []
        while not found:
            found = self._sampler.poll()
        self._sampler.release(self._asked)
        return ModelResponse(
            input_tokens=request.input_ids,
            output_tokens=found[0].ids,
            output_logprobs=found[0].logprobs,
            output_versions=[VERSION] * len(found[0].ids),
            stop_reason=found[0].reason,
        )


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return PolicyModel.load(GRPOConfig(model_name_or_path="tiny"), device=torch.device("cpu"))


def row(task: Task) -> dict[str, str]:
    return {"task": task.model_dump_json(exclude_none=True)}


def tokenizer() -> Any:
    return load_tokenizer(resolve("tiny"))


def test_the_embedded_policy_plays_as_in_a_local_run_token_for_token(
    domain: GetDomain, policy: PolicyModel
) -> None:
    retail = domain("retail")
    tasks = retail.generate(seed=5, count=8, split="test", difficulty=0.0)
    config = GRPOConfig(model_name_or_path="tiny", task_order=("retail",))
    actor = PolicyActor(
        policy.chat, sampler(policy), temperature=0.0, max_new_tokens=128, top_p=1.0
    )
    local = run_episodes(actor, {"retail": retail}, tasks, config.rollout)
    rewards = [RewardOracle({"retail": retail}).score(played).value for played in local]
    assert 0.0 < sum(rewards) < len(rewards)

    workflow = GrpoClWorkflow(TINY, GREEDY, tokenizer())
    engine: Any = Engine(policy)
    for task, played, reward in zip(tasks, local, rewards, strict=True):
        found = asyncio.run(workflow.arun_episode(engine, row(task)))
        assert check_trajectory_format(found)
        assert found is not None and played.tokens is not None
        assert found["input_ids"][0].tolist() == list(played.tokens.ids)
        mask = found["loss_mask"][0].bool()
        assert mask.tolist() == list(played.tokens.mask)
        assert found["logprobs"][0][mask].tolist() == pytest.approx(
            played.tokens.logprobs, abs=1e-4
        )
        assert set(found["versions"][0][mask].tolist()) == {VERSION}
        assert set(found["versions"][0][~mask].tolist()) == {-1}
        assert found["rewards"].tolist() == [reward]


def test_a_group_is_one_batch_of_padded_rows(domain: GetDomain, policy: PolicyModel) -> None:
    sampled = GREEDY.new(greedy=False, temperature=1.0)
    group = GroupedRolloutWorkflow(
        GrpoClWorkflow(TINY, sampled, tokenizer()), 4, logging.getLogger("test")
    )
    (task,) = domain("retail").generate(seed=6, count=1, split="test", difficulty=0.0)
    engine: Any = Engine(policy)
    found = asyncio.run(group.arun_episode(engine, row(task)))
    assert check_trajectory_format(found, batch_size=4)
    assert found is not None
    assert found["rewards"].shape == (4,)


def test_an_episode_whose_user_failed_is_left_out(
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


def test_only_groups_that_differ_are_telling() -> None:
    assert is_telling({"rewards": torch.tensor([0.0, 1.0])})
    assert not is_telling({"rewards": torch.tensor([1.0, 1.0])})


def settings_of(folder: Path, *words: str) -> Any:
    return read_settings([*words, f"cluster.fileroot={folder}"])


def test_the_shipped_settings_are_areals_and_take_ours(tmp_path: Path) -> None:
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


def test_the_words_of_a_plan_are_settings(tmp_path: Path) -> None:
    values = {"batch": 8, "steps": 2, "samples": 4, "temperature": 1.0, "max_new_tokens": 64}
    filled = [
        word.format(**values, learning_rate=1e-6, user="solo") for word in ENGINES["areal"].words
    ]
    settings = settings_of(tmp_path, *shlex.split(" ".join(filled)))
    assert settings.gconfig.n_samples == 4
    assert settings.econfig.settings["user_strategy"] == "solo"


@pytest.mark.parametrize("split", ["small", "train", "test"])
def test_splits_are_taken_by_name(domain: GetDomain, tmp_path: Path, split: str) -> None:
    settings = settings_of(
        tmp_path, "econfig.domain=telecom", f"train_dataset.path={split}", "econfig.solo_mode=true"
    )
    rows: Any = dataset(settings.train_dataset, settings.econfig)
    ids = [Task.model_validate_json(one["task"]).id for one in rows]
    assert ids == [task.id for task in domain("telecom").tasks(split)]


def test_few_tasks_fill_a_batch_and_several_domains_one_table(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path, "econfig.domain='mock,telecom'", "train_dataset.batch_size=500"
    )
    rows: Any = dataset(settings.train_dataset, settings.econfig)
    assert len(rows) >= 500
    assert {Task.model_validate_json(one["task"]).domain for one in rows} == {"mock", "telecom"}


def test_a_table_of_prepare_data_is_read(tmp_path: Path) -> None:
    assert main(["prepare-data", "--domains", "mock", "--output_dir", str(tmp_path)]) == 0
    rows = task_rows(str(tmp_path / "train.parquet"), [], GRPOConfig())
    assert {Task.model_validate_json(one["task"]).domain for one in rows} == {"mock"}
    with pytest.raises(ConfigError, match="prepare-data"):
        task_rows(str(tmp_path / "none.parquet"), [], GRPOConfig())
