"""``grpo-cl estimate-memory``: the GPU memory of a run, before it starts."""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from grpo_cl.cli.options import read_config
from grpo_cl.cli.output import table
from grpo_cl.config import GRPOConfig
from grpo_cl.gpu_memory import (
    Change,
    Lengths,
    MemoryEstimate,
    ServerPlan,
    Workload,
    estimate,
    fewest_gpus_of_full_training,
    find_fit,
    full_training,
    measure_episodes,
    plan_servers,
    read_shape,
    read_workload,
    suggest_changes,
)
from grpo_cl.gpu_memory.constants import GIB
from grpo_cl.gpu_memory.estimate import command_line
from grpo_cl.gpu_memory.kv_cache import count_prefixes, prefix_tokens, slot_tokens
from grpo_cl.gpu_memory.phase import PARTS
from grpo_cl.gpu_memory.prompts import CHARACTERS_PER_TOKEN, TURN_TOKENS, Encode
from grpo_cl.gpu_memory.servers import PORT
from grpo_cl.gpu_memory.shape import TINY

TOKENIZER_FILE = "tokenizer.json"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def estimate_memory(arguments: argparse.Namespace) -> int:
    """Print the memory of a run's phases, whether they fit, and what to change if not."""
    memory = round(arguments.gpu_memory * GIB)
    config = read_config(arguments.settings)
    read_shape(config.model_name_or_path)  # refuses an unknown model before prompts are rendered
    encode = _encoder(config)
    lengths = _lengths(arguments, config, encode)
    results = [
        estimate(read_workload(config, each, gpus=arguments.gpus, memory=memory))
        for each in lengths
    ]
    result = max(results, key=lambda result: result.needed)
    if arguments.json:
        print(json.dumps(_record(result, results)))
        return 0
    prompts = (
        [_prompt_text(results, is_rendered=encode is not None)] if result.workload.domain else []
    )
    texts = [_workload_text(result.workload), *prompts, "", _table(result), "", _verdict(result)]
    print(*texts, sep="\n")
    if not result.fits:
        print(_advice(result))
    return 0


def _lengths(
    arguments: argparse.Namespace, config: GRPOConfig, encode: Encode | None
) -> list[Lengths]:
    """The given lengths, or the whole episodes of each domain."""
    prompt, reply = arguments.prompt_tokens, arguments.reply_tokens
    turn, shared = arguments.turn_tokens, arguments.shared_tokens
    if prompt and reply:
        return [Lengths(prompt, reply, TURN_TOKENS if turn is None else turn, shared)]
    lengths: list[Lengths] = []
    for episode in measure_episodes(config, encode):
        turn_tokens = episode.turn_tokens if turn is None else turn
        is_measured = prompt is None and shared is None
        lengths.append(
            Lengths(
                prompt or episode.prompt_tokens,
                reply or episode.max_replies * (config.max_new_tokens + turn_tokens),
                turn_tokens,
                episode.shared_tokens if is_measured else shared,
                episode.domain,
            )
        )
    return lengths


def _encoder(config: GRPOConfig) -> Encode | None:
    """Renders prompts with the model's chat template; None without its tokenizer."""
    folder = _tokenizer_dir(config.model_name_or_path)
    if folder is None:
        return None
    from grpo_cl.policy.chat.chat import chat_for  # transformers is slow to import
    from grpo_cl.policy.model.loading import load_tokenizer, resolve

    return chat_for(load_tokenizer(resolve(folder)), config.sampling.dialect).opening


def _tokenizer_dir(name: str) -> str | None:
    """The folder of a model with its tokenizer, from the disk or the hub's cache."""
    if name == TINY:
        return TINY
    path = Path(name).expanduser()
    if not path.is_dir() and _HUB_ID.fullmatch(name):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, TOKENIZER_FILE)
        path = Path(cached).parent if isinstance(cached, str) else path
    files = (path / TOKENIZER_FILE, path / "config.json")
    return str(path) if all(file.is_file() for file in files) else None


def _prompt_text(results: Sequence[MemoryEstimate], *, is_rendered: bool) -> str:
    lengths = ", ".join(
        f"{result.workload.domain} {result.workload.prompt_tokens}" for result in results
    )
    source = (
        "rendered with the model's tokenizer"
        if is_rendered
        else f"{CHARACTERS_PER_TOKEN} characters per token, as the tokenizer is not at hand"
    )
    return f"Longest prompt of each domain, in tokens ({source}): {lengths}."


def _workload_text(workload: Workload) -> str:
    config, largest = workload.config, workload.largest_micro_batch
    trainable = "all trainable"
    if workload.has_lora:
        trainable = (
            f"LoRA adapters of rank {config.lora.r}, {workload.trainable_parameters:,} trainable "
            "parameters"
        )
    tasks = config.tasks_per_step(world_size=workload.gpus)
    of_domain = f" of {workload.domain}" if workload.domain else ""
    return (
        f"{config.model_name_or_path}: {workload.shape.parameters:,} parameters in "
        f"{config.model_dtype}; {trainable}.\n"
        f"A step has {tasks} tasks: batch_size_per_gpu {config.batch_size_per_gpu} × "
        f"gradient_accumulation_steps {config.gradient_accumulation_steps} × {workload.gpus} "
        f"{'GPUs' if workload.gpus > 1 else 'GPU'}, {workload.episodes} episodes per GPU.\n"
        f"Each episode{of_domain} has {workload.prompt_tokens} prompt tokens and up to "
        f"{workload.reply_tokens} after them. An update has {len(workload.micro_batches)} forward "
        f"and backward passes, the largest with {largest.tokens} tokens of {largest.rows} episodes."
        f"{_prefix_text(workload)}"
    )


def _prefix_text(workload: Workload) -> str:
    count = count_prefixes(workload)
    if not count or workload.config.sampling.engine != "transformers":
        return ""
    return (
        f"\nPrompts share their first {workload.shared_tokens} tokens; cached prefixes of "
        f"{prefix_tokens(workload)} tokens: {count}; a KV-cache slot holds at most "
        f"{slot_tokens(workload)} tokens."
    )


def _table(result: MemoryEstimate) -> str:
    rows: list[Sequence[object]] = [("GiB on one GPU", *(phase.name for phase in result.phases))]
    for part in PARTS:
        sizes = [phase.parts.get(part, 0) for phase in result.phases]
        if any(sizes):
            rows.append((part, *(_gib(size) if size else "" for size in sizes)))
    rows.append(("peak", *(_gib(phase.peak) for phase in result.phases)))
    return table(rows)


def _verdict(result: MemoryEstimate) -> str:
    verdict = "the run fits" if result.fits else "the run does not fit"
    return (
        f"Needed: {_gib(result.needed)} GiB, including the CUDA context and fragmentation. "
        f"With {_gib(result.workload.memory)} GiB {verdict}."
    )


def _advice(result: MemoryEstimate) -> str:
    lines = ["", "Changes that save memory, each by itself:"]
    lines += [f"  {_saving(change)}" for change in suggest_changes(result)]
    steps = find_fit(result)
    has_fit = bool(steps) and steps[-1].after.fits
    if has_fit:
        final = {change.setting.split()[0]: change.setting for change in steps}
        needed = _gib(steps[-1].after.needed)
        lines.append(f"The run fits in {needed} GiB with {' '.join(final.values())}")
    plan = _server_plan(result)
    if plan is not None:
        lines += ["", _plan_text(plan, result.workload)]
    elif not has_fit:
        lines.append("No setting makes the run fit; use larger or more GPUs, or a smaller model.")
    return "\n".join(lines)


def _server_plan(result: MemoryEstimate) -> ServerPlan | None:
    """A plan with rollout servers, where the run fits on its GPUs with few slots or not at all."""
    steps = find_fit(result)
    has_slots = all("sampling.slots" not in change.values for change in steps)
    if result.fits or (steps and steps[-1].after.fits and has_slots):
        return None
    return plan_servers(result)


def _plan_text(plan: ServerPlan, before: Workload) -> str:
    workload = plan.workload
    lora = f" --enable-lora --max-lora-rank {workload.config.lora.r}" if workload.has_lora else ""
    several = f"{plan.servers} servers, ports from" if plan.servers > 1 else "1 server, port"
    host = workload.dtype_bytes * workload.shape.parameters
    lines = [
        f"With rollout servers the run fits {before.gpus} GPUs of {_gib(before.memory)} GiB:",
        f"  training on {workload.gpus} GPUs, {_gib(plan.training.needed)} GiB on each:",
        f"    torchrun --nproc_per_node={workload.gpus} -m grpo_cl.train … {plan_settings(plan)}",
        f"  sampling on {plan.server_gpus} GPUs, {several} {PORT}, with the environment variables "
        "of docs/serving.md:",
        f"    vllm serve MODEL --port {PORT} --tensor-parallel-size {plan.tensor_parallel} "
        f"--max-model-len {workload.length} --logprobs-mode processed_logprobs "
        f"--generation-config vllm --enable-prefix-caching{lora}",
        f"    {_gib(plan.weights)} GiB of weights on each GPU, and KV caches for "
        f"{plan.cached_tokens:,} tokens: {plan.cached_episodes} whole episodes at once",
        f"  While it loads, a process has the whole model in the host's memory: {_gib(host)} GiB, "
        f"{_gib(workload.gpus * host)} GiB for all.",
    ]
    if workload.has_lora and before.config.lora.r == 0:
        lines.append(_full_training_text(before))
    return "\n".join(lines)


def plan_settings(plan: ServerPlan) -> str:
    """The changed settings of a plan as on the command line."""
    return f"{command_line(plan.settings)} 'sampling.servers=[{','.join(plan.urls)}]'"


def _full_training_text(workload: Workload) -> str:
    full, fewest = full_training(workload, workload.gpus), fewest_gpus_of_full_training(workload)
    enough = f"it fits {fewest} GPUs" if fewest else "more GPUs do not help"
    return (
        f"All weights instead of LoRA adapters need {_gib(full.needed)} GiB on each of "
        f"{workload.gpus} GPUs, with the servers on others; {enough}."
    )


def _saving(change: Change) -> str:
    note = "" if change.keeps_results else ", but changes training results"
    return f"{change.setting} saves {_gib(change.saves)} GiB{note}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}" if size >= GIB else f"{size / GIB:.2f}"


def _record(result: MemoryEstimate, results: Sequence[MemoryEstimate]) -> dict[str, object]:
    workload = result.workload
    return {
        "tasks_per_step": workload.config.tasks_per_step(world_size=workload.gpus),
        "episodes_per_gpu": workload.episodes,
        "passes": len(workload.micro_batches),
        "domains": {
            each.workload.domain: {
                "prompt_tokens": each.workload.prompt_tokens,
                "reply_tokens": each.workload.reply_tokens,
                "needed": each.needed,
            }
            for each in results
            if each.workload.domain
        },
        "parameters": result.workload.shape.parameters,
        "trained": result.workload.trainable_parameters,
        "phases": {phase.name: {**phase.parts, "peak": phase.peak} for phase in result.phases},
        "needed": result.needed,
        "memory": result.workload.memory,
        "fits": result.fits,
        "changes": [
            {
                "setting": change.setting,
                "saves": change.saves,
                "keeps_results": change.keeps_results,
            }
            for change in suggest_changes(result)
        ],
        "recipe": [change.setting for change in find_fit(result)],
        "server_plan": _plan_record(_server_plan(result)),
    }


def _plan_record(plan: ServerPlan | None) -> dict[str, object] | None:
    if plan is None:
        return None
    return {
        "settings": plan_settings(plan),
        "training_gpus": plan.workload.gpus,
        "needed": plan.training.needed,
        "server_gpus": plan.server_gpus,
        "servers": plan.servers,
        "tensor_parallel": plan.tensor_parallel,
        "server_weights": plan.weights,
        "cached_tokens": plan.cached_tokens,
        "cached_episodes": plan.cached_episodes,
    }
