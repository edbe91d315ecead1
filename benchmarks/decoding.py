"""How fast the sampler writes: token by token, from graphs, and with fused kernels.

    python benchmarks/decoding.py --model DIR
    python benchmarks/decoding.py --model DIR --shared 9700 --prompt 300 --rows 64 --new 64

Each way writes the same number of replies to the same random prompts of --prompt tokens, of which
groups of eight have the same; --shared tokens stand before all of them. A step is one token of
every row. The first way is left out with --skip_single, since it takes long. Without a GPU give
less of everything (--rows 4 --new 8): there nothing is captured, and no kernel is fused.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from gpu_work import now
from torch.profiler import ProfilerActivity, profile

from grpo_cl.cli.world import table
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.decoding import GraphDecoder
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.sampler import Request

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
    given = parser.parse_args()
    config = GRPOConfig.model_validate({"model_name_or_path": given.model, "log_dir": "unused"})
    policy = PolicyModel.load(config)
    ways: dict[str, Callable[[TransformersSampler], None]] = {
        "single tokens": lambda _: None,
        "graphs of the module": lambda sampler: _use_module(sampler, policy),
        "graphs, fused": lambda _: None,
    }
    rows: list[Sequence[object]] = [("way", "s", "tokens/s", "ms per step", "kernels")]
    for name, prepare in ways.items():
        if name == "single tokens" and given.skip_single:
            continue
        sampler = _sampler(policy, given, graphs=name != "single tokens")
        prepare(sampler)
        rows.append((name, *_measured(sampler, policy, given)))
        print("\t".join(map(str, rows[-1])), flush=True)
    print(table(rows))


def _sampler(policy: PolicyModel, given: Any, *, graphs: bool) -> TransformersSampler:
    context = given.shared + given.prompt + given.new + 16
    return TransformersSampler(
        policy.module, context=context, slots=given.rows, device=policy.device, graphs=graphs
    )


def _use_module(sampler: TransformersSampler, policy: PolicyModel) -> None:
    sampler._decoder = GraphDecoder(policy.module, sampler._reader, lambda: None)


def _measured(sampler: TransformersSampler, policy: PolicyModel, given: Any) -> tuple[str, ...]:
    """Seconds and rates after a first round, in which graphs are made."""
    rng = Random(0)
    words = range(1, policy.module.config.get_text_config().vocab_size)
    root = rng.choices(words, k=given.shared)
    prompts = [root + rng.choices(words, k=given.prompt) for _ in range(-(-given.rows // GROUP))]
    _write(sampler, prompts, given)
    seconds = statistics.median(_write(sampler, prompts, given) for _ in range(REPEATS))
    rate = given.rows * given.new / seconds
    return f"{seconds:.3f}", f"{rate:.0f}", f"{1000 * seconds / given.new:.2f}", _kernels(sampler)


def _write(sampler: TransformersSampler, prompts: Sequence[list[int]], given: Any) -> float:
    started = now()
    sampler.submit(
        Request(row, row, prompts[row // GROUP], given.new, 1.0, 1.0, (), row)
        for row in range(given.rows)
    )
    waiting = given.rows
    while waiting:
        waiting -= len(sampler.poll())
    ended = now()
    for row in range(given.rows):
        sampler.release(row)
    return ended - started


def _kernels(sampler: TransformersSampler) -> str:
    """Of one step of the largest graph."""
    decoder = sampler._decoder
    if not isinstance(decoder, GraphDecoder) or not torch.cuda.is_available():
        return "-"
    graph = decoder._graphs[max(decoder._graphs, key=lambda size: (size.rows, size.length))]
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph._inputs.step_1.zero_()
        graph._replay()
        torch.cuda.synchronize()
    return str(sum(event.count for event in seen.key_averages()))


if __name__ == "__main__":
    main()
