"""The real ``skyrl_gym`` and SkyRL's own generator play our episodes; no GPU is needed for it."""
# pyright: basic, reportMissingImports=false

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WHY = "SkyRL has an environment of its own: make test-engine-skyrl"
skyrl_gym = pytest.importorskip("skyrl_gym", reason=WHY)
pytest.importorskip("skyrl.train", reason=WHY)

from skyrl.train.dataset import PromptDataset
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.utils import validate_cfg
from skyrl_sources import Policy, Script, Source, tables

from chat_server import ChatServer
from grpo_cl.config import RewardConfig, RolloutConfig
from grpo_cl.domains import DOMAINS, Domain
from grpo_cl.engines.skyrl.environment import register
from grpo_cl.engines.skyrl.training import GrpoClGenerator, ordered_loader, read_settings
from grpo_cl.engines.wording import Wording
from grpo_cl.errors import ConfigError
from grpo_cl.rewards import RewardOracle, learned_value
from grpo_cl.rollout import Agent, Scene, ScriptedActor, run_episodes
from grpo_cl.rows import row
from grpo_cl.types import Message, Task
from tiny_policies import byte_tokenizer

GetDomain = Callable[[str], Domain]
HERMES = Wording("hermes")


def told(task: Task) -> str:
    criteria = task.evaluation_criteria
    return " ".join((criteria.communicate_info or ()) if criteria else ())


GOLD = ScriptedActor(lambda task: [action.call for action in task.gold_actions], closing=told)


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def texts(task: Task, *, solo: bool) -> list[str]:
    """The gold solution as a model writes it, with words to spare at the end."""
    agent: Agent = GOLD.join(Scene(task, "", (), solo, 0))
    turns = [asyncio.run(agent.act(())) for _ in range(len(task.gold_actions) + 8)]
    return [HERMES.observation([turn])[0]["content"] for turn in turns]


def extras(domain: Domain, task: Task, user: str) -> dict[str, Any]:
    made = row(domain, task, split="train", index=0, user=user)
    return {"extra_info": made["extra_info"], "max_turns": 40}


def first_task(domain: Domain) -> Task:
    return domain.tasks("test" if "test" in domain.splits else "base")[0]


@pytest.mark.parametrize("user", ["solo", "scripted"])
@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_every_domain_is_played_to_the_reward_of_a_local_run(
    domain: GetDomain, name: str, user: str
) -> None:
    world = domain(name)
    task = first_task(world)
    (local,) = run_episodes(GOLD, {name: world}, [task], RolloutConfig(user=user))
    env = skyrl_gym.make("grpo_cl", env_config={}, extras=extras(world, task, user))
    opening, _ = env.init([])
    assert opening[0]["role"] == "system"
    assert world.policy_text(solo=user == "solo") in opening[0]["content"]
    assert all(tool["function"]["name"] in opening[0]["content"] for tool in world.tools())
    replies = iter(texts(task, solo=user == "solo"))
    steps = [env.step(next(replies))]
    while not steps[-1]["done"]:
        assert steps[-1]["observations"]
        steps.append(env.step(next(replies)))
    reward = RewardOracle({name: world}).score(local)
    learned = learned_value(reward, RewardConfig())
    assert [step["reward"] for step in steps] == [0.0] * (len(steps) - 1) + [learned]
    assert env.get_metrics()[f"reward/{name}"] == reward.value
    env.close()


def generated(source: Source, batch: dict[str, Any], *words: str) -> dict[str, Any]:
    settings = read_settings(["generator.sampling_params.max_generate_length=64", *words])
    generator = GrpoClGenerator(
        generator_cfg=settings.generator,
        skyrl_gym_cfg=settings.environment.skyrl_gym,
        inference_engine_client=source,
        tokenizer=source.tokenizer,
    )
    generator.generation_prompt_ids = source.tokenizer.encode("<|start|>assistant\n")
    return asyncio.run(generator.generate(batch, disable_tqdm=True))


def batch_of(dataset: PromptDataset, items: list[int], samples: int) -> dict[str, Any]:
    rows = [dataset[item] for item in items for _ in range(samples)]
    ids = [TrajectoryID(one[3], number % samples) for number, one in enumerate(rows)]
    return {
        "prompts": [one[0] for one in rows],
        "env_classes": [one[1] for one in rows],
        "env_extras": [dict(one[2]) for one in rows],
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
def test_the_gold_solution_earns_its_reward_through_the_generator(
    domain: GetDomain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    monkeypatch.setenv("GRPO_CL_ROLLOUTS", str(tmp_path / "rollouts"))
    table = tables(tmp_path, "--domains", "mock", "retail", "--user", user)
    dataset = dataset_of(table)
    tasks = [Task.model_validate_json(dataset[i][2]["extra_info"]["task"]) for i in range(8)]
    written = [texts(task, solo=user == "solo") for task in tasks]
    source = Script(byte_tokenizer(), lambda name: written[int(name.split("_")[0])])
    batch = batch_of(dataset, list(range(8)), samples=2)
    seed = "environment.skyrl_gym.grpo_cl.seed=1"  # a venue of its own, with a log of its own
    output = generated(source, batch, seed, "generator.max_input_length=200000")

    domains = {name: domain(name) for name in ("mock", "retail")}
    local = run_episodes(GOLD, domains, tasks, RolloutConfig(user=user))
    expected = [RewardOracle(domains).score(played).value for played in local]
    assert [sum(rewards) for rewards in output["rewards"]] == [r for r in expected for _ in "12"]
    said = {
        tuple(m["content"] or "" for m in episode["messages"])
        for episode in recorded(tmp_path / "rollouts")
    }
    assert said == {tuple(m.content or "" for m in played.messages) for played in local}


def test_tokens_of_a_real_policy_are_trained_as_they_were_sampled(
    domain: GetDomain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_CL_ROLLOUTS", str(tmp_path / "rollouts"))
    dataset = dataset_of(tables(tmp_path, "--domains", "mock", "--user", "scripted"))
    source = Policy(max_new_tokens=24)
    batch = batch_of(dataset, [0, 1], samples=2)
    limits = ("generator.max_turns=3", "environment.skyrl_gym.grpo_cl.seed=2")
    output = generated(source, batch, *limits)
    for place, name in enumerate(batch["trajectory_ids"]):
        turns = source.written[name.to_string()]
        assert 1 <= len(turns) <= 3
        ids, mask = output["response_ids"][place], output["loss_masks"][place]
        trained = [token for token, counts in zip(ids, mask, strict=True) if counts]
        assert trained == [token for turn in turns for token in turn]
        logprobs = output["rollout_logprobs"][place]
        assert [p for p, counts in zip(logprobs, mask, strict=True) if counts] == pytest.approx(
            source.logprobs[name.to_string()]
        )
        assert output["rewards"][place][-1] == sum(output["rewards"][place])
    mock = domain("mock")
    played = [json.loads(json.dumps(episode)) for episode in recorded(tmp_path / "rollouts")]
    assert len(played) == 4
    assert {episode["termination"] for episode in played} <= {
        "max_steps",
        "user_stop",
        "agent_error",
    }
    assert all(mock.has_task(episode["task_id"]) for episode in played)


def test_an_episode_whose_user_failed_teaches_nothing_and_moves_no_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    dataset = dataset_of(tables(tmp_path, "--domains", "mock", "--user", "llm"))
    source = Script(byte_tokenizer(), lambda name: ["Hello"] * 9)
    with ChatServer(lambda body: "Hi", ("500",) * 99) as server:
        ours = "environment.skyrl_gym.grpo_cl"
        output = generated(
            source,
            batch_of(dataset, [0], samples=2),
            f"{ours}.user_model=openai-api/loopback/customer",
            f"{ours}.user_base_url={server.url}",
            f"{ours}.models.retries=0",
            f"{ours}.models.cache_dir=null",
        )
    assert not any(sum(mask) for mask in output["loss_masks"])
    assert output["rollout_metrics"]["environment/lost"] == 1.0


def test_settings_are_skyrls_and_ours_in_one_list_of_words() -> None:
    settings = read_settings(
        [
            "data.train_data=['train.parquet']",
            "data.val_data=['validation.parquet']",
            "trainer.policy.model.path=Qwen/Qwen3-8B",
            "trainer.epochs=100",
            "generator.n_samples_per_prompt=5",
            "environment.skyrl_gym.grpo_cl.user_strategy=llm",
            "environment.skyrl_gym.grpo_cl.user_model=openai/gpt-4o",
            "environment.skyrl_gym.grpo_cl.max_turns=12",
        ]
    )
    validate_cfg(settings)
    assert settings.trainer.epochs == 100
    assert settings.environment.env_class == "grpo_cl"
    assert settings.environment.skyrl_gym.grpo_cl["max_turns"] == 12
    with pytest.raises(ConfigError, match="user_stratgy"):
        read_settings(["environment.skyrl_gym.grpo_cl.user_stratgy=solo"])
    with pytest.raises(ConfigError, match="no_such_setting"):
        read_settings(["trainer.no_such_setting=1"])
    with pytest.raises(ConfigError, match="one sequence"):
        read_settings(["generator.batched=true"])


def test_a_table_can_be_played_in_its_own_order(tmp_path: Path) -> None:
    dataset = dataset_of(tables(tmp_path, "--domains", "retail"))
    settings = read_settings(["data.shuffle=false", "trainer.train_batch_size=8"])
    seen = [row["uid"] for batch in ordered_loader(settings, dataset) for row in batch]
    assert seen == [str(place) for place in range(len(dataset) // 8 * 8)]


def test_without_a_table_to_measure_on_nothing_is_measured() -> None:
    assert read_settings([]).trainer.eval_interval == -1
    assert read_settings(["data.val_data=['x.parquet']"]).trainer.eval_interval > 0


def test_messages_are_read_as_the_model_wrote_them() -> None:
    assert HERMES.reply("Bye.<|im_end|>") == Message(role="assistant", content="Bye.")
