"""Names of models behind an API."""

import pytest
from pydantic import ValidationError

from grpo_cl.cli import main
from grpo_cl.config import AnswererConfig, JudgeConfig, ModelsConfig, UserConfig, hosted_model_name
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import episode_config
from grpo_cl.llm import GenerationParams, ModelPool


@pytest.mark.parametrize(
    ("name", "full_name"),
    [
        ("gpt-4o", "openai/gpt-4o"),
        ("gpt-4.1-mini-2025-04-14", "openai/gpt-4.1-mini-2025-04-14"),
        ("o3-mini", "openai/o3-mini"),
        ("o1", "openai/o1"),
        ("claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"),
        ("gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("deepseek-chat", "deepseek/deepseek-chat"),
        ("mistral-large-latest", "mistral/mistral-large-latest"),
        ("openai-api/local/gpt-oss-20b", "openai-api/local/gpt-oss-20b"),
        ("mockllm/model", "mockllm/model"),
    ],
)
def test_known_name_gets_its_provider_in_every_role(name: str, full_name: str) -> None:
    assert hosted_model_name(name) == full_name
    assert {role(model=name).model for role in (UserConfig, JudgeConfig, AnswererConfig)} == {
        full_name
    }
    assert list(ModelsConfig(prices={name: (1, 2)}).prices) == [full_name]
    assert episode_config({"user_model": name}).user.model == full_name


@pytest.mark.parametrize("name", ["gpt-oss-20b", "llama", "Qwen2.5-72B", "o", "policy"])
def test_other_name_without_a_provider_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name!r} names no provider; write PROVIDER/MODEL"):
        hosted_model_name(name)
    with pytest.raises(ValidationError, match="PROVIDER/MODEL"):
        JudgeConfig(model=name)
    with ModelPool(ModelsConfig(cache_dir=None)) as models, pytest.raises(ConfigError):
        models.open(name, GenerationParams(0.0, 8))


def test_user_may_be_the_policy() -> None:
    assert [UserConfig(model=name).model for name in ("policy", "frozen")] == ["policy", "frozen"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", __file__, "--judge", "my-model"],
        ["evaluate", "--model_name_or_path", "tabular", "--model", "my-model"],
        ["train", "--rollout.user", "llm", "--user.model", "my-model"],
    ],
)
def test_commands_refuse_a_name_without_a_provider_in_one_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert "'my-model' names no provider" in message
    assert message.count("\n") == 1
