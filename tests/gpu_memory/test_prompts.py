import json
from typing import Any

import pytest

from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.gpu_memory import EpisodeLengths, measure_episodes
from grpo_cl.gpu_memory.prompts import TURN_TOKENS
from grpo_cl.policy.chat.chat import chat_for
from grpo_cl.policy.model.loading import load_tokenizer, resolve
from grpo_cl.rollout import known_opening

SMOLLM2_TOKENS = {"airline": 5138, "retail": 5098, "telecom": 10174}
"""Longest full solo prompts of generated tasks in SmolLM2's tokens (docs/training.md)."""


def lengths(encode: Any = None, **settings: Any) -> dict[str, EpisodeLengths]:
    config = GRPOConfig.model_validate(settings)
    return {each.domain: each for each in measure_episodes(config, encode)}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["estimate-memory", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_prompts_estimated_from_characters_are_close_to_those_of_a_tokenizer():
    found = lengths()
    tokens = {name: each.prompt_tokens for name, each in found.items()}
    assert tokens == pytest.approx(SMOLLM2_TOKENS, rel=0.05)
    for each in found.values():
        assert 0.85 * each.prompt_tokens < each.shared_tokens < each.prompt_tokens


def test_a_prompt_with_a_user_has_no_ticket_and_a_compact_one_no_policy_and_tools():
    solo = lengths(task_order=("airline",))["airline"]
    with_user = lengths(task_order=("airline",), rollout={"user": "scripted"})["airline"]
    compact = lengths(task_order=("airline",), rollout={"prompt": "compact"})["airline"]
    assert with_user.prompt_tokens == pytest.approx(with_user.shared_tokens, abs=1)
    assert compact.prompt_tokens < 400 < 4000 < with_user.prompt_tokens < solo.prompt_tokens


def test_the_longest_prompt_is_rendered_with_the_models_own_tokenizer():
    chat = chat_for(load_tokenizer(resolve("tiny")), "compact")
    settings = {"model_name_or_path": "tiny", "task_order": ("mock", "telecom")}
    config = GRPOConfig.model_validate(settings | {"tasks": {"own": True, "generated": 8}})
    loader = TaskDataLoader(config)
    for each in measure_episodes(config, chat.opening):
        domain = loader.domains[each.domain]
        openings = [
            chat.opening(*known_opening(domain, task, config.rollout))
            for task in loader.train_tasks(each.domain)
        ]
        assert each.prompt_tokens == max(map(len, openings))


def test_an_episode_has_as_many_replies_as_its_limits_allow():
    assert lengths(task_order=("mock",))["mock"].max_replies == 100, "200 steps, two per reply"
    limited = lengths(task_order=("mock",), rollout={"max_turns": 7})["mock"]
    assert (limited.max_replies, limited.turn_tokens) == (7, TURN_TOKENS)


def test_a_domain_that_sends_observations_has_one_reply_to_each():
    config = {"task_order": ("memory",), "rollout": {"max_turns": 1}}
    found = lengths(**config)["memory"]
    assert found.max_replies > 1
    assert found.turn_tokens >= TURN_TOKENS


def test_estimate_takes_whole_episodes_up_to_the_context(capsys: pytest.CaptureFixture[str]):
    model = ("--model_name_or_path", "qwen2.5-1.5b", "--task_order", "airline", "mock")
    record = printed(capsys, *model)
    assert set(record["domains"]) == {"airline", "mock"}
    for domain in record["domains"].values():
        assert domain["prompt_tokens"] + domain["reply_tokens"] == 32768
    assert record["needed"] == max(domain["needed"] for domain in record["domains"].values())
    limits = ("--rollout.max_turns", "4", "--max_new_tokens", "100", "--turn_tokens", "50")
    assert printed(capsys, *model, *limits)["domains"]["mock"]["reply_tokens"] == 4 * 150


def test_estimate_states_the_tasks_of_a_step_and_how_prompts_were_counted(
    capsys: pytest.CaptureFixture[str],
):
    words = ["estimate-memory", "--task_order", "mock", "--gpus", "2", "--lora.r", "8"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "A step has 16 tasks: batch_size_per_gpu 4 × gradient_accumulation_steps 2 × 2" in shown
    assert "4 characters per token, as the tokenizer is not at hand): mock" in shown
    assert main(["estimate-memory", "--task_order", "telecom", "model_name_or_path=tiny"]) == 0
    assert "rendered with the model's tokenizer): telecom" in capsys.readouterr().out
