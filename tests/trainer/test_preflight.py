"""Settings with which nothing can be learned or measured are refused before work begins."""

import logging
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.policy_model import PolicyModel, PromptFormat
from grpo_cl.rollout import known_opening
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.preflight import check_prompts, check_training, warn_of_limits
from grpo_cl.types import EvaluationCriteria, RewardType
from toy_runs import toy_config

TOY = "--model_name_or_path tabular --task_order toy_left toy_right --max_new_tokens 1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature=0 makes all episodes of a group equal"),
        ({"rollout": {"user": "llm"}}, "rollout.user='llm' is driven by a model"),
        ({"train_split": 0.5}, "train_split=0.5 has no effect, .* toy_left, toy_right; leave"),
        ({"tasks": {"own": False}}, "'toy_left' has no training tasks"),
        ({"tasks": {"eval_split": "dev"}}, "no split 'dev'; known: base, test, train"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = toy_config(tmp_path / "run", **changes)
    with pytest.raises(ConfigError, match=message):
        check_training(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        ({"logging": {"trackers": ("wandb",)}}, "remove it from logging.trackers"),
        ({"wandb_project": "mine"}, "leave wandb_project out"),
    ],
)
def test_a_tracker_without_its_package_is_refused_with_the_command(
    tmp_path: Path, changes: dict[str, Any], way_out: str
) -> None:
    with pytest.raises(ConfigError, match=f"run `pip install wandb`, or {way_out}"):
        check_training(toy_config(tmp_path, **changes))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("--temperature 0", "temperature=0"),
        ("--cl_algorithm repla", "unknown algorithm 'repla'"),
        ("--model_name_or_path /nowhere/x", "no model at '/nowhere/x'"),
        ("--task_order toy_leftt", "unknown domain 'toy_leftt'"),
        ("--rollout.user scriptd", "unknown user strategy 'scriptd'"),
        ("--log_dir taken", "'taken'"),
        ("--sampling.engine vllm", "pip install 'grpo-cl[vllm]'"),
    ],
)
def test_a_refusal_comes_before_torch_is_imported(
    tmp_path: Path, setting: str, message: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "metrics.jsonl").touch()
    program = (
        "import sys; from grpo_cl.cli import main; "
        f"status = main('train {TOY} --log_dir run {setting}'.split()); "
        "sys.exit(status if 'torch' not in sys.modules else 99)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_temperature_zero_is_refused_by_train_and_accepted_by_evaluate(tmp_path: Path) -> None:
    trainer = GRPOTrainer(toy_config(tmp_path / "run", temperature=0.0))
    assert trainer.evaluate_task("toy_left").num_episodes == 64
    with pytest.raises(ConfigError, match="temperature=0"):
        trainer.train()
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_is_not_refused_for_what_was_accepted_before(tmp_path: Path) -> None:
    new, resumed = (
        toy_config(tmp_path, temperature=0.0, resume_from=source) for source in (None, tmp_path)
    )
    with pytest.raises(ConfigError, match="temperature=0"):
        check_training(new)
    assert check_training(resumed) is None


def test_a_domain_appended_to_a_resumed_run_must_have_training_tasks(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"resume_from": tmp_path, "tasks": {"own": False, "generated": 8}}
    with pytest.raises(ConfigError, match="'mock' has no training tasks"):
        check_training(toy_config(tmp_path, task_order=("toy_left", "mock"), **settings))


def test_a_context_that_holds_no_prompt_is_refused_by_train_and_evaluate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{TOY} --sampling.max_context 1 --log_dir {tmp_path}/run".split()
    for command in ("train", "evaluate"):
        assert main([command, *words]) == 2
        assert "no prompt of toy_left fits: the shortest of 8 has 1 tokens, and " in (
            message := capsys.readouterr().err
        )
        assert "sampling.max_context=1 must hold 1 more for a reply" in message
    assert not (tmp_path / "run").exists()


def tiny_loader(**changes: Any) -> TaskDataLoader:
    settings = {
        "model_name_or_path": "tiny",
        "task_order": ("airline",),
        "tau2_data_dir": None,
        "tasks": {"generated": 12},
        **changes,
    }
    return TaskDataLoader(GRPOConfig.model_validate(settings))


def test_prompts_are_counted_with_the_tokenizer_and_some_too_long_ones_are_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = tiny_loader()
    chat = PromptFormat.load(loader.config).chat
    tasks = loader.train_tasks("airline")
    lengths = sorted(_prompt_length(chat, loader, task) for task in tasks)
    assert lengths[0] < lengths[-1]
    check_prompts(tasks, chat, lengths[-1] + 8, loader)
    assert not caplog.records
    check_prompts(tasks, chat, lengths[-1] + 7, loader)
    num_long = lengths.count(lengths[-1])
    assert f"airline: {num_long} of 12 prompts have up to {lengths[-1]} tokens" in caplog.text
    with pytest.raises(ConfigError, match=f"shortest of 12 has {lengths[0]} tokens"):
        check_prompts(tasks, chat, lengths[0] + 7, loader)


def _prompt_length(chat: Any, loader: TaskDataLoader, task: Any) -> int:
    return len(chat.opening(*known_opening(loader.domains["airline"], task, loader.config.rollout)))


def test_a_full_prompt_does_not_fit_the_embedded_policy() -> None:
    config = tiny_loader(
        rollout={"prompt": "full"}, evaluation={"generated": 2}, sampling={"max_context": 1024}
    ).config
    with pytest.raises(
        ConfigError, match=r"no prompt of airline fits.*set rollout\.prompt=compact"
    ):
        GRPOTrainer(config)


@pytest.mark.parametrize("name", ["tiny", "tabular"])
def test_the_prompt_format_without_weights_is_that_of_the_model(name: str) -> None:
    config = GRPOConfig(model_name_or_path=name, model_dtype="float32", kl_coef=0.0)
    loaded, model = PromptFormat.load(config), PolicyModel.load(config)
    assert loaded.context == model.context
    assert type(loaded.chat) is type(model.chat)


def test_limits_that_work_otherwise_than_their_names_say_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = toy_config(
        tmp_path, max_tasks_per_domain=2, max_new_tokens=4, sampling={"max_context": 4}
    )
    warn_of_limits(config, TaskDataLoader(config))
    assert "max_new_tokens=4 is not below sampling.max_context=4" in caplog.text
    assert "max_tasks_per_domain=2 limits training tasks; every evaluation plays 16" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        config = toy_config(tmp_path, max_tasks_per_domain=2, evaluation={"max_tasks": 2})
        warn_of_limits(config, TaskDataLoader(config))
    assert not caplog.records


def test_a_judge_that_no_task_needs_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = toy_config(tmp_path, judge={"model": "mockllm/model"})
    warn_of_limits(config, TaskDataLoader(config))
    assert "judge.model='mockllm/model' is never called: the reward of no task" in caplog.text
    caplog.clear()
    loader = TaskDataLoader(config)
    tasks = loader.train_tasks("toy_left")
    basis = (RewardType.DB, RewardType.NL_ASSERTION)
    criteria = EvaluationCriteria(nl_assertions=("It is polite.",), reward_basis=basis)
    tasks[0] = tasks[0].model_copy(update={"evaluation_criteria": criteria})
    warn_of_limits(config, loader)
    assert not caplog.records
