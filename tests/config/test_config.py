from pathlib import Path

import pytest
from pydantic import ValidationError

from grpo_cl.config import TINY, GRPOConfig, RewardConfig, RolloutConfig, deep_update
from grpo_cl.errors import ConfigError
from grpo_cl.registry import pick, with_plugins


def test_defaults_are_three_domains_and_the_test_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRPO_CL_TAU2_DATA_DIR", raising=False)
    config = GRPOConfig()
    assert config.task_order == ("airline", "retail", "telecom")
    assert config.tasks.eval_split == "test"
    assert config.tau2_data_dir is None
    assert config.reward.shaping is None


def test_data_directory_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_invalid_config_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GRPOConfig.model_validate(fields)


def test_the_embedded_policy_has_its_own_defaults() -> None:
    config, plain = GRPOConfig(model_name_or_path="tiny"), GRPOConfig()
    dumped = config.model_dump()
    for name, value in TINY.items():
        expected = value if isinstance(value, dict) else {name: value}
        section = dumped[name] if isinstance(value, dict) else dumped
        assert {key: section[key] for key in expected} == expected
    assert config.loss == plain.loss
    assert plain.rollout.prompt == "full"


@pytest.mark.parametrize("rollout", [{"max_turns": 5}, RolloutConfig(max_turns=5)])
def test_explicit_settings_override_the_defaults_of_the_embedded_policy(
    rollout: dict[str, int] | RolloutConfig,
) -> None:
    settings = {"learning_rate": 1e-5, "kl_coef": 0.5, "rollout": rollout}
    config = GRPOConfig.model_validate({"model_name_or_path": "tiny", **settings})
    assert (config.learning_rate, config.kl_coef) == (1e-5, 0.5)
    assert config.rollout.max_turns == 5
    assert config.rollout.prompt == TINY["rollout"]["prompt"]
    assert config.temperature == TINY["temperature"]


def test_a_general_default_can_be_set_explicitly_for_the_embedded_policy() -> None:
    rollout = RolloutConfig(prompt="full")
    assert GRPOConfig(model_name_or_path="tiny", rollout=rollout).rollout.prompt == "full"


def test_config_is_unchanged_by_a_json_round_trip() -> None:
    config = GRPOConfig(reward=RewardConfig(shaping="weighted", weights={"DB": 2.0}))  # type: ignore[dict-item]
    assert GRPOConfig.model_validate_json(config.model_dump_json()) == config
    tiny = GRPOConfig(model_name_or_path="tiny", kl_coef=0.5)
    assert GRPOConfig.model_validate_json(tiny.model_dump_json()) == tiny


def test_a_failed_lookup_lists_known_names_and_the_closest_match() -> None:
    with pytest.raises(ConfigError, match=r"known: apple, pear\. Did you mean 'apple'"):
        pick({"apple": 1, "pear": 2}, "aple", "fruit")


def test_plugins_extend_a_table_and_never_replace_its_entries() -> None:
    assert with_plugins({"main": len}, "console_scripts")["main"] is len
    assert "grpo-cl" in with_plugins({}, "console_scripts")


def test_deep_update_merges_dicts_and_replaces_lists_and_scalars() -> None:
    base = {"a": {"x": 1, "y": [1]}, "b": 2}
    assert deep_update(base, {"a": {"y": [2]}, "b": {"z": 3}}) == {
        "a": {"x": 1, "y": [2]},
        "b": {"z": 3},
    }
    assert base == {"a": {"x": 1, "y": [1]}, "b": 2}
