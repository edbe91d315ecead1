"""A run to edit: change what you like, then ``python configs/grpo_example.py``.

As it stands it trains the embedded policy on two domains, in about a minute on one CPU core. With
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
    # work too. "tiny" brings defaults of its own; with another model, set what stands below.
    model_name_or_path="tiny",
    # model_dtype="bfloat16", gradient_checkpointing=True, flash_attention=True   # on a GPU
    # sharding="fsdp",                 # with torchrun, for a model too large for one device
    lora=LoraConfig(r=0),  # r=16 trains adapters instead of all weights
    # -- What is learned, in this order. Also there: telecom, telecom-workflow, banking_knowledge,
    # mock, and the toy domains toy_left, toy_right, toy_up, toy_down for "tabular".
    task_order=("airline", "retail"),
    tasks=TasksConfig(
        own=False,  # τ²-bench's own training tasks: 30 to 74 in a domain
        generated=100,  # verified tasks made by the domain's generator
        difficulty=0.0,  # 0 to 1; None mixes all
    ),
    # -- What is kept of earlier domains: sequential, replay, ewc, ... (docs/algorithms.md).
    cl_algorithm="replay",
    cl_options={"mode": "displacing"},
    replay_ratio=0.25,  # share of a step's tasks that are old ones
    # -- Episodes: tasks per step, plays of each task (the group), and how the policy writes.
    batch_size_per_gpu=4,
    gradient_accumulation_steps=1,
    num_samples_per_prompt=6,
    temperature=1.0,
    max_new_tokens=128,
    rollout=RolloutConfig(user="solo", max_turns=16),  # user="scripted" talks to the agent
    reward=RewardConfig(basis="tau2"),  # shaping="progress" gives part of the reward earlier
    # -- The update. Formulas in docs/grpo.md.
    num_steps_per_task=4,
    learning_rate=3e-4,  # for a large model 1e-6, with adapters 1e-5
    kl_coef=0.0,  # above 0 holds the policy to where it started
    loss=LossConfig(
        kind="dapo",  # grpo, dr_grpo, gspo, cispo
        zero_variance="skip",  # "resample" plays other tasks instead
    ),
    optimizer=OptimizerConfig(warmup_steps=0),
    # -- How it is measured: all domains, before the first and after each.
    evaluation=EvaluationConfig(
        generated=8,  # test tasks of the generator; 0 takes τ²-bench's test split
        trials=2,  # plays of each; 1 writes greedily
    ),
    eval_interval=None,  # steps between measurements of the domains learned so far
    # -- Where it goes. A directory holds one run; to go on with it, set resume_from to it.
    log_dir=Path("runs/example"),
    # resume_from=Path("runs/example"),
    logging=LoggingConfig(trackers=("tensorboard",), save_interval=10),  # also wandb, trackio
    seed=0,
)


def main(config: GRPOConfig = config) -> dict[str, Any]:
    """Train, write the report, and say how it ended."""
    trainer = GRPOTrainer(config)
    summary = trainer.train()
    if trainer.policy.is_main:  # of several processes one
        for name in ("average_performance", "backward_transfer", "forgetting"):
            print(f"{name} {summary[name]:.3f}")
        print(f"report: {write_report(Path(summary['run']))}")
    return summary


if __name__ == "__main__":
    main()
