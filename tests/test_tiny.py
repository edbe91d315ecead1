"""The embedded policy, as it is shipped."""

import subprocess
import tomllib
from pathlib import Path

import pytest
import torch

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.compact import CompactChat
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.tiny_model import Size, new_tiny
from grpo_cl.trainer import GRPOTrainer

ROOT = Path(__file__).parent.parent
TINY = ROOT / "src" / "grpo_cl" / "policy" / "tiny"
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    config = GRPOConfig(model_name_or_path="tiny")
    return PolicyModel.load(config, device=torch.device("cpu"))


def test_it_is_small_and_holds_no_code() -> None:
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10 * MEGABYTE
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".md"}
    assert [path.name for path in files if path.stat().st_size > MEGABYTE] == ["model.safetensors"]


def test_it_loads_by_its_name(policy: PolicyModel) -> None:
    assert 1e6 <= policy.num_parameters <= 5e6
    assert next(policy.module.parameters()).dtype == torch.float32
    assert isinstance(policy.chat, CompactChat)
    assert policy.context == 1536


def test_a_saved_copy_is_the_same_policy(policy: PolicyModel, tmp_path: Path) -> None:
    policy.save(tmp_path / "copy")
    config = GRPOConfig(model_name_or_path=str(tmp_path / "copy"), model_dtype="float32")
    copy = PolicyModel.load(config, device=torch.device("cpu"))
    assert copy.fingerprint() == policy.fingerprint()


@pytest.mark.slow
def test_it_solves_some_test_tasks_and_not_most(tmp_path: Path) -> None:
    config = GRPOConfig(
        model_name_or_path="tiny",
        task_order=("airline", "retail", "telecom"),
        evaluation={"generated": 12, "trials": 1},  # type: ignore[arg-type]
        log_dir=tmp_path,
    )
    trainer = GRPOTrainer(config)
    scores = [trainer.evaluate_task(domain).mean for domain in config.task_order]
    assert 0.05 < sum(scores) / len(scores) < 0.7


def test_it_is_part_of_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = ["src/grpo_cl", "src/grpo_cl_verifiers"]
    assert build == {"targets": {"wheel": {"packages": packages}}}  # and nothing left out
    # Beyond that hatchling leaves out what git ignores.
    command = ["git", "-C", str(ROOT), "check-ignore", *map(str, TINY.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_a_width_that_gives_no_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="multiple of 64"):
        new_tiny([], tmp_path, seed=0, size=Size(width=32, layers=1))
