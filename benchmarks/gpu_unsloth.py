"""GPU benchmark of Unsloth: TRL's trainer with Unsloth's patches, on single replies.

A program of its own, started by ``gpu_step.py``: Unsloth patches PEFT, transformers and TRL, so it
is imported before anything that imports them, and it needs other versions of them than grpo-cl.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

unsloth: Any = import_module("unsloth")

import torch  # noqa: E402 - after Unsloth, as all that follow

from gpu_trl import reply_trainer, run_trainer, trainer_settings  # noqa: E402
from gpu_work import GPU_SHARE, LORA, Work, report  # noqa: E402

OPTIMIZER = "adamw_torch_fused"
"""The default of transformers; Unsloth's is an 8-bit optimizer."""


def main() -> None:
    """Run and report the training steps; the arguments are the way and the workload."""
    way, encoded = sys.argv[1:]
    work = Work(**json.loads(encoded))
    vllm = way == "unsloth-vllm"
    model, tokenizer = _policy(work, vllm=vllm)
    settings = trainer_settings(
        work, vllm=vllm, optim=OPTIMIZER, warmup_steps=0, weight_decay=0.0, model_init_kwargs=None
    )
    run_trainer(reply_trainer(work, tokenizer, settings, model=model), work, report)
    sys.stdout.flush()
    os._exit(0)  # as in gpu_step: exit handlers can hang


def _policy(work: Work, *, vllm: bool) -> tuple[Any, Any]:
    """The model and its tokenizer; with vLLM, Unsloth trains LoRA adapters only."""
    has_adapters = vllm or bool(work.adapters)
    checkpointing = "unsloth" if work.checkpointing else False
    engine = {
        "fast_inference": True,
        "gpu_memory_utilization": GPU_SHARE,
        "max_lora_rank": LORA["r"],
        "max_num_seqs": work.replies,
    }
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=work.model,
        max_seq_length=work.context,
        dtype=torch.bfloat16,
        load_in_4bit=False,
        full_finetuning=not has_adapters,
        use_gradient_checkpointing=checkpointing,
        **(engine if vllm else {}),
    )
    if has_adapters:
        model = unsloth.FastLanguageModel.get_peft_model(
            model,
            r=LORA["r"],
            lora_alpha=LORA["alpha"],
            use_gradient_checkpointing=checkpointing,
        )
    return model, tokenizer


if __name__ == "__main__":
    main()
