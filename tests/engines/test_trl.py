"""The real ``GRPOTrainer`` with the embedded policy on a CPU."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown elsewhere.

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is in an environment of its own: make test-engine-trl")

import torch
from compact_template import templated_tokenizer
from datasets import Dataset
from transformers.utils.chat_template_utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from grpo_cl.domains import DOMAINS
from grpo_cl.engines.trl.__main__ import main
from grpo_cl.engines.trl.environments import OVER, RESPOND, environment_class, environment_row
from grpo_cl.engines.trl.rollouts import REWARD
from grpo_cl.engines.trl.training import make_trainer
from grpo_cl.engines.venue import Venue, episode_config
from grpo_cl.errors import ConfigError
from grpo_cl.policy.loading import TINY_DIR
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.rows import row, write_table
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import Task, ToolCall, Trajectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of TRL and what it brings
    pytest.mark.timeout(600),
]


def tiny_venue(*domains: str, tasks: int, **options: Any) -> tuple[Venue, list[Task]]:
    config = episode_config(
        {
            "model_name_or_path": "tiny",
            "task_order": list(domains),
            "max_tasks_per_domain": tasks,
            **options,
        }
    )
    loader = TaskDataLoader(config)
    return Venue(config), [task for name in domains for task in loader.train_tasks(name)]


def settings(folder: Path, **changes: Any) -> GRPOConfig:
    return GRPOConfig(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "bf16": False,
            "per_device_train_batch_size": 4,
            "num_generations": 4,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
            "save_strategy": "no",
            "logging_steps": 1,
            "disable_tqdm": True,
            "seed": 1,
            **changes,
        }
    )


def own_reward(venue: Venue, trajectory: Trajectory) -> float:
    names = {trajectory.task.domain}
    return RewardOracle({name: venue.domain(name) for name in names}).score(trajectory).value


def weights(trainer: Any) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def test_rollouts_train_on_the_tokens_that_were_sampled_with_the_rewards_of_a_local_run(tmp_path):
    venue, tasks = tiny_venue("retail", tasks=2, seed=3)
    trainer = make_trainer(venue, tasks, settings(tmp_path), mode="rollouts")
    rollouts = trainer.rollout_func
    calls: list[tuple[dict[str, list[Any]], list[float], torch.Tensor]] = []

    def watched(prompts: list[Any], given: Any) -> dict[str, list[Any]]:
        made = rollouts(prompts, given)
        own = [own_reward(venue, outcome.trajectory) for outcome in rollouts.outcomes]
        ids = torch.tensor([made["prompt_ids"][0] + made["completion_ids"][0]])
        keep = len(made["completion_ids"][0])
        scores = given._get_per_token_logps_and_entropies(
            given.model, ids, torch.ones_like(ids), keep
        )[0][0]
        calls.append((made, own, scores.detach()))
        return made

    trainer.rollout_func = watched
    before = weights(trainer)
    trainer.train()

    assert len(calls) == 2
    logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    for (made, own, scores), mean in zip(calls, logged, strict=True):
        assert made[REWARD] == own
        assert mean == pytest.approx(sum(own) / len(own), abs=1e-4)
        mask = torch.tensor(made["env_mask"][0], dtype=torch.bool)
        drawn = torch.tensor(made["logprobs"][0])
        assert mask[0]
        assert mask[-1]
        torch.testing.assert_close(scores[mask], drawn[mask], atol=1e-3, rtol=1e-3)
    assert {value for _, own, _ in calls for value in own} == {0.0, 1.0}
    changed = [bool((old != new).any()) for old, new in zip(before, weights(trainer), strict=True)]
    assert any(changed)
    trainer.save_model()
    assert (tmp_path / "model.safetensors").is_file()
    venue.close()


def test_environments_are_scored_as_their_calls_are_in_a_local_run(tmp_path):
    venue, tasks = tiny_venue("retail", "telecom", tasks=1, seed=3)
    seen: list[tuple[Task, list[ToolCall], float | None]] = []

    def watch(completions: list[Any], environments: list[Any], **columns: Any) -> list[None]:
        for task, messages, played in zip(columns["task"], completions, environments, strict=True):
            made = [
                ToolCall(name=call["function"]["name"], arguments=call["function"]["arguments"])
                for message in messages
                for call in message.get("tool_calls") or ()
            ]
            seen.append((Task.model_validate_json(task), made, played.get_reward()))
        return [None] * len(completions)

    trainer = GRPOTrainer(
        model=str(TINY_DIR),
        reward_funcs=[watch],
        args=settings(tmp_path, max_completion_length=512, shuffle_dataset=False),
        train_dataset=Dataset.from_list([environment_row(venue, task) for task in tasks]),
        processing_class=templated_tokenizer(),
        environment_factory={
            name: environment_class(venue, name) for name in ("retail", "telecom")
        },
    )
    before = weights(trainer)
    trainer.train()

    assert {task.domain for task, *_ in seen} == {"retail", "telecom"}
    assert any(made for _, made, _ in seen)
    for task, made, given in seen:
        assert given == local_reward(venue, task, made)
    assert len(before) == len(weights(trainer))
    venue.close()


def local_reward(venue: Venue, task: Task, calls: list[ToolCall]) -> float:
    """The reward of the same calls in a local run; without ``done`` the agent falls silent."""
    done = [n for n, call in enumerate(calls) if call.name == "done"]
    if not done:
        return 0.0
    domains = {task.domain: venue.domain(task.domain)}
    actor = ScriptedActor(lambda _: calls[: done[0]])
    (played,) = run_episodes(actor, domains, [task], venue.rollout)
    return own_reward(venue, played)


@pytest.mark.parametrize("domain", sorted(DOMAINS))
@pytest.mark.parametrize("user", ["solo", "scripted"])
def test_every_tool_of_every_domain_is_a_method_with_its_schema(domain, user):
    venue = Venue(episode_config({"task_order": [domain], "user_strategy": user}))
    kind = environment_class(venue, domain)
    instance = kind()
    schemas = [s["function"] for s in venue.domain(domain).tools(solo=user == "solo")]
    for schema in schemas:
        made = get_json_schema(vars(kind)[schema["name"]].__get__(instance))["function"]
        wanted = schema["parameters"]
        assert made["name"] == schema["name"]
        assert made["description"].split()[:5] == schema["description"].split()[:5]
        assert set(made["parameters"]["properties"]) == set(wanted.get("properties", {}))
        assert sorted(made["parameters"].get("required", [])) == sorted(wanted.get("required", []))
        for name, value in wanted.get("properties", {}).items():
            found = made["parameters"]["properties"][name]
            assert found.get("type") == value.get("type")
            assert found.get("enum") == value.get("enum")
    assert (RESPOND in vars(kind)) == (user == "scripted")
    venue.close()


def test_with_a_user_the_words_to_them_are_a_tool_and_the_reward_is_the_local_one():
    venue = Venue(episode_config({"task_order": ["mock"], "user_strategy": "scripted"}))
    task = venue.task("mock", "create_task_1")
    environment: Any = environment_class(venue, "mock")()
    asked = environment_row(venue, task)
    assert RESPOND in asked["prompt"][0]["content"]
    opening = environment.reset(**asked)
    assert opening
    for action in task.gold_actions:
        assert OVER not in vars(type(environment))[action.name](environment, **action.arguments)
    answer = environment.respond_to_user(text="It is done. Anything else?")
    assert OVER in answer
    assert environment.get_users() == OVER
    assert environment.get_reward() == 1.0
    environment.reset(**asked)
    assert environment.get_reward() == 0.0
    venue.close()


def test_the_command_trains_from_a_table_and_saves_a_model(tmp_path):
    venue, tasks = tiny_venue("retail", tasks=1, seed=3)
    made = row(venue.domain("retail"), tasks[0], split="train", index=0, user="solo")
    write_table(tmp_path / "train.parquet", [made])
    words = {
        "train_file": tmp_path / "train.parquet",
        "model_name_or_path": "tiny",
        "output_dir": tmp_path / "out",
        "max_steps": 1,
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "max_new_tokens": 64,
        "use_cpu": "true",
        "bf16": "false",
        "report_to": "none",
    }
    assert main([word for name, value in words.items() for word in (f"--{name}", str(value))]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    venue.close()


def test_environments_need_a_chat_template(tmp_path):
    venue, tasks = tiny_venue("retail", tasks=1)
    with pytest.raises(ConfigError, match="--mode rollouts"):
        make_trainer(venue, tasks, settings(tmp_path), mode="environments")
    venue.close()
