"""TRL's side of the GPU benchmarks: its own trainer, with its defaults where the work is silent."""

import statistics
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
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
from transformers import AutoTokenizer, TrainerCallback

from grpo_cl.engines.venue import Venue, episode_config
from grpo_cl.policy.chat import Chat
from grpo_cl.rows import BEGIN

RESULT_TOKENS = 200
"""Of a tool's answer, to set the length of a whole episode, which is the limit that TRL has."""
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
"""How our side writes a conversation where a ChatML template knows no tools; ``tool_text`` tells of
them, and what TRL puts in the place of a user who is not there, ``begin``, is left out."""
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
"""How TRL reads the calls that our side reads in the dialect ``json``."""


def trl(work: Work, report: Report, *, vllm: bool = False) -> None:
    """The reference work."""
    datasets: Any = import_module("datasets")
    tokenizer: Any = AutoTokenizer.from_pretrained(work.model)

    def reward(completions: Sequence[Any], **_: Any) -> list[float]:
        return [worth(one[0]["content"]) for one in completions]

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
    """The agentic work: TRL plays the episodes itself, with the domain's tools."""
    config = episode_config(agentic_settings(work))
    venue, tasks = Venue(config), agentic_tasks(work, config)
    folder, tool_text = dressed(work.model, venue)
    own_venue = Venue(config.model_copy(update={"model_name_or_path": folder}))
    limit = {"max_tokens" if vllm else "max_new_tokens": work.reply_tokens}
    settings = _settings(
        work,
        vllm=vllm,
        max_completion_length=work.max_turns * (work.reply_tokens + RESULT_TOKENS),
        max_tool_calling_iterations=work.max_turns - 1,  # the first reply follows no call
        generation_kwargs=limit,
        chat_template_kwargs={"tool_text": tool_text, "begin": BEGIN} if tool_text else None,
    )
    training: Any = import_module("grpo_cl.engines.trl.training")
    trainer = training.make_trainer(own_venue, tasks, settings, mode="environments")
    turns: list[float] = []
    (score,) = trainer.reward_funcs

    def counted(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        written = [[m for m in one if m["role"] == "assistant"] for one in completions]
        turns.append(statistics.fmean(map(len, written)))
        return score(completions=completions, **columns)

    trainer.reward_funcs = [counted]
    _run(trainer, work, report, turns=turns)


def rollouts(work: Work, report: Report) -> None:
    """The agentic work's training half: episodes that our side played before the first step."""
    config = episode_config(agentic_settings(work))
    venue, tasks = Venue(config), agentic_tasks(work, config)
    # Masked tokens count in TRL's limit as written ones do.
    settings = _settings(work, vllm=False, max_completion_length=work.context)
    training: Any = import_module("grpo_cl.engines.trl.training")
    trainer = training.make_trainer(venue, tasks, settings, mode="rollouts")
    play = trainer.rollout_func
    turns: list[float] = []
    kept: list[dict[str, list[Any]]] = []

    def replayed(named: Sequence[Any], given: Any) -> dict[str, list[Any]]:
        if not kept:
            kept.append(play(named, given))
        masks = kept[0]["env_mask"]
        turns.append(statistics.fmean(_num_spans(mask) for mask in masks))
        # TRL takes what is no column of its own out of what it is given.
        return dict(kept[0])

    trainer.rollout_func = replayed
    _run(trainer, work, report, turns=turns)


def dressed(model: str, venue: Venue) -> tuple[str, str]:
    """The model with a template and a parser that let TRL write and read calls as our side does.

    Returns its folder and what the template is to say about the tools; a model whose own template
    handles tools is left as it is, with nothing to say.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    chat = Chat(tokenizer)
    if chat.has_tool_template:
        return model, ""
    assert chat.dialect.name == "json", f"no parser for the dialect {chat.dialect.name}"
    folder = Path(mkdtemp())
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = RESPONSE
    tokenizer.save_pretrained(folder)
    for part in Path(model).resolve().iterdir():
        if not (folder / part.name).exists():
            (folder / part.name).symlink_to(part)
    return str(folder), chat.dialect.describe(venue.domain(DOMAIN).tools(solo=True))


def _settings(work: Work, *, vllm: bool, **changes: Any) -> Any:
    has_gpu = torch.cuda.is_available()
    batch = min(work.device_batch, work.replies)
    beside = {
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
        **(beside if vllm else {}),
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
    """Train, and tell of each step when TRL has logged it."""
    ends: list[float] = []
    read: list[float] = [0.0]

    class Clock(TrainerCallback):
        """Notes when steps end and what they were."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """The first step begins."""
            ends.append(now())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """One more step."""
            ends.append(now())

        def on_log(self, *_: Any, **known: Any) -> None:
            """The numbers of the last step."""
            logs = known["logs"]
            if "completions/mean_length" not in logs:
                return
            tokens = logs["completions/mean_length"] * work.replies
            total = logs["num_tokens"]
            report(
                {
                    "step": ends[-1] - ends[-2],
                    "tokens": tokens,
                    "turns": turns[-1] if turns else 1.0,
                    "prompt": (total - read[-1] - tokens) / work.replies,
                    "reward": logs["reward"],
                    "peak": peak_gib(),
                }
            )
            read.append(total)

    trainer.add_callback(Clock())
    trainer.train()


def _num_spans(mask: Sequence[int]) -> int:
    """Replies of an episode, by the mask of what the policy wrote."""
    return sum(own and not before for before, own in pairwise([0, *mask]))
