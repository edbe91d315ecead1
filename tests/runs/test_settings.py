import json
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli.options import fields
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.settings import MAY_CHANGE, changes_between, read_settings, settings_in_force

OWN: dict[str, Any] = {
    "model_name_or_path": "tabular",
    "learning_rate": 0.1,
    "task_order": ("toy_left", "toy_right"),
    "num_steps_per_task": 4,
    "cl_options": {"strength": 1.0},
}


def begin(root: Path, **changes: Any) -> RunDir:
    run = RunDir(root)
    run.write_config(GRPOConfig.model_validate(OWN | {"log_dir": root} | changes))
    return run


def resumed(run: RunDir, **given: Any) -> GRPOConfig:
    return settings_in_force(GRPOConfig.model_validate({"resume_from": run.root, **given}), run)


def test_a_resumed_run_has_its_own_settings(tmp_path: Path) -> None:
    run = begin(tmp_path, seed=7, rollout={"prompt": "compact"})
    config = resumed(run)
    own = read_settings(run.config)
    assert config == own.model_copy(update={"resume_from": tmp_path})
    assert (config.seed, config.rollout.prompt, config.learning_rate) == (7, "compact", 0.1)


def test_settings_that_are_given_again_are_no_change(tmp_path: Path) -> None:
    run = begin(tmp_path)
    again = {**OWN, "log_dir": tmp_path}
    assert resumed(run, **again) == resumed(run)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"learning_rate": 5.0}, "learning_rate is 0.1 in the run .* and 5.0 was given"),
        ({"seed": 3}, "seed is 0 in the run .* and 3 was given"),
        ({"cl_algorithm": "ewc"}, "cl_algorithm is 'sequential' in the run .* and 'ewc'"),
        ({"cl_options": {"strength": 2}}, r"cl_options.strength is 1.0 .* and 2"),
        ({"evaluation": {"max_tasks": 3}}, "evaluation.max_tasks is None .* and 3 was given"),
        ({"num_steps_per_task": 2}, "num_steps_per_task is 4 .* and it may only grow"),
        ({"task_order": ("toy_right", "toy_left")}, "task_order is .* further domains at its end"),
        ({"task_order": ("toy_left",)}, "task_order is .* further domains at its end"),
    ],
)
def test_other_settings_are_refused_with_both_values(
    given: dict[str, Any], values: str, tmp_path: Path
) -> None:
    run = begin(tmp_path)
    with pytest.raises(ConfigError, match=f"{values}.*; leave it out, or .* with --fork DIR"):
        resumed(run, **given)


def test_settings_that_do_not_affect_results_may_change(tmp_path: Path) -> None:
    run = begin(tmp_path)
    given = {
        "num_steps_per_task": 6,
        "task_order": ("toy_left", "toy_right", "toy_up"),
        "logging": {"trackers": (), "keep_checkpoints": 5},
        "models": {"budget_tokens": 10, "prices": {"mockllm/model.x": (0, 1)}},
        "user": {"base_url": "http://127.0.0.1:1"},
        "sharding": "fsdp",
    }
    config = resumed(run, **given)
    changes = changes_between(read_settings(run.config), config)
    assert {change.name: change.after for change in changes} == {
        "num_steps_per_task": 6,
        "task_order": ["toy_left", "toy_right", "toy_up"],
        "logging.trackers": [],
        "logging.keep_checkpoints": 5,
        "models.budget_tokens": 10,
        "models.prices.mockllm/model.x": [0.0, 1.0],
        "user.base_url": "http://127.0.0.1:1",
        "sharding": "fsdp",
    }
    assert config.learning_rate == 0.1


def test_every_setting_that_may_change_exists() -> None:
    assert MAY_CHANGE.keys() <= {name for name, _ in fields()}


def test_defaults_of_the_embedded_policy_are_not_taken_for_given_settings(tmp_path: Path) -> None:
    run = begin(tmp_path, model_name_or_path="tiny", rollout={"max_turns": 3})
    config = resumed(run, model_name_or_path="tiny")
    assert (config.num_steps_per_task, config.rollout.max_turns) == (4, 3)
    assert config.rollout.prompt == "compact"
    with pytest.raises(ConfigError, match=r"rollout\.max_turns is 3 .* and 16 was given"):
        resumed(run, model_name_or_path="tiny", rollout={"max_turns": 16})


def test_a_redacted_setting_is_compared_without_its_secret_and_must_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "letmein-123")
    judge = {"model": "mockllm/model", "base_url": "http://me:hidden@host/v1"}
    run = begin(tmp_path, judge=judge, wandb_project="letmein-123")
    with pytest.raises(ConfigError, match=r"wandb_project has a secret .*--wandb_project") as info:
        resumed(run)
    assert "letmein" not in str(info.value)
    config = resumed(run, judge=judge, wandb_project="letmein-123")
    assert config.judge.base_url == "http://me:hidden@host/v1"
    assert changes_between(read_settings(run.config), config) == []
    with pytest.raises(ConfigError, match=r"judge\.model is 'mockllm/model'") as info:
        resumed(run, judge={**judge, "model": "mockllm/letmein-123"}, wandb_project="letmein-123")
    assert "letmein" not in str(info.value)


def test_settings_that_an_older_run_does_not_have_take_their_defaults(tmp_path: Path) -> None:
    run = begin(tmp_path)
    stored = json.loads(run.config.read_text())
    del stored["fork"], stored["logging"]["keep_stage_ends"], stored["evaluation"]["drift"]
    run.config.write_text(json.dumps(stored))
    assert resumed(run, evaluation={"drift": False}).logging.keep_stage_ends


def test_settings_of_another_version_are_refused_in_a_sentence(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.config.write_text(json.dumps({"learning_speed": 1}))
    with pytest.raises(ConfigError, match=r"not a configuration of this version .learning_speed"):
        resumed(run)
    run.config.unlink()
    with pytest.raises(ConfigError, match=r"has no config\.json.* a copy is in every checkpoint"):
        resumed(run)


def test_a_run_that_was_moved_goes_on_where_it_is(tmp_path: Path) -> None:
    run = begin(tmp_path / "old", log_dir=tmp_path / "old")
    run.root.rename(tmp_path / "new")
    run = RunDir(tmp_path / "new")
    assert resumed(run).log_dir == tmp_path / "new"
    assert resumed(run, log_dir=tmp_path / "old").log_dir == tmp_path / "new"
    with pytest.raises(ConfigError, match=r"log_dir is '.*other', but .* --fork .*other"):
        resumed(run, log_dir=tmp_path / "other")


def test_a_fork_may_change_every_setting(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    config = resumed(run, fork=tmp_path / "fork", learning_rate=5.0, cl_algorithm="ewc")
    assert (config.learning_rate, config.cl_algorithm) == (5.0, "ewc")
    assert config.num_steps_per_task == 4
    assert config.log_dir == tmp_path / "fork"
    with pytest.raises(ValueError, match="name it with resume_from"):
        GRPOConfig(fork=tmp_path)
