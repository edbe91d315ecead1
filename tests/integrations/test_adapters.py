"""The parts of the engine integrations that do not need an installed engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.envs import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.integrations import require_packages
from grpo_cl.integrations.areal.token_recorder import NO_VERSION, TokenRecorder
from grpo_cl.integrations.episode_context import episode_config, require_hosted_models
from grpo_cl.integrations.plan.schedule import plannable_config
from grpo_cl.integrations.rows import SOLO_PROMPT, task_row, write_table
from grpo_cl.integrations.skyrl.loss_masks import mask_failed_episodes
from grpo_cl.integrations.text_chat import TextChat
from grpo_cl.integrations.verl.__main__ import check_users
from grpo_cl.rollout import GREETING, Scene
from grpo_cl.types import Message, Task, ToolCall, UserScenario

CALL = ToolCall(name="find", arguments={"id": "7"})
TASK = Task(id="t", domain="mock", user_scenario=UserScenario(instructions="x"))
TOOL = {"type": "function", "function": {"name": "find", "description": "", "parameters": {}}}


def result(text: str) -> Message:
    return Message(role="tool", id="call_0", content=text)


def test_failed_episode_gets_the_group_mean_and_is_masked_from_the_loss() -> None:
    rewards, masks = mask_failed_episodes(
        [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0, 0.0], [0.5]],
        [[1, 1], [0, 1], [1, 0, 1], [1]],
        groups=["a", "a", "a", "b"],
        failed=[False, False, True, False],
    )
    assert rewards == [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0, 0.5], [0.5]]
    assert masks == [[1, 1], [0, 1], [0, 0, 0], [1]]


def test_group_of_failed_episodes_has_reward_zero() -> None:
    assert mask_failed_episodes([1.0], [[1]], groups=["a"], failed=[True]) == ([0.0], [[0]])


def test_token_recorder_marks_sampled_tokens_with_their_weight_version() -> None:
    tokens = TokenRecorder()
    tokens.add_prompt([1, 2])
    tokens.add_completion([3], [-0.5], [4])
    tokens.add_prompt([5])
    tokens.add_completion([6, 7], [-0.1, -0.2], [4, 5])
    assert tokens.versions == [NO_VERSION, NO_VERSION, 4, NO_VERSION, 4, 5]
    trace = tokens.trace(is_truncated=True)
    assert trace.ids == (1, 2, 3, 5, 6, 7)
    assert trace.mask == (False, False, True, False, True, True)
    assert trace.logprobs == (-0.5, -0.1, -0.2)
    assert trace.turns == ((2, 3), (4, 6))
    assert trace.is_truncated


def test_opening_describes_the_tools_and_has_a_user_message() -> None:
    scene = Scene(TASK, "Rules.", [TOOL], solo=True, seed=0)
    system, user = TextChat("hermes").opening(scene, ())
    assert system["content"].endswith("Rules.")
    assert '"find"' in system["content"]
    assert user == {"role": "user", "content": SOLO_PROMPT}
    messages = [Message(role="assistant", content=GREETING), Message(role="user", content="Hi")]
    roles = [message["role"] for message in TextChat("hermes").opening(scene, messages)]
    assert roles == ["system", "assistant", "user"]


def test_consecutive_tool_results_are_one_message_and_tool_calls_are_text() -> None:
    chat = TextChat("json").observation(
        [Message(role="assistant", tool_calls=(CALL, CALL)), result("a"), result("b")]
    )
    assert [message["role"] for message in chat] == ["assistant", "user"]
    assert chat[1]["content"] == "Tool result: a\nTool result: b"
    assert TextChat("json").reply(chat[0]["content"]).tool_calls == (CALL, CALL)


@pytest.mark.parametrize("end_token", ["<|im_end|>", "<|eot_id|>\n", "</s>", ""])
def test_end_of_turn_token_is_removed_from_a_reply(end_token: str) -> None:
    assert TextChat("hermes").reply(f"Bye.{end_token}") == Message(role="assistant", content="Bye.")


def test_missing_engine_raises_an_error_that_names_its_requirements() -> None:
    with pytest.raises(ConfigError, match=r"skyrl is not installed here \(no_such\b.*requirements"):
        require_packages("skyrl", "no_such", "json")


@pytest.mark.parametrize("strategy", ["llm", "react", "verify", "reflection"])
def test_engines_refuse_a_user_without_its_model_before_they_start(strategy: str) -> None:
    for model in (None, "policy", "frozen"):
        config = episode_config({"user_strategy": strategy, "user_model": model})
        with pytest.raises(ConfigError, match=f"the user '{strategy}' is driven by a model"):
            require_hosted_models(config)
    require_hosted_models(episode_config({"user_strategy": strategy, "user_model": "openai/x"}))
    with pytest.raises(ConfigError, match=f"rollout.user='{strategy}' is driven by a model"):
        plannable_config(GRPOConfig.model_validate({"rollout": {"user": strategy}}))


def test_verl_is_not_started_with_a_table_whose_user_needs_a_model(tmp_path: Path) -> None:
    domain = load_domain("mock")
    row = task_row(domain, domain.tasks("base")[0], split="train", index=0, user="llm")
    write_table(tmp_path / "train.parquet", [row])
    settings = tmp_path / "verl.yaml"
    settings.write_text(f"data: {{train_files: {tmp_path / 'train.parquet'}}}\n")
    loop = tmp_path / "verl_loop.yaml"
    loop.write_text("- name: grpo_cl\n  settings: {max_turns: 3}\n")
    for overrides in ([], [f"data.train_files=[{tmp_path / 'train.parquet'}]", "trainer.nnodes=1"]):
        with pytest.raises(ConfigError, match="the user 'llm' is driven by a model"):
            check_users(overrides, settings)
    loop.write_text("- name: grpo_cl\n  settings: {user_model: openai/gpt-4o}\n")
    check_users([], settings)


@pytest.mark.parametrize("engine", ["skyrl", "areal"])
def test_command_of_a_missing_engine_prints_how_to_install_it(engine: str) -> None:
    command = [sys.executable, "-m", f"grpo_cl.integrations.{engine}"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert f"requirements/{engine}.txt" in process.stderr.splitlines()[-1]
