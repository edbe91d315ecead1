"""Shared parts of the GPU benchmarks: workload sizes, models and timers."""

import gc
import json
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from grpo_cl.envs import load_domain
from grpo_cl.gpu_memory import known_shapes
from grpo_cl.types import TokenTrace

KL = 0.04
LEARNING_RATE = 1e-6
GPU_SHARE = 0.3
"""Fraction of the GPU memory for vLLM, in grpo-cl and TRL."""
LORA = {"r": 16, "alpha": 32}
STEP = "GPU-STEP "
"""Prefix of an output line with the figures of a step."""

Numbers = dict[str, float]
Report = Callable[[Numbers], None]


class Work(NamedTuple):
    """The workload of a step."""

    model: str
    kind: str
    steps: int
    warm_up: int
    prompts: int
    samples: int
    prompt_tokens: int
    reply_tokens: int
    """Token limit of one reply."""
    max_turns: int
    """Limit on the replies of an episode."""
    context: int
    micro_tokens: int
    """Tokens of one micro batch in grpo-cl."""
    device_batch: int
    """Sequences of one micro batch in TRL."""
    adapters: int
    """1 to train LoRA adapters instead of all weights."""
    checkpointing: int
    """1 for gradient checkpointing."""

    @property
    def replies(self) -> int:
        """Episodes per step."""
        return self.prompts * self.samples


COMMON = {"prompts": 16, "samples": 8, "max_turns": 10, "adapters": 0, "checkpointing": 0}
SIZES: dict[str, dict[str, int]] = {
    "reference": {
        **COMMON,
        "steps": 8,
        "warm_up": 2,
        "prompt_tokens": 525,
        "reply_tokens": 256,
        "context": 848,
        "micro_tokens": 65536,
        "device_batch": 64,
    },
    "long": {
        **COMMON,
        "steps": 5,
        "warm_up": 2,
        "prompts": 4,
        "prompt_tokens": 7500,
        "reply_tokens": 256,
        "context": 7936,
        "micro_tokens": 32768,
        "device_batch": 4,
    },
    "agentic": {
        **COMMON,
        "steps": 4,
        "warm_up": 1,
        "prompt_tokens": 10100,
        "reply_tokens": 128,
        "context": 12288,
        "micro_tokens": 32768,
        "device_batch": 4,
    },
    "compact": {
        **COMMON,
        "steps": 7,
        "warm_up": 2,
        "max_turns": 30,
        "prompt_tokens": 512,
        "reply_tokens": 128,
        "context": 4096,
        "micro_tokens": 16384,
        "device_batch": 16,
    },
    "shared": {
        **COMMON,
        "steps": 4,
        "warm_up": 1,
        "prompt_tokens": 10000,
        "reply_tokens": 600,
        "context": 12288,
        "micro_tokens": 32768,
        "device_batch": 4,
    },
}
"""Default sizes of each workload."""
SHAPES: dict[str, dict[str, int]] = {
    "qwen2.5-1.5b": {"steps": 5, "micro_tokens": 12288, "device_batch": 16},
    "qwen2.5-7b": {
        "steps": 4,
        "micro_tokens": 16384,
        "device_batch": 8,
        "adapters": 1,
        "checkpointing": 1,
    },
}
"""Sizes for larger models: logits and activations must fit beside vLLM."""


def report(numbers: Numbers) -> None:
    """Print the figures of a step for the parent process."""
    print(STEP + json.dumps(numbers), flush=True)


def summary(steps: Sequence[Numbers], warm_up: int) -> Numbers:
    """Medians over the steps after the warm-up, the range of their times, and the memory peak.

    Steps of the warm-up only are represented by the last.
    """
    warm = steps[warm_up:] or steps[-1:]
    medians = {name: statistics.median(step[name] for step in warm) for name in warm[0]}
    totals = [step["step"] for step in warm]
    bounds = {"shortest": min(totals), "longest": max(totals)}
    peaks = {name: max(step[name] for step in warm) for name in medians.keys() & {"peak"}}
    return {**medians, **peaks, **bounds, "measured": float(len(warm))}


def now() -> float:
    """Seconds, after synchronizing with the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def free() -> None:
    """Return the memory of what is no longer used to the GPU."""
    gc.collect()  # modules with hooks refer to themselves
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_gib() -> float:
    """Peak GPU memory of torch's allocator since the last call, in GiB."""
    if not torch.cuda.is_available():
        return 0.0
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return peak


class Stopwatch:
    """Accumulates seconds by name."""

    def __init__(self) -> None:
        self.seconds: Numbers = {}

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to ``name``."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Add the time of the block to ``name``."""
        started = now()
        yield
        self.add(name, now() - started)


def prompts(tokenizer: Any, work: Work) -> list[list[dict[str, str]]]:
    """One-message conversations that ask to explain a piece of a policy text."""
    ids = tokenizer(load_domain("airline").policy_text()).input_ids
    ids *= 2 + work.prompt_tokens // len(ids)
    stride = (len(ids) - work.prompt_tokens) // work.prompts
    pieces = [ids[n * stride : n * stride + work.prompt_tokens - 35] for n in range(work.prompts)]
    return [
        [{"role": "user", "content": f"Explain these rules:\n{tokenizer.decode(piece)}"}]
        for piece in pieces
    ]


def one_reply(prompt: Sequence[int], reply: Sequence[int], logprobs: Sequence[float]) -> TokenTrace:
    """The tokens of an episode with a single reply."""
    start, end = len(prompt), len(prompt) + len(reply)
    return TokenTrace(
        ids=(*prompt, *reply),
        mask=(*[False] * start, *[True] * len(reply)),
        logprobs=tuple(logprobs),
        turns=((start, end),),
    )


def worth(text: str) -> float:
    """A reward that differs between replies: the fraction of distinct words."""
    words = text.split()
    return len(set(words)) / max(1, len(words))


def make_model(shape: str, tokenizer_dir: str, folder: str) -> None:
    """Save a model of a known shape with random weights and the tokenizer of another model."""
    tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_dir)
    fields = known_shapes()[shape]
    special = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    config = AutoConfig.for_model(**fields, **special, pad_token_id=tokenizer.pad_token_id)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with device:
        module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
