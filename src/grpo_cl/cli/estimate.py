"""``grpo-cl estimate-memory``: what a run takes on a GPU, before it is started."""

import argparse
import json
from collections.abc import Sequence

from grpo_cl.cli.options import read_config
from grpo_cl.cli.world import table
from grpo_cl.errors import ConfigError
from grpo_cl.footprint import Change, Estimate, Lengths, Plan, changes, estimate, read_plan, recipe
from grpo_cl.footprint.overheads import GIB
from grpo_cl.footprint.phase import PARTS
from grpo_cl.footprint.trunks import count_trunks, row_tokens, trunk_tokens


def estimate_memory(arguments: argparse.Namespace) -> int:
    """Print the memory of a run's phases, whether it fits, and what to change if not."""
    lengths = Lengths(
        arguments.prompt_tokens,
        arguments.reply_tokens,
        arguments.turn_tokens,
        arguments.shared_tokens,
    )
    if min(length if length is not None else 1 for length in lengths[:2]) < 1:
        raise ConfigError("--prompt_tokens and --reply_tokens are 1 or more")
    if min(lengths.turn_tokens, lengths.shared_tokens or 0) < 0:
        raise ConfigError("--turn_tokens and --shared_tokens are 0 or more")
    if arguments.gpus < 1 or arguments.gpu_memory <= 0:
        raise ConfigError("--gpus is 1 or more, --gpu_memory above 0")
    memory = round(arguments.gpu_memory * GIB)
    config = read_config(arguments.settings)
    found = estimate(read_plan(config, lengths, gpus=arguments.gpus, memory=memory))
    if arguments.json:
        print(json.dumps(_record(found)))
        return 0
    print(_premises(found), "", _table(found), "", _verdict(found), sep="\n")
    if not found.fits:
        print(_advice(found))
    return 0


def _premises(found: Estimate) -> str:
    plan, config = found.plan, found.plan.config
    adapters = f"adapters of rank {config.lora.r} learn, {plan.trained:,} weights"
    trained = adapters if plan.has_adapters else "all of them learn"
    widest = plan.widest_pass
    return (
        f"{config.model_name_or_path}: {plan.shape.parameters:,} weights in {config.model_dtype}; "
        f"{trained}.\n"
        f"{plan.episodes} episodes per process and step, each {plan.prompt_tokens} tokens of prompt"
        f" and {plan.reply_tokens} after it; {len(plan.passes)} passes, the largest over "
        f"{widest.tokens} tokens of {widest.rows} episodes.{_beginnings(plan)}"
    )


def _beginnings(plan: Plan) -> str:
    count = count_trunks(plan)
    if not count or plan.config.sampling.engine != "transformers":
        return ""
    return (
        f"\nPrompts begin with {plan.shared_tokens} tokens alike; trunks of {trunk_tokens(plan)} "
        f"tokens that the sampler keeps: {count}; a row holds at most {row_tokens(plan)}."
    )


def _table(found: Estimate) -> str:
    rows: list[Sequence[object]] = [("GiB on one GPU", *(phase.name for phase in found.phases))]
    for part in PARTS:
        sizes = [phase.parts.get(part, 0) for phase in found.phases]
        if any(sizes):
            rows.append((part, *(_gib(size) if size else "" for size in sizes)))
    rows.append(("peak", *(_gib(phase.peak) for phase in found.phases)))
    return table(rows)


def _verdict(found: Estimate) -> str:
    answer = "it fits" if found.fits else "it does not fit"
    return (
        f"A GPU must have {_gib(found.needed)} GiB, with the CUDA context and what the allocator "
        f"cannot use; of {_gib(found.plan.memory)} GiB {answer}."
    )


def _advice(found: Estimate) -> str:
    lines = ["", "What helps, each by itself:"]
    lines += [f"  {_saving(change)}" for change in changes(found)]
    steps = recipe(found)
    if steps and steps[-1].after.fits:
        last = {change.setting.split()[0]: change.setting for change in steps}
        lines.append(
            f"It fits in {_gib(steps[-1].after.needed)} GiB with {' '.join(last.values())}"
        )
    else:
        lines.append("No setting lets it fit; take a larger GPU, more of them, or a smaller model.")
    return "\n".join(lines)


def _saving(change: Change) -> str:
    note = "" if change.keeps_results else " and changes what is learned"
    return f"{change.setting} saves {_gib(change.saves)} GiB{note}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}" if size >= GIB else f"{size / GIB:.2f}"


def _record(found: Estimate) -> dict[str, object]:
    return {
        "parameters": found.plan.shape.parameters,
        "trained": found.plan.trained,
        "phases": {phase.name: {**phase.parts, "peak": phase.peak} for phase in found.phases},
        "needed": found.needed,
        "memory": found.plan.memory,
        "fits": found.fits,
        "changes": [
            {"setting": one.setting, "saves": one.saves, "keeps_results": one.keeps_results}
            for one in changes(found)
        ],
        "recipe": [one.setting for one in recipe(found)],
    }
