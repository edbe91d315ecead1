"""What the GPU benchmarks have in common: the sizes of a step, the models, and the clock."""

import json
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from grpo_cl.domains import load_domain
from grpo_cl.footprint import known_shapes
from grpo_cl.types import TokenTrace

KL = 0.04
LEARNING_RATE = 1e-6
GPU_SHARE = 0.3
"""Of the GPU's memory, for vLLM in either side's process."""
LORA = {"r": 16, "alpha": 32}
STEP = "GPU-STEP "
"""What a line of a way's output begins with that has the numbers of a step."""

Numbers = dict[str, float]
Report = Callable[[Numbers], None]


class Work(NamedTuple):
    """What a step does."""

    model: str
    kind: str
    steps: int
    warm_up: int
    prompts: int
    samples: int
    prompt_tokens: int
    reply_tokens: int
    """Of one reply; most of them where replies end by themselves."""
    max_turns: int
    """Most replies of an episode."""
    context: int
    micro_tokens: int
    """Of one forward and backward pass on our side."""
    device_batch: int
    """Sequences of one forward and backward pass on TRL's side."""
    adapters: int
    """1 to train LoRA adapters, on both sides, instead of all weights."""
    checkpointing: int
    """1 to compute activations twice, on both sides, instead of keeping them."""

    @property
    def replies(self) -> int:
        """Episodes of one step."""
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
"""Of each work, unless told otherwise."""
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
"""What changes with the size of the model: logits and activations have to fit beside vLLM."""


def report(numbers: Numbers) -> None:
    """Tell the process that started this one about a step."""
    print(STEP + json.dumps(numbers), flush=True)


def summary(steps: Sequence[Numbers], warm_up: int) -> Numbers:
    """Medians over the steps that are warm, and the range of their totals."""
    warm = steps[warm_up:] or steps[-1:]
    found = {name: statistics.median(step[name] for step in warm) for name in warm[0]}
    totals = [step["step"] for step in warm]
    return {**found, "spread": max(totals) - min(totals), "measured": float(len(warm))}


def now() -> float:
    """Seconds, once the GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_gib() -> float:
    """Most memory that torch's allocator had given out on the GPU, in GiB, since the last call."""
    if not torch.cuda.is_available():
        return 0.0
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return peak


class Stopwatch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: Numbers = {}

    def add(self, name: str, seconds: float) -> None:
        """More of ``name``."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """What passes under it is ``name``."""
        started = now()
        yield
        self.add(name, now() - started)


def prompts(tokenizer: Any, work: Work) -> list[list[dict[str, str]]]:
    """Conversations of one message: a piece of a policy text to be told in other words."""
    ids = tokenizer(load_domain("airline").policy_text()).input_ids * 2
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
    """A reward that differs between replies: the share of words that are new."""
    words = text.split()
    return len(set(words)) / max(1, len(words))


def make_model(shape: str, tokenizer_dir: str, folder: str) -> None:
    """Write a model of a known shape with random weights and another's tokenizer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_dir)
    fields = known_shapes()[shape]
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    config = AutoConfig.for_model(**fields, **ends, pad_token_id=tokenizer.pad_token_id)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with device:
        module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
