"""First stages that are trained once and continued by several runs.

A run that starts from a shared first stage equals, bit for bit, one that trained it itself.
"""

from pathlib import Path

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError
from grpo_cl.runs.checkpoint_state import read_checkpoint_state
from grpo_cl.runs.damage import damaged_journals, require_journals, with_accepted
from grpo_cl.runs.layout import CheckpointFiles, RunDir
from grpo_cl.runs.resume import resume_point
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.fork import forked_state, write_fork
from grpo_cl.trainer.run_log import Position


def train_first_stage(config: GRPOConfig) -> None:
    """Evaluate the untrained policy and train the first stage, up to its ``post_task_hook``."""
    GRPOTrainer(config).train(until=Position(stage=0, step=config.num_steps_per_task))


def start_from_stage(stage_dir: Path, config: GRPOConfig) -> None:
    """Write the run directory of ``config`` from a shared first stage, atomically."""
    files = _last_checkpoint(stage_dir, config)
    run = RunDir(stage_dir)
    state = with_accepted(run, read_checkpoint_state(files))
    require_journals(run, damaged_journals(run, state))
    write_fork(run, files, forked_state(state, files, config), config)


def _last_checkpoint(stage_dir: Path, config: GRPOConfig) -> CheckpointFiles:
    point = resume_point(stage_dir)
    steps = config.num_steps_per_task
    if point.checkpoint is not None and not point.damaged:
        state = read_checkpoint_state(point.checkpoint)
        if state["position"] == {"stage": 0, "step": steps}:
            return point.checkpoint
    problem = point.damaged[0].problem if point.damaged else f"it has no checkpoint of step {steps}"
    raise CheckpointError(
        f"the shared first stage {stage_dir} cannot be resumed: {problem}; delete that directory "
        "and its file in outcomes/ to train it again"
    )
