from pathlib import Path

import pytest
from pydantic import ValidationError

from grpo_cl.config import TINY, GRPOConfig, RewardConfig, RolloutConfig
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


def test_the_embedded_policy_has_defaults_of_its_own() -> None:
    config, plain = GRPOConfig(model_name_or_path="tiny"), GRPOConfig()
    found = config.model_dump()
    for name, value in TINY.items():
        wanted = value if isinstance(value, dict) else {name: value}
        section = found[name] if isinstance(value, dict) else found
        assert {key: section[key] for key in wanted} == wanted
    assert config.loss == plain.loss
    assert plain.rollout.prompt == "full"


@pytest.mark.parametrize("rollout", [{"max_turns": 5}, RolloutConfig(max_turns=5)])
def test_what_is_set_explicitly_wins_over_the_embedded_policys_defaults(
    rollout: dict[str, int] | RolloutConfig,
) -> None:
    settings = {"learning_rate": 1e-5, "kl_coef": 0.5, "rollout": rollout}
    config = GRPOConfig.model_validate({"model_name_or_path": "tiny", **settings})
    assert (config.learning_rate, config.kl_coef) == (1e-5, 0.5)
    assert config.rollout.max_turns == 5
    assert config.rollout.prompt == TINY["rollout"]["prompt"]
    assert config.temperature == TINY["temperature"]


def test_a_default_of_others_can_be_given_to_the_embedded_policy_too() -> None:
    rollout = RolloutConfig(prompt="full")
    assert GRPOConfig(model_name_or_path="tiny", rollout=rollout).rollout.prompt == "full"


def test_a_config_survives_its_json() -> None:
    config = GRPOConfig(reward=RewardConfig(shaping="weighted", weights={"DB": 2.0}))  # type: ignore[dict-item]
    assert GRPOConfig.model_validate_json(config.model_dump_json()) == config
    tiny = GRPOConfig(model_name_or_path="tiny", kl_coef=0.5)
    assert GRPOConfig.model_validate_json(tiny.model_dump_json()) == tiny


def test_a_lookup_says_what_exists_and_what_was_probably_meant() -> None:
    with pytest.raises(ConfigError, match=r"known: apple, pear\. Did you mean 'apple'"):
        pick({"apple": 1, "pear": 2}, "aple", "fruit")


def test_installed_packages_add_to_a_table_and_never_replace_its_entries() -> None:
    assert with_plugins({"main": len}, "console_scripts")["main"] is len
    assert "grpo-cl" in with_plugins({}, "console_scripts")
