"""What a model loses whose architecture runs without packed batches and fused kernels.

    PYTHONPATH=src python benchmarks/fallback_cost.py
    PYTHONPATH=src python benchmarks/fallback_cost.py --device cpu --dry

Each architecture is a model of the same width, depth and vocabulary with random weights. All sample
128 rows of 525 + 128 tokens in groups of eight and update on as many episodes, with the passes they
use and with those of transformers: CUDA graphs of the module, and its own blocks in packed and in
padded batches. "slower" is how much longer the passes of transformers (padded) take; where a model
uses them anyway, how much longer it takes than Llama with fused ones.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import torch

from gpu_memory import TINY_SHAPE, Case, build, random_group
from gpu_work import free
from grpo_cl.cli.output import table
from grpo_cl.policy.inference.decoders import GraphDecoder
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.kernels.fused_blocks import is_fused, unfuse_blocks
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.logprobs import LogprobComputer, causal_model
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.types import TrajectoryGroup
from roofline import sample, timed

CASE = Case("random", prompt=525, reply=128, tasks=16, group=8, slots=128, kl_coef=0.0)
DRY = CASE._replace(dtype="float32", prompt=24, reply=16, tasks=2, group=2, slots=4)
WIDTHS = {"vocab_size": 32768, "hidden_size": 1024, "intermediate_size": 4096}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 12}
SPECIAL = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
NO_WINDOW = {"sliding_window": None}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama 3": {"model_type": "llama", **NO_WINDOW},
    "Mistral": {"model_type": "mistral", **NO_WINDOW},
    "Qwen2.5": {"model_type": "qwen2", **NO_WINDOW},
    "Qwen3": {"model_type": "qwen3", **NO_WINDOW},
    "Phi-3": {"model_type": "phi3", **NO_WINDOW},
    "Mistral, sliding window": {"model_type": "mistral"},
    "Gemma 3": {"model_type": "gemma3_text"},
}
HEADER = (
    *("architecture", "training batches", "blocks", "decode", "tokens/s", "of transformers"),
    *("slower", "update s", "own blocks", "padded", "slower"),
)


class Measured(NamedTuple):
    """The seconds of each way to compute that a model has; fused ones are None where it falls back.

    Updates are with fused blocks, with the model's own in packed batches, and in padded batches.
    """

    fused_decode: float | None
    decode: float
    fused: float | None
    packed: float | None
    padded: float


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", metavar="TEXT", help="architectures with TEXT")
    parser.add_argument("--repeats", type=int, default=2, help="after a warm-up")
    parser.add_argument("--dry", action="store_true", help="tiny models, for a CPU")
    arguments = parser.parse_args(words)
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        print("No GPU to measure; use --device cpu --dry.")
        return
    sizes = WIDTHS | HEADS | {"max_position_embeddings": 1024, "sliding_window": 512}
    case, sizes = (DRY, TINY_SHAPE | {"sliding_window": 24}) if arguments.dry else (CASE, sizes)
    rows: list[Sequence[str]] = [HEADER]
    llama: Measured | None = None
    print("\t".join((*HEADER, "seconds of the row")), flush=True)
    for name in (name for name in ARCHITECTURES if arguments.only in name):
        started = time.perf_counter()
        settings = sizes | SPECIAL | ARCHITECTURES[name]
        one = case._replace(settings=settings)
        measured = measure(one, torch.device(arguments.device), arguments.repeats)
        free()
        llama = llama or measured
        rows.append(cells(name, measured, llama, case.tasks * case.group * case.reply))
        seconds = f"{time.perf_counter() - started:.0f}"
        print("\t".join((*rows[-1], seconds)), flush=True)  # kept if a later row fails
    print(table(rows))


def measure(case: Case, device: torch.device, repeats: int) -> Measured:
    """Seconds of sampling and of an update, with the passes of the model and its own."""
    rng, policy = Random(0), build(case, device)
    groups = [random_group(case, rng) for _ in range(case.tasks)]
    advantages = [[rng.uniform(-1, 1) for _ in range(case.group)] for _ in groups]
    decode_s = _decode_s(policy, case, groups, repeats)
    learner = Learner(policy, case.config, DistributedContext.initialize(device=device))
    update = partial(timed, lambda: learner.update(groups, advantages), device, repeats)
    computer, causal = policy._computer, causal_model(policy.module)
    is_packed = computer._can_pack and case.prompt + case.reply <= computer._max_packed
    fused_s = update() if is_packed and is_fused(causal) else None
    unfuse_blocks(causal)
    packed_s = update() if is_packed else None
    padded = LogprobComputer(policy.module, has_separate_head=True, can_pack=False)
    policy._computer = policy._active = padded
    return Measured(*decode_s, fused_s, packed_s, update())


def _decode_s(
    policy: PolicyModel, case: Case, groups: Sequence[TrajectoryGroup], repeats: int
) -> tuple[float | None, float]:
    """Seconds with fused kernels, if the model is decoded so, and with graphs of the module."""
    context, device = case.prompt + case.reply + 16, policy.device
    sampler = TransformersSampler(
        policy.module, context=context, slots=case.slots, device=device, graphs=True
    )
    replies = partial(sample, case, sampler, groups, case.reply)
    seconds = timed(replies, device, repeats)
    if not sampler._decoder.reads_any_slot:
        return None, seconds
    sampler._decoder = GraphDecoder(policy.module, sampler._runner, lambda: None)
    return seconds, timed(replies, device, repeats)


def cells(name: str, measured: Measured, llama: Measured, tokens: int) -> Sequence[str]:
    """A line of the table, for ``tokens`` sampled in all."""
    fused_decode, decode, fused, packed, padded = measured
    used = fused or packed or padded
    best_decode, best = fused_decode or llama.fused_decode, fused or llama.fused
    return (
        *(name, "packed" if packed else "padded", "fused" if fused else "of the model"),
        *("fused" if fused_decode else "of the model", f"{tokens / (fused_decode or decode):.0f}"),
        *(f"{tokens / decode:.0f}", f"{decode / best_decode:.2f}" if best_decode else "–"),
        *(f"{used:.3f}", f"{packed:.3f}" if packed else "–", f"{padded:.3f}"),
        f"{(padded if fused else used) / best:.2f}" if best else "–",
    )


if __name__ == "__main__":
    main()
