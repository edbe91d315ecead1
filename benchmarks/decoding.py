"""Decoding speed of the transformers sampler: eager, CUDA graphs, and fused kernels.

    python benchmarks/decoding.py --model DIR
    python benchmarks/decoding.py --model DIR --shared 9700 --prompt 300 --rows 64 --new 64

Each decoder samples the same number of replies to the same random prompts of --prompt tokens, which
are equal within groups of eight; a shared prefix of --shared tokens precedes all of them. A step is
one token of every row. --skip_single leaves out the eager decoder, which takes long. Without a GPU
use smaller sizes (--rows 4 --new 8): nothing is captured there, and no kernel is fused.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gpu_work import now
from grpo_cl.cli.output import table
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.inference.decoders import GraphDecoder
from grpo_cl.policy.inference.sampler import GenerationRequest
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.model.policy_model import PolicyModel

GROUP = 8
REPEATS = 3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    for name, default in {"rows": 128, "prompt": 525, "shared": 0, "new": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--skip_single", action="store_true")
    arguments = parser.parse_args()
    config = GRPOConfig.model_validate({"model_name_or_path": arguments.model, "log_dir": "unused"})
    policy = PolicyModel.load(config)
    decoders: dict[str, Callable[[TransformersSampler], None]] = {
        "single tokens": lambda _: None,
        "graphs of the module": lambda sampler: _use_module(sampler, policy),
        "graphs, fused": lambda _: None,
    }
    rows: list[Sequence[object]] = [("decoder", "s", "tokens/s", "ms per step", "kernels")]
    for name, prepare in decoders.items():
        if name == "single tokens" and arguments.skip_single:
            continue
        sampler = _sampler(policy, arguments, graphs=name != "single tokens")
        prepare(sampler)
        rows.append((name, *_measured(sampler, policy, arguments)))
        print("\t".join(map(str, rows[-1])), flush=True)
    print(table(rows))


def _sampler(policy: PolicyModel, arguments: Any, *, graphs: bool) -> TransformersSampler:
    context = arguments.shared + arguments.prompt + arguments.new + 16
    return TransformersSampler(
        policy.module, context=context, slots=arguments.rows, device=policy.device, graphs=graphs
    )


def _use_module(sampler: TransformersSampler, policy: PolicyModel) -> None:
    sampler._decoder = GraphDecoder(policy.module, sampler._runner, lambda: None)


def _measured(sampler: TransformersSampler, policy: PolicyModel, arguments: Any) -> tuple[str, ...]:
    """Seconds and rates after a warm-up, in which graphs are captured."""
    rng = Random(0)
    vocabulary = range(1, policy.module.config.get_text_config().vocab_size)
    prefix = rng.choices(vocabulary, k=arguments.shared)
    groups = range(-(-arguments.rows // GROUP))
    prompts = [prefix + rng.choices(vocabulary, k=arguments.prompt) for _ in groups]
    _sample(sampler, prompts, arguments)
    seconds = statistics.median(_sample(sampler, prompts, arguments) for _ in range(REPEATS))
    rate = arguments.rows * arguments.new / seconds
    step_ms = 1000 * seconds / arguments.new
    return f"{seconds:.3f}", f"{rate:.0f}", f"{step_ms:.2f}", _num_kernels(sampler)


def _sample(sampler: TransformersSampler, prompts: Sequence[list[int]], arguments: Any) -> float:
    started = now()
    sampler.submit(
        GenerationRequest(row, row, prompts[row // GROUP], arguments.new, 1.0, 1.0, (), row)
        for row in range(arguments.rows)
    )
    waiting = arguments.rows
    while waiting:
        waiting -= len(sampler.poll())
    ended = now()
    for row in range(arguments.rows):
        sampler.release(row)
    return ended - started


def _num_kernels(sampler: TransformersSampler) -> str:
    """Kernels of one step of the largest graph."""
    decoder = sampler._decoder
    if not isinstance(decoder, GraphDecoder) or not torch.cuda.is_available():
        return "-"
    largest = max(decoder._decode_graphs, key=lambda size: (size.rows, size.length))
    graph = decoder._decode_graphs[largest]
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        graph._inputs.step_1.zero_()
        graph._replay()
        torch.cuda.synchronize()
    return str(sum(event.count for event in profiler.key_averages()))


if __name__ == "__main__":
    main()
