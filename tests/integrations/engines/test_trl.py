"""The real ``GRPOTrainer`` with the embedded policy on a CPU."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown elsewhere.

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL needs a separate environment: make test-engine-trl")

import torch
from datasets import Dataset
from transformers.utils.chat_template_utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from compact_template import templated_tokenizer
from grpo_cl.config import LossConfig
from grpo_cl.envs import DOMAINS
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import EpisodeContext, episode_config
from grpo_cl.integrations.rows import task_row, write_table
from grpo_cl.integrations.trl.__main__ import main
from grpo_cl.integrations.trl.environments import (
    EPISODE_OVER,
    RESPOND_TOOL,
    environment_class,
    environment_row,
)
from grpo_cl.integrations.trl.rollouts import REWARD
from grpo_cl.integrations.trl.training import make_trainer
from grpo_cl.policy.learner.loss import LossBatch, LossKind, policy_loss, sequence_weights
from grpo_cl.policy.model.loading import TINY_DIR
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.types import Task, ToolCall, Trajectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of TRL and its dependencies
    pytest.mark.timeout(600),
]


def tiny_context(*domains: str, tasks: int, **options: Any) -> tuple[EpisodeContext, list[Task]]:
    config = episode_config(
        {
            "model_name_or_path": "tiny",
            "task_order": list(domains),
            "max_tasks_per_domain": tasks,
            **options,
        }
    )
    loader = TaskDataLoader(config)
    return EpisodeContext(config), [task for name in domains for task in loader.train_tasks(name)]


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


def oracle_reward(context: EpisodeContext, trajectory: Trajectory) -> float:
    names = {trajectory.task.domain}
    return RewardOracle({name: context.domain(name) for name in names}).score(trajectory).value


def weights(trainer: Any) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def test_rollouts_train_on_the_sampled_tokens_with_the_rewards_of_a_local_run(tmp_path):
    context, tasks = tiny_context("retail", tasks=2, seed=3)
    trainer = make_trainer(context, tasks, settings(tmp_path), mode="rollouts")
    rollouts = trainer.rollout_func
    calls: list[tuple[dict[str, list[Any]], list[float], torch.Tensor]] = []

    def recorded_rollouts(prompts: list[Any], trl_trainer: Any) -> dict[str, list[Any]]:
        columns = rollouts(prompts, trl_trainer)
        own = [oracle_reward(context, outcome.trajectory) for outcome in rollouts.outcomes]
        ids = torch.tensor([columns["prompt_ids"][0] + columns["completion_ids"][0]])
        keep = len(columns["completion_ids"][0])
        scores = trl_trainer._get_per_token_logps_and_entropies(
            trl_trainer.model, ids, torch.ones_like(ids), keep
        )[0][0]
        calls.append((columns, own, scores.detach()))
        return columns

    trainer.rollout_func = recorded_rollouts
    before = weights(trainer)
    trainer.train()

    assert len(calls) == 2
    logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    for (columns, own, scores), mean in zip(calls, logged, strict=True):
        assert columns[REWARD] == own
        assert mean == pytest.approx(sum(own) / len(own), abs=1e-4)
        mask = torch.tensor(columns["env_mask"][0], dtype=torch.bool)
        sampled = torch.tensor(columns["logprobs"][0])
        assert mask[0]
        assert mask[-1]
        torch.testing.assert_close(scores[mask], sampled[mask], atol=1e-3, rtol=1e-3)
    assert {value for _, own, _ in calls for value in own} == {0.0, 1.0}
    changed = [bool((old != new).any()) for old, new in zip(before, weights(trainer), strict=True)]
    assert any(changed)
    trainer.save_model()
    assert (tmp_path / "model.safetensors").is_file()
    context.close()


def test_environments_have_the_reward_of_the_same_calls_in_a_local_run(tmp_path):
    context, tasks = tiny_context("retail", "telecom", tasks=1, seed=3)
    seen: list[tuple[Task, list[ToolCall], float | None]] = []

    def record(completions: list[Any], environments: list[Any], **columns: Any) -> list[None]:
        for task, messages, environment in zip(
            columns["task"], completions, environments, strict=True
        ):
            calls = [
                ToolCall(name=call["function"]["name"], arguments=call["function"]["arguments"])
                for message in messages
                for call in message.get("tool_calls") or ()
            ]
            seen.append((Task.model_validate_json(task), calls, environment.get_reward()))
        return [None] * len(completions)

    trainer = GRPOTrainer(
        model=str(TINY_DIR),
        reward_funcs=[record],
        args=settings(tmp_path, max_completion_length=512, shuffle_dataset=False),
        train_dataset=Dataset.from_list([environment_row(context, task) for task in tasks]),
        processing_class=templated_tokenizer(),
        environment_factory={
            name: environment_class(context, name) for name in ("retail", "telecom")
        },
    )
    before = weights(trainer)
    trainer.train()

    assert {task.domain for task, *_ in seen} == {"retail", "telecom"}
    assert any(calls for _, calls, _ in seen)
    for task, calls, reward in seen:
        assert reward == local_reward(context, task, calls)
    assert len(before) == len(weights(trainer))
    context.close()


def local_reward(context: EpisodeContext, task: Task, calls: list[ToolCall]) -> float:
    """The reward of the same calls in a local run; 0 if the agent never calls ``done``."""
    done = [n for n, call in enumerate(calls) if call.name == "done"]
    if not done:
        return 0.0
    domains = {task.domain: context.domain(task.domain)}
    actor = ScriptedActor(lambda _: calls[: done[0]])
    (trajectory,) = run_episodes(actor, domains, [task], context.rollout)
    return oracle_reward(context, trajectory)


@pytest.mark.parametrize("domain", sorted(DOMAINS))
@pytest.mark.parametrize("user", ["solo", "scripted"])
def test_every_tool_is_a_method_with_the_schema_of_its_domain(domain, user):
    context = EpisodeContext(episode_config({"task_order": [domain], "user_strategy": user}))
    environment = environment_class(context, domain)
    instance = environment()
    schemas = [s["function"] for s in context.domain(domain).tools(solo=user == "solo")]
    for schema in schemas:
        derived = get_json_schema(vars(environment)[schema["name"]].__get__(instance))["function"]
        expected = schema["parameters"]
        assert derived["name"] == schema["name"]
        assert derived["description"].split()[:5] == schema["description"].split()[:5]
        assert set(derived["parameters"]["properties"]) == set(expected.get("properties", {}))
        assert sorted(derived["parameters"].get("required", [])) == sorted(
            expected.get("required", [])
        )
        for name, value in expected.get("properties", {}).items():
            parameter = derived["parameters"]["properties"][name]
            assert parameter.get("type") == value.get("type")
            assert parameter.get("enum") == value.get("enum")
    assert (RESPOND_TOOL in vars(environment)) == (user == "scripted")
    context.close()


def test_user_messages_are_a_tool_call_and_the_reward_is_that_of_a_local_run():
    context = EpisodeContext(episode_config({"task_order": ["mock"], "user_strategy": "scripted"}))
    task = context.task("mock", "create_task_1")
    environment: Any = environment_class(context, "mock")()
    row = environment_row(context, task)
    assert RESPOND_TOOL in row["prompt"][0]["content"]
    opening = environment.reset(**row)
    assert opening
    for action in task.gold_actions:
        assert EPISODE_OVER not in vars(type(environment))[action.name](
            environment, **action.arguments
        )
    answer = environment.respond_to_user(text="It is done. Anything else?")
    assert EPISODE_OVER in answer
    assert environment.get_users() == EPISODE_OVER
    assert environment.get_reward() == 1.0
    environment.reset(**row)
    assert environment.get_reward() == 0.0
    context.close()


def test_command_trains_from_a_parquet_file_and_saves_a_model(tmp_path):
    context, tasks = tiny_context("retail", tasks=1, seed=3)
    row = task_row(context.domain("retail"), tasks[0], split="train", index=0, user="solo")
    write_table(tmp_path / "train.parquet", [row])
    options = {
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
    assert (
        main([part for name, value in options.items() for part in (f"--{name}", str(value))]) == 0
    )
    assert (tmp_path / "out" / "model.safetensors").is_file()
    context.close()


def test_environments_need_a_chat_template(tmp_path):
    context, tasks = tiny_context("retail", tasks=1)
    with pytest.raises(ConfigError, match="--mode rollouts"):
        make_trainer(context, tasks, settings(tmp_path), mode="environments")
    context.close()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("grpo", {"loss_type": "grpo"}),
        ("dr_grpo", {"loss_type": "dr_grpo"}),
        ("dapo", {"loss_type": "dapo"}),
        ("gspo", {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    ],
)
def test_loss_and_gradient_equal_those_of_trl(
    kind: LossKind, options: dict[str, Any], tmp_path: Path
) -> None:
    limits = {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.1, "max_completion_length": 9}
    trainer = GRPOTrainer(
        model=str(TINY_DIR),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings(tmp_path, use_bias_correction_kl=False, **limits, **options),
        train_dataset=Dataset.from_list([{"prompt": "one"}] * 4),
        processing_class=templated_tokenizer(),
    )
    model = trainer.model.double().eval()
    torch.manual_seed(0)
    prompt_ids, completion_ids = torch.randint(8, 200, (4, 5)), torch.randint(8, 200, (4, 9))
    lengths = [9, 4, 7, 1]
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None]).long()
    ids, seen = torch.cat([prompt_ids, completion_ids], 1), torch.cat([torch.ones(4, 5), mask], 1)
    logprobs, _, _ = trainer._get_per_token_logps_and_entropies(model, ids, seen, 9)
    noise = 0.5 * torch.randn(2, 4, 9, dtype=torch.float64)  # many ratios are clipped
    old, reference = logprobs.detach() + noise
    advantages = torch.tensor([1.0, -2.0, 0.5, 1.5], dtype=torch.float64)
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": torch.ones(4, 5),
        "completion_ids": completion_ids,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    theirs = trainer._compute_loss(model, inputs)
    ours = policy_loss(
        LossBatch(
            logprobs_BT=logprobs.double(),
            old_logprobs_BT=old,
            sampler_logprobs_BT=old,
            reference_logprobs_BT=reference,
            advantages_BT=advantages[:, None].expand(4, 9),
            mask_BT=mask.bool(),
            weights_B=torch.tensor(
                sequence_weights(lengths, kind, max_tokens=9), dtype=torch.float64
            ),
        ),
        LossConfig(kind=kind, epsilon_low=0.2, epsilon_high=0.28),
        0.1,
    ).loss
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = (torch.autograd.grad(loss, weights) for loss in (ours, theirs))
    for own, other in zip(*gradients, strict=True):
        assert (own - other).norm() <= 1e-5 * other.norm()  # TRL's log-probs are float32
