"""GPU benchmarks of TRL on telecom episodes: its own episodes, and training on ours."""

import statistics
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from transformers import AutoTokenizer

from gpu_ours import DOMAIN, agentic_settings, agentic_tasks
from gpu_trl import run_trainer, trainer_settings
from gpu_work import Report, Work
from grpo_cl.integrations.episode_context import EpisodeContext, episode_config
from grpo_cl.integrations.rows import SOLO_PROMPT
from grpo_cl.policy.chat.chat import Chat

RESULT_TOKENS = 200
"""Assumed tokens of a tool result, to set TRL's length limit of a whole episode."""
TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ '<|im_start|>system\n' + (tool_text + '\n\n' + message.content) | trim + '<|im_end|>\n' }}
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
describes the tools, if the prompts have them, and the solo prompt ``begin`` is left out."""
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


def environments(work: Work, report: Report, *, vllm: bool = False) -> None:
    """Run a workload of episodes; TRL runs them itself, with the domain's tools."""
    config = episode_config(agentic_settings(work))
    context, tasks = EpisodeContext(config), agentic_tasks(work, config)
    folder, template_options = with_tool_template(work.model, context)
    model_context = EpisodeContext(config.model_copy(update={"model_name_or_path": folder}))
    limit = {"max_tokens" if vllm else "max_new_tokens": work.reply_tokens}
    settings = trainer_settings(
        work,
        vllm=vllm,
        max_completion_length=work.max_turns * (work.reply_tokens + RESULT_TOKENS),
        max_tool_calling_iterations=work.max_turns - 1,  # not counting the first reply
        generation_kwargs=limit,
        chat_template_kwargs=template_options,
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
    run_trainer(trainer, work, report, turns=turns)


def rollouts(work: Work, report: Report) -> None:
    """Run only the training of a workload of episodes, which we sampled before."""
    config = episode_config(agentic_settings(work))
    context, tasks = EpisodeContext(config), agentic_tasks(work, config)
    # TRL's limit also counts masked tokens.
    settings = trainer_settings(work, vllm=False, max_completion_length=work.context)
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
    run_trainer(trainer, work, report, turns=turns)


def with_tool_template(model: str, context: EpisodeContext) -> tuple[str, dict[str, str] | None]:
    """A copy of the model with a chat template and parser for the tool-call format of our chat.

    Returns its folder and the arguments of the template; a model whose chat template supports tools
    is returned unchanged, without arguments.
    """
    is_compact = context.rollout.prompt == "compact"
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    chat = Chat(tokenizer)
    if chat.has_tool_template:
        assert not is_compact, "TRL gives the tools to the chat template, which lists them"
        return model, None
    assert chat.dialect.name == "json", f"no parser for the tool-call format {chat.dialect.name}"
    folder = Path(mkdtemp())
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = RESPONSE
    tokenizer.save_pretrained(folder)
    for part in Path(model).resolve().iterdir():
        if not (folder / part.name).exists():
            (folder / part.name).symlink_to(part)
    tools = () if is_compact else context.domain(DOMAIN).tools(solo=True)
    tool_text = chat.dialect.describe_tools(tools) if tools else ""
    return str(folder), {"tool_text": tool_text, "begin": SOLO_PROMPT}


def _num_spans(mask: Sequence[int]) -> int:
    """Number of replies of an episode, from the mask of sampled tokens."""
    return sum(current and not previous for previous, current in pairwise([0, *mask]))
