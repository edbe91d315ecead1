"""The smallest complete run: a randomly initialized Llama, two domains, two steps each.

``python small_runs.py POLICY LOG_DIR [resume] [JSON]`` runs it in a process of its own.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

from grpo_cl.algorithms import CLAlgorithm
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.learner.sft_data import DemonstrationSpec, generate_examples
from grpo_cl.policy.model.tiny_model import DEFAULT, Size, create_tiny_model
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import TrajectoryGroup


class HighTokenIdRewards(CLAlgorithm):
    """Rewards high token ids, so that a policy that solves no task gets non-zero advantages."""

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        del current_domain
        return [
            group.model_copy(update={"training_rewards": token_id_rewards(group)})
            for group in groups
        ]


def token_id_rewards(group: TrajectoryGroup) -> tuple[float, ...]:
    traces = [trajectory.tokens for trajectory in group.trajectories]
    return tuple(sum(trace.ids[-8:]) / 10_000 if trace else 0.0 for trace in traces)


def make_policy(folder: Path, size: Size = DEFAULT) -> Path:
    spec = DemonstrationSpec("telecom", 0, 30, 0.0, is_compact=True)
    create_tiny_model(generate_examples(spec), folder, seed=0, size=size)
    return folder


def small_config(policy: Path, log_dir: Path, **changes: object) -> GRPOConfig:
    settings = {
        "model_name_or_path": str(policy),
        "model_dtype": "float32",
        "temperature": 1.0,
        "max_new_tokens": 8,
        "num_samples_per_prompt": 3,
        "kl_coef": 0.05,
        "batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "num_steps_per_task": 2,
        "learning_rate": 1e-3,
        "task_order": ("mock", "telecom"),
        "log_dir": log_dir,
        "tau2_data_dir": None,
        "rollout": {"user": "solo", "prompt": "compact", "max_turns": 2},
        "sampling": {"max_context": 512, "dialect": "compact", "slots": 8},
        "evaluation": {"max_tasks": 2},
        "logging": {"trackers": (), "save_interval": 1},
    }
    return GRPOConfig.model_validate(settings | changes)


def small_trainer(config: GRPOConfig) -> GRPOTrainer:
    trainer = GRPOTrainer(config)
    trainer.cl_algorithm = HighTokenIdRewards()
    return trainer


if __name__ == "__main__":
    resume = {"resume_from": sys.argv[2]} if "resume" in sys.argv else {}
    changes = json.loads(sys.argv[-1]) if sys.argv[-1].startswith("{") else {}
    small_trainer(small_config(Path(sys.argv[1]), Path(sys.argv[2]), **resume, **changes)).train()
