"""A sampler over a small model, and full forward passes to check its completions."""

import time
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from architectures import CONTEXT, VOCABULARY
from grpo_cl.policy.inference.sampler import GenerationRequest, Sampler, TokenCompletion
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler

TIMEOUT_S = 60.0


def request(sequence: int, append: Sequence[int], **changes: Any) -> GenerationRequest:
    default = GenerationRequest(
        id=sequence,
        sequence=sequence,
        append=append,
        max_new_tokens=6,
        temperature=0.0,
        top_p=1.0,
        stop_ids=(),
        seed=0,
    )
    return default._replace(**changes)


def sampler(
    module: torch.nn.Module, slots: int = 4, context: int = CONTEXT, *, graphs: bool = False
) -> TransformersSampler:
    return TransformersSampler(module, context=context, slots=slots, device="cpu", graphs=graphs)


def finish(engine: Sampler, count: int) -> dict[int, TokenCompletion]:
    done: dict[int, TokenCompletion] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        done |= {completion.id: completion for completion in engine.poll()}
        if len(done) == count:
            return done
    raise AssertionError(f"{len(done)} of {count} replies after {TIMEOUT_S} s")


def logits(module: torch.nn.Module, ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        output: Any = module(input_ids=torch.tensor([list(ids)]), use_cache=False)
    return output.logits[0]


def greedy(module: torch.nn.Module, ids: Sequence[int], count: int) -> list[int]:
    """Greedy decoding with a full forward pass for every token."""
    sequence = list(ids)
    for _ in range(count):
        sequence.append(int(logits(module, sequence)[-1].argmax()))
    return sequence[len(ids) :]


def is_greedy(module: torch.nn.Module, ids: Sequence[int], reply: Sequence[int]) -> bool:
    """Whether each token of the reply has the highest logit given all before it."""
    argmax = logits(module, [*ids, *reply]).argmax(-1).tolist()
    return list(reply) == argmax[len(ids) - 1 : -1]


def some_ids(rng: Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]


def forward_sizes(module: torch.nn.Module) -> list[int]:
    """A list to which each forward pass adds its number of tokens."""
    sizes: list[int] = []

    def record(module: torch.nn.Module, positional: Any, named: dict[str, Any]) -> None:
        sizes.append(named["input_ids"].numel())

    module.register_forward_pre_hook(record, with_kwargs=True)
    return sizes
