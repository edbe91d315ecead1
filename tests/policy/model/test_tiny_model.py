"""The embedded policy of the package."""

import subprocess
import tomllib
from pathlib import Path
from statistics import fmean

import pytest
import torch

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.compact import CompactChat
from grpo_cl.policy.learner.sft_data import DemonstrationSpec, generate_examples
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.tiny_model import Size, create_tiny_model
from grpo_cl.trainer import GRPOTrainer
from paths import ROOT

TINY = ROOT / "src" / "grpo_cl" / "policy" / "tiny"
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    config = GRPOConfig(model_name_or_path="tiny")
    return PolicyModel.load(config, device=torch.device("cpu"))


def test_embedded_policy_is_small_and_has_no_code() -> None:
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10 * MEGABYTE
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".md"}
    assert [path.name for path in files if path.stat().st_size > MEGABYTE] == ["model.safetensors"]


def test_embedded_policy_loads_by_name(policy: PolicyModel) -> None:
    assert 1e6 <= policy.num_parameters <= 5e6
    assert next(policy.module.parameters()).dtype == torch.float32
    assert isinstance(policy.chat, CompactChat)
    assert policy.context == 3072


def test_saved_copy_has_the_same_weights(policy: PolicyModel, tmp_path: Path) -> None:
    policy.save(tmp_path / "copy")
    config = GRPOConfig(model_name_or_path=str(tmp_path / "copy"), model_dtype="float32")
    copy = PolicyModel.load(config, device=torch.device("cpu"))
    assert copy.fingerprint() == policy.fingerprint()


@pytest.mark.slow
def test_embedded_policy_solves_most_test_tasks_greedily_and_fewer_sampled(tmp_path: Path) -> None:
    def mean_score(trials: int) -> float:
        config = GRPOConfig(
            model_name_or_path="tiny",
            task_order=("airline", "retail", "telecom"),
            evaluation={"generated": 12, "trials": trials},  # type: ignore[arg-type]
            log_dir=tmp_path,
        )
        trainer = GRPOTrainer(config)
        return fmean(trainer.evaluate_task(domain).mean for domain in config.task_order)

    greedy, sampled = mean_score(trials=1), mean_score(trials=2)
    assert greedy > 0.5
    assert 0.2 < sampled < greedy - 0.1  # the room that rewards have


def test_embedded_policy_is_in_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = ["src/grpo_cl", "src/grpo_cl_verifiers"]
    assert build == {"targets": {"wheel": {"packages": packages}}}  # without exclusions
    # hatchling also excludes files that git ignores.
    command = ["git", "-C", str(ROOT), "check-ignore", *map(str, TINY.iterdir())]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.stdout == ""


def test_a_new_policy_is_within_its_size_and_computes_packed_rows(tmp_path: Path) -> None:
    spec = DemonstrationSpec("telecom", 1, 20, 0.0, is_compact=True)
    create_tiny_model(generate_examples(spec), tmp_path, seed=0)
    config = GRPOConfig(model_name_or_path=str(tmp_path), model_dtype="float32", kl_coef=0.0)
    new = PolicyModel.load(config, device=torch.device("cpu"))
    assert new.num_parameters <= 6e6
    assert 2 * new.num_parameters <= 12 * MEGABYTE  # in bfloat16
    assert new._active._has_separate_head
    assert new._active._can_pack


def test_width_that_is_no_multiple_of_the_heads_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="multiple of 32"):
        create_tiny_model([], tmp_path, seed=0, size=Size(width=48, layers=1))
