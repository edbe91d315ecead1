"""Runs of the tabular policy in the toy domains: a real trainer, less than a second each."""

from pathlib import Path
from typing import Any

from grpo_cl.config import GRPOConfig
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer

LORA = {"r": 4, "alpha": 8}
"""A rank that is enough for every choice of an option, for algorithms that train adapters."""


def toy_config(log_dir: Path, **changes: Any) -> GRPOConfig:
    """Two domains, every signal in every step; every setting can differ.

    With these settings all of eight seeds learn both domains and forget the first: the penalty on
    moving away from the uniform policy keeps a chance of finding the next domain's option.
    """
    settings: dict[str, Any] = {
        "model_name_or_path": "tabular",
        "model_dtype": "float32",
        "temperature": 1.0,
        "max_new_tokens": 1,
        "num_samples_per_prompt": 8,
        "kl_coef": 0.2,
        "batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "num_steps_per_task": 16,
        "learning_rate": 0.1,
        "replay_buffer_size": 128,
        "task_order": ("toy_left", "toy_right"),
        "log_dir": log_dir,
        "evaluation": {"trials": 8},
        "logging": {"trackers": (), "save_interval": 1000},
    }
    return GRPOConfig.model_validate(settings | changes)


def toy_run(log_dir: Path, **changes: Any) -> GRPOTrainer:
    """Train, and return the trainer."""
    trainer = GRPOTrainer(toy_config(log_dir, **changes))
    trainer.train()
    return trainer


def scores(log_dir: Path) -> list[list[float]]:
    """The R-matrix: first the untrained policy, then a row per stage."""
    matrix = RMatrix.load(RunDir(log_dir).r_matrix).scores()
    return [[cell for cell in row if cell is not None] for row in matrix]
