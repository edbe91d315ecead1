"""An example run to edit: ``python configs/grpo_example.py``.

It trains the embedded policy on two domains, in about a minute on one CPU core. With
several processes: ``torchrun --nproc_per_node=2 configs/grpo_example.py``. Every setting, with its
meaning and default: ``grpo-cl train --help``.
"""

from pathlib import Path
from typing import Any

from grpo_cl import GRPOConfig, GRPOTrainer
from grpo_cl.config import (
    EvaluationConfig,
    LoggingConfig,
    LoraConfig,
    LossConfig,
    OptimizerConfig,
    RewardConfig,
    RolloutConfig,
    TasksConfig,
)
from grpo_cl.report import write_report

config = GRPOConfig(
    # -- The policy: "tiny" comes with the package; a Hugging Face id, a local folder or a GGUF file
    # work too. "tiny" has its own defaults; with another model, set the values below.
    model_name_or_path="tiny",
    # model_dtype="bfloat16", gradient_checkpointing=True, flash_attention=True   # on a GPU
    # sharding="fsdp",                 # with torchrun, for a model too large for one device
    lora=LoraConfig(r=0),  # r=16 trains adapters instead of all weights
    # -- The domains, in training order. Others: telecom, telecom-workflow, banking_knowledge,
    # mock, and the toy domains toy_left, toy_right, toy_up, toy_down for "tabular".
    task_order=("airline", "retail"),
    tasks=TasksConfig(
        own=False,  # τ²-bench's own training tasks: 30 to 74 in a domain
        generated=100,  # verified tasks of the domain's generator
        difficulty=0.0,  # 0 to 1; None samples all difficulties
    ),
    # -- The continual-learning algorithm: sequential, replay, ewc, ... (docs/algorithms.md).
    cl_algorithm="replay",
    cl_options={"mode": "displacing"},
    replay_ratio=0.25,  # fraction of a step's tasks from earlier domains
    # -- Episodes: tasks per step, episodes per task (group size), and sampling.
    batch_size_per_gpu=4,
    gradient_accumulation_steps=1,
    num_samples_per_prompt=6,
    temperature=1.0,
    max_new_tokens=128,
    rollout=RolloutConfig(user="solo", max_turns=16),  # user="scripted" adds a user
    reward=RewardConfig(basis="tau2"),  # shaping="progress" rewards partial progress
    # -- The update. Formulas in docs/grpo.md.
    num_steps_per_task=4,
    learning_rate=3e-4,  # for a large model 1e-6, with adapters 1e-5
    kl_coef=0.0,  # above 0: KL penalty to the initial policy
    loss=LossConfig(
        kind="dapo",  # grpo, dr_grpo, gspo, cispo
        zero_variance="skip",  # "resample" samples other tasks instead
    ),
    optimizer=OptimizerConfig(warmup_steps=0),
    # -- Evaluation: all domains, before the first and after each.
    evaluation=EvaluationConfig(
        generated=8,  # generated test tasks; 0 uses τ²-bench's test split
        trials=2,  # episodes per task; 1 samples greedily
    ),
    eval_interval=None,  # steps between evaluations of the domains trained so far
    # -- Output. A directory holds one run; set resume_from to it to resume.
    log_dir=Path("runs/example"),
    # resume_from=Path("runs/example"),
    logging=LoggingConfig(trackers=("tensorboard",), save_interval=10),  # also wandb, trackio
    seed=0,
)


def main(config: GRPOConfig = config) -> dict[str, Any]:
    """Train, write the report, and print the metrics."""
    trainer = GRPOTrainer(config)
    summary = trainer.train()
    if trainer.policy.is_main:  # only the main process
        for name in ("average_performance", "backward_transfer", "forgetting"):
            print(f"{name} {summary[name]:.3f}")
        print(f"report: {write_report(Path(summary['run']))}")
    return summary


if __name__ == "__main__":
    main()
