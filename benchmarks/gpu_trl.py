"""GPU benchmarks of TRL: its trainer, with its defaults for everything a workload does not set."""

import statistics
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from transformers import AutoTokenizer, TrainerCallback

from gpu_ours import DOMAIN, agentic_settings, agentic_tasks
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
from grpo_cl.integrations.episode_context import EpisodeContext, episode_config
from grpo_cl.integrations.rows import SOLO_PROMPT
from grpo_cl.policy.chat.chat import Chat

RESULT_TOKENS = 200
"""Assumed tokens of a tool result, to set TRL's length limit of a whole episode."""
TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ '<|im_start|>system\n' + tool_text + '\n\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'tool' -%}
{{ '<|im_start|>user\n' if loop.previtem.role != 'tool' else '\n' }}
{{- 'Tool result: ' + message.content }}
{{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' }}
{%- elif message.role == 'assistant' -%}
{{ '<|im_start|>assistant\n' + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '\n' if message.content or not loop.first }}
{{- '{"name": ' + call.function.name | tojson }}
{{- ', "arguments": ' + call.function.arguments | tojson + '}' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- elif message.content != begin -%}
{{ '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt }}"""
"""ChatML with the tool format of ``policy.chat`` for templates without tool support; ``tool_text``
describes the tools, and the solo prompt ``begin`` is left out."""
RESPONSE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r'\{"name":\s*"(?P<name>[^"]+)",\s*"arguments":\s*',
            "close_pattern": r'\}\s*(?:<\|im_end\|>\s*|(?=\{"name":)|$)',
            "repeats": True,
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
"""TRL's response parser for the tool-call format ``json``."""


def trl(work: Work, report: Report, *, vllm: bool = False) -> None:
    """Run the reference workload."""
    datasets: Any = import_module("datasets")
    tokenizer: Any = AutoTokenizer.from_pretrained(work.model)

    def reward(completions: Sequence[Any], **_: Any) -> list[float]:
        return [worth(completion[0]["content"]) for completion in completions]

    rows = prompts(tokenizer, work) * work.steps
    trainer = import_module("trl").GRPOTrainer(
        model=work.model,
        reward_funcs=reward,
        args=_settings(work, vllm=vllm),
        train_dataset=datasets.Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer,
        peft_config=_adapters() if work.adapters else None,
    )
    _run(trainer, work, report)


def environments(work: Work, report: Report, *, vllm: bool = False) -> None:
    """Run the agentic workload; TRL runs the episodes itself, with the domain's tools."""
    config = episode_config(agentic_settings(work))
    context, tasks = EpisodeContext(config), agentic_tasks(work, config)
    folder, tool_text = with_tool_template(work.model, context)
    model_context = EpisodeContext(config.model_copy(update={"model_name_or_path": folder}))
    limit = {"max_tokens" if vllm else "max_new_tokens": work.reply_tokens}
    settings = _settings(
        work,
        vllm=vllm,
        max_completion_length=work.max_turns * (work.reply_tokens + RESULT_TOKENS),
        max_tool_calling_iterations=work.max_turns - 1,  # not counting the first reply
        generation_kwargs=limit,
        chat_template_kwargs={"tool_text": tool_text, "begin": SOLO_PROMPT} if tool_text else None,
    )
    training: Any = import_module("grpo_cl.integrations.trl.training")
    trainer = training.make_trainer(model_context, tasks, settings, mode="environments")
    turns: list[float] = []
    (score,) = trainer.reward_funcs

    def count_turns(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        replies = [[m for m in messages if m["role"] == "assistant"] for messages in completions]
        turns.append(statistics.fmean(map(len, replies)))
        return score(completions=completions, **columns)

    trainer.reward_funcs = [count_turns]
    _run(trainer, work, report, turns=turns)


def rollouts(work: Work, report: Report) -> None:
    """Run only the training of the agentic workload, on episodes that we sampled before."""
    config = episode_config(agentic_settings(work))
    context, tasks = EpisodeContext(config), agentic_tasks(work, config)
    # TRL's limit also counts masked tokens.
    settings = _settings(work, vllm=False, max_completion_length=work.context)
    training: Any = import_module("grpo_cl.integrations.trl.training")
    trainer = training.make_trainer(context, tasks, settings, mode="rollouts")
    play = trainer.rollout_func
    turns: list[float] = []
    cached: list[dict[str, list[Any]]] = []

    def cached_rollouts(prompts: Sequence[Any], trl_trainer: Any) -> dict[str, list[Any]]:
        if not cached:
            cached.append(play(prompts, trl_trainer))
        masks = cached[0]["env_mask"]
        turns.append(statistics.fmean(_num_spans(mask) for mask in masks))
        # A copy: TRL removes extra columns from the dict.
        return dict(cached[0])

    trainer.rollout_func = cached_rollouts
    _run(trainer, work, report, turns=turns)


def with_tool_template(model: str, context: EpisodeContext) -> tuple[str, str]:
    """A copy of the model with a chat template and parser for the tool-call format of our chat.

    Returns its folder and the tool description for the template; a model whose chat template
    supports tools is returned unchanged, with an empty description.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    chat = Chat(tokenizer)
    if chat.has_tool_template:
        return model, ""
    assert chat.dialect.name == "json", f"no parser for the tool-call format {chat.dialect.name}"
    folder = Path(mkdtemp())
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = RESPONSE
    tokenizer.save_pretrained(folder)
    for part in Path(model).resolve().iterdir():
        if not (folder / part.name).exists():
            (folder / part.name).symlink_to(part)
    return str(folder), chat.dialect.describe_tools(context.domain(DOMAIN).tools(solo=True))


def _settings(work: Work, *, vllm: bool, **changes: Any) -> Any:
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


def _run(trainer: Any, work: Work, report: Report, *, turns: Sequence[float] = ()) -> None:
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


def _num_spans(mask: Sequence[int]) -> int:
    """Number of replies of an episode, from the mask of sampled tokens."""
    return sum(current and not previous for previous, current in pairwise([0, *mask]))
