from pathlib import Path

import pytest
from pydantic import ValidationError

from grpo_cl.config import GRPOConfig, RewardConfig
from grpo_cl.errors import ConfigError
from grpo_cl.registry import pick, with_plugins


def test_defaults_name_the_three_domains_and_the_test_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRPO_CL_TAU2_DATA_DIR", raising=False)
    config = GRPOConfig()
    assert config.task_order == ("airline", "retail", "telecom")
    assert config.tasks.eval_split == "test"
    assert config.tau2_data_dir is None
    assert config.reward.shaping is None


def test_the_environment_may_name_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_CL_TAU2_DATA_DIR", "somewhere")
    assert GRPOConfig().tau2_data_dir == Path("somewhere")


@pytest.mark.parametrize(
    "fields",
    [
        {"task_order": ()},
        {"task_order": ("airline", "airline")},
        {"train_split": 1.0},
        {"max_tasks_per_domain": 0},
        {"tasks": {"strategy": "best"}},
        {"rollout": {"max_turns": 0}},
        {"reward": {"weights": {"DB": 1.0}}},
        {"reward": {"shaping": "weighted"}},
        {"unknown": 1},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GRPOConfig.model_validate(fields)


def test_a_config_survives_its_json() -> None:
    config = GRPOConfig(reward=RewardConfig(shaping="weighted", weights={"DB": 2.0}))  # type: ignore[dict-item]
    assert GRPOConfig.model_validate_json(config.model_dump_json()) == config


def test_a_lookup_says_what_exists_and_what_was_probably_meant() -> None:
    with pytest.raises(ConfigError, match=r"known: apple, pear\. Did you mean 'apple'"):
        pick({"apple": 1, "pear": 2}, "aple", "fruit")


def test_installed_packages_add_to_a_table_and_never_replace_its_entries() -> None:
    assert with_plugins({"main": len}, "console_scripts")["main"] is len
    assert "grpo-cl" in with_plugins({}, "console_scripts")
