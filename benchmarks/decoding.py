"""Decoding speed of the transformers sampler: eager, CUDA graphs, and fused kernels.

    python benchmarks/decoding.py --model DIR
    python benchmarks/decoding.py --model DIR --shared 9700 --prompt 300 --rows 64 --new 64
    python benchmarks/decoding.py --shape qwen2.5-7b --rank 0 16 --decoders fused --kernels 25

Each decoder samples the same number of replies to the same random prompts of --prompt tokens, which
are equal within groups of --group rows; a shared prefix of --shared tokens precedes all of them.
With several ranks, of which 0 is all weights, and groups every pair of them is measured; in groups
of one row no prompt is shared. A step is one token of every row; its time is that of the second
half of the reply. A shape is a model with random weights. --kernels prints those that take longest
in a step of the last decoder. Without a GPU use smaller sizes (--rows 4 --new 16): nothing is
captured there, and no kernel is fused.
"""

import argparse
import statistics
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gpu_memory import Case, build
from gpu_work import free, now
from grpo_cl.cli.output import table
from grpo_cl.config import GRPOConfig
from grpo_cl.gpu_memory.constants import GRAPH_STEPS
from grpo_cl.policy.inference.decoders import GraphDecoder
from grpo_cl.policy.inference.sampler import GenerationRequest
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.model.policy_model import PolicyModel

SIZES = {"rows": 128, "prompt": 525, "shared": 0, "new": 256, "kernels": 0, "repeats": 3}
DECODERS = {"eager": "single tokens", "module": "graphs of the module", "fused": "graphs, fused"}


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shape", help="a known shape, or dry, instead of --model")
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rank", nargs="+", type=int, default=[0], help="of the adapters")
    parser.add_argument("--group", nargs="+", type=int, default=[8], help="rows with one prompt")
    parser.add_argument("--decoders", nargs="+", choices=DECODERS, default=list(DECODERS))
    arguments = parser.parse_args(words)
    if arguments.new < 1 or arguments.new % (2 * GRAPH_STEPS):
        parser.error(
            f"--new {arguments.new} is not a multiple of {2 * GRAPH_STEPS}: graphs decode "
            f"{GRAPH_STEPS} tokens at a time, and the second half of a reply is timed; give "
            "--new 256"
        )
    if any(arguments.rank) and not arguments.shape:
        parser.error(
            f"--rank {max(arguments.rank)} adds an adapter to a model with random weights; give "
            "--shape too, or leave it out"
        )
    rows: list[Sequence[object]] = [
        ("decoder", "rank", "group", "s", "tokens/s", "ms per step", "kernels")
    ]
    for rank in arguments.rank:
        policy = _policy(arguments, rank)
        for group, name in product(arguments.group, arguments.decoders):
            rows.append((DECODERS[name], rank, group, *_row(policy, arguments, name, group)))
            print("\t".join(map(str, rows[-1])), flush=True)
        del policy
        free()
    print(table(rows))


def _policy(arguments: Any, rank: int) -> PolicyModel:
    if arguments.shape:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return build(Case(arguments.shape, rank=rank), device)
    values = {"model_name_or_path": arguments.model, "log_dir": "unused"}
    return PolicyModel.load(GRPOConfig.model_validate(values))


def _row(policy: PolicyModel, arguments: Any, name: str, group: int) -> tuple[str, ...]:
    """Seconds and rates of a decoder; prints the kernels of the last one."""
    sampler = _sampler(policy, arguments, graphs=name != "eager")
    if name == "module":
        sampler._decoder = GraphDecoder(policy.module, sampler._runner, lambda: None)
    cells = _measured(sampler, policy, arguments, group)
    if arguments.kernels and name == arguments.decoders[-1]:
        _print_kernels(sampler, arguments.kernels)
    del sampler
    free()
    return cells


def _sampler(policy: PolicyModel, arguments: Any, *, graphs: bool) -> TransformersSampler:
    context = arguments.shared + arguments.prompt + arguments.new + 16
    return TransformersSampler(
        policy.module, context=context, slots=arguments.rows, device=policy.device, graphs=graphs
    )


def _measured(
    sampler: TransformersSampler, policy: PolicyModel, arguments: Any, group: int
) -> tuple[str, ...]:
    """Seconds and rates after a warm-up, in which graphs are captured."""
    rng = Random(0)
    vocabulary = range(1, policy.module.config.get_text_config().vocab_size)
    prefix = rng.choices(vocabulary, k=arguments.shared)
    count = -(-arguments.rows // group)
    groups = [prefix + rng.choices(vocabulary, k=arguments.prompt) for _ in range(count)]
    prompts = [groups[row // group] for row in range(arguments.rows)]
    half_s, seconds = (
        _median_s(sampler, prompts, new, arguments.repeats)
        for new in (arguments.new // 2, arguments.new)
    )
    rate = arguments.rows * arguments.new / seconds
    step_ms = 1000 * (seconds - half_s) / (arguments.new - arguments.new // 2)
    return f"{seconds:.3f}", f"{rate:.0f}", f"{step_ms:.2f}", _num_kernels(sampler)


def _median_s(
    sampler: TransformersSampler, prompts: Sequence[list[int]], new: int, repeats: int
) -> float:
    seconds = [_sample(sampler, prompts, new) for _ in range(repeats + 1)]
    return statistics.median(seconds[1:])


def _sample(sampler: TransformersSampler, prompts: Sequence[list[int]], new: int) -> float:
    """Seconds of one reply of ``new`` tokens to every prompt."""
    started = now()
    sampler.submit(
        GenerationRequest(row, row, prompt, new, 1.0, 1.0, (), row)
        for row, prompt in enumerate(prompts)
    )
    waiting = len(prompts)
    while waiting:
        waiting -= len(sampler.poll())
    ended = now()
    for row in range(len(prompts)):
        sampler.release(row)
    return ended - started


def _num_kernels(sampler: TransformersSampler) -> str:
    """Kernels of one step of the largest graph."""
    profiler = _profile_step(sampler)
    return str(sum(event.count for event in profiler.key_averages())) if profiler else "-"


def _print_kernels(sampler: TransformersSampler, count: int) -> None:
    """The kernels that take longest in a step of the largest graph."""
    profiler = _profile_step(sampler)
    if profiler is None:
        return
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    rows: list[Sequence[object]] = [("kernel", "count", "us each", "us", "%")]
    for event in events[:count]:
        spent = event.self_device_time_total
        cells = (event.count, f"{spent / event.count:.1f}", f"{spent:.0f}", f"{spent / total:.1%}")
        rows.append((event.key[:90], *cells))
    print(table([*rows, ("all", sum(event.count for event in events), "", f"{total:.0f}", "")]))


def _profile_step(sampler: TransformersSampler) -> profile | None:
    """The profile of one step of the largest graph; None without graphs or GPU."""
    decoder = sampler._decoder
    if not isinstance(decoder, GraphDecoder) or not torch.cuda.is_available():
        return None
    largest = max(decoder._decode_graphs, key=lambda size: (size.rows, size.length))
    graph = decoder._decode_graphs[largest]
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        graph._inputs.step_1.zero_()
        graph._replay()
        torch.cuda.synchronize()
    return profiler


if __name__ == "__main__":
    main()
