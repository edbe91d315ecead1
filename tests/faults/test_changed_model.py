"""A run whose initial model is another one at the resume is refused, and nothing changes."""

from pathlib import Path

import pytest
import torch

from grpo_cl.errors import CheckpointError
from grpo_cl.trainer import GRPOTrainer
from tiny_policies import load
from toy_resume import SAVING
from toy_runs import LORA, toy_config, toy_run


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("lora", [{}, LORA])
def test_flipped_bit_of_the_initial_model_is_refused_at_the_resume(
    tmp_path: Path, lora: dict[str, int]
) -> None:
    short = {"num_steps_per_task": 1, "evaluation": {"trials": 1}, "logging": SAVING}
    toy_run(tmp_path / "source", **short)
    model = tmp_path / "source" / "checkpoint_task_0" / "model"
    config = toy_config(
        tmp_path / "run", **short, model_name_or_path=str(model), **({"lora": lora} if lora else {})
    )
    GRPOTrainer(config).train()
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.unlink()  # stages share files by links
    weights.write_bytes(content)
    (model.parent / "MANIFEST.json").unlink()  # else the stage itself is refused
    before = contents(config.log_dir)
    first = min((config.log_dir / "checkpoints").iterdir())
    with pytest.raises(CheckpointError, match="other weights than when the run began"):
        GRPOTrainer(config.model_copy(update={"resume_from": first})).train()
    assert contents(config.log_dir) == before


def test_checksum_of_a_model_depends_on_every_bit_of_its_weights() -> None:
    policy = load("tabular")
    before = policy.file_checksum()
    for weight in policy.module.state_dict().values():
        bits = weight.view(-1)[:1].view(torch.int32)
        bits ^= 1
        assert policy.file_checksum() != before
        bits ^= 1
    assert policy.file_checksum() == before
