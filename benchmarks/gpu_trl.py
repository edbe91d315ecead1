"""GPU benchmark of TRL: its trainer, with its defaults for everything a workload does not set."""

from collections.abc import Sequence
from importlib import import_module
from tempfile import mkdtemp
from typing import Any

import torch
from transformers import AutoTokenizer, TrainerCallback

from gpu_work import (
    GPU_SHARE,
    KL,
    LEARNING_RATE,
    LORA,
    Report,
    Work,
    now,
    peak_gib,
    prompts,
    worth,
)


def trl(work: Work, report: Report, *, vllm: bool = False) -> None:
    """Run a workload of single replies."""
    trainer = reply_trainer(
        work,
        AutoTokenizer.from_pretrained(work.model),
        trainer_settings(work, vllm=vllm),
        model=work.model,
        peft_config=_adapters() if work.adapters else None,
    )
    run_trainer(trainer, work, report)


def reply_trainer(work: Work, tokenizer: Any, settings: Any, **policy: Any) -> Any:
    """A trainer for single replies."""
    datasets: Any = import_module("datasets")

    def reward(completions: Sequence[Any], **_: Any) -> list[float]:
        return [worth(completion[0]["content"]) for completion in completions]

    rows = prompts(tokenizer, work) * work.steps
    return import_module("trl").GRPOTrainer(
        reward_funcs=reward,
        args=settings,
        train_dataset=datasets.Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer,
        **policy,
    )


def trainer_settings(work: Work, *, vllm: bool, **changes: Any) -> Any:
    """TRL's settings of a workload."""
    has_gpu = torch.cuda.is_available()
    batch = min(work.device_batch, work.replies)
    vllm_options = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": GPU_SHARE,
        "vllm_max_model_length": work.context,
    }
    options: dict[str, Any] = {
        "output_dir": mkdtemp(),
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": work.replies // batch,
        "num_generations": work.samples,
        "max_completion_length": work.reply_tokens,
        "beta": KL,
        "temperature": 1.0,
        "learning_rate": LEARNING_RATE,
        "max_steps": work.steps,
        "bf16": True,
        "use_cpu": not has_gpu,
        "gradient_checkpointing": bool(work.checkpointing),
        "logging_steps": 1,
        "save_strategy": "no",
        "shuffle_dataset": False,
        "disable_tqdm": True,
        "report_to": [],
        "model_init_kwargs": {"dtype": "bfloat16"},
        **(vllm_options if vllm else {}),
        **changes,
    }
    return import_module("trl").GRPOConfig(**options)


def _adapters() -> Any:
    return import_module("peft").LoraConfig(
        r=LORA["r"],
        lora_alpha=LORA["alpha"],
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def run_trainer(trainer: Any, work: Work, report: Report, *, turns: Sequence[float] = ()) -> None:
    """Train and report each step after TRL has logged it."""
    ends: list[float] = []
    token_totals: list[float] = [0.0]

    class StepTimer(TrainerCallback):
        """Records when steps end and reports their metrics."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """Start of the first step."""
            ends.append(now())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """End of a step."""
            ends.append(now())

        def on_log(self, *_: Any, **arguments: Any) -> None:
            """Report the last step."""
            logs = arguments["logs"]
            if "completions/mean_length" not in logs:
                return
            tokens = logs["completions/mean_length"] * work.replies
            total = logs["num_tokens"]
            report(
                {
                    "step": ends[-1] - ends[-2],
                    "tokens": tokens,
                    "turns": turns[-1] if turns else 1.0,
                    "prompt": (total - token_totals[-1] - tokens) / work.replies,
                    "reward": logs["reward"],
                    "peak": peak_gib(),
                }
            )
            token_totals.append(total)

    trainer.add_callback(StepTimer())
    trainer.train()
