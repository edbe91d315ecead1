"""A sampler over a small model, and the plain way to check what it writes."""

import time
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from architectures import CONTEXT, VOCABULARY
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.sampler import Completion, Request, Sampler

PATIENCE_S = 60.0


def request(sequence: int, append: Sequence[int], **changes: Any) -> Request:
    plain = Request(
        id=sequence,
        sequence=sequence,
        append=append,
        max_new_tokens=6,
        temperature=0.0,
        top_p=1.0,
        stop_ids=(),
        seed=0,
    )
    return plain._replace(**changes)


def sampler(
    module: torch.nn.Module, slots: int = 4, context: int = CONTEXT, *, graphs: bool = False
) -> TransformersSampler:
    return TransformersSampler(module, context=context, slots=slots, device="cpu", graphs=graphs)


def finish(engine: Sampler, count: int) -> dict[int, Completion]:
    done: dict[int, Completion] = {}
    given_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < given_up:
        done |= {completion.id: completion for completion in engine.poll()}
        if len(done) == count:
            return done
    raise AssertionError(f"{len(done)} of {count} replies after {PATIENCE_S} s")


def logits(module: torch.nn.Module, ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        output: Any = module(input_ids=torch.tensor([list(ids)]), use_cache=False)
    return output.logits[0]


def greedy(module: torch.nn.Module, ids: Sequence[int], count: int) -> list[int]:
    """The plain way: the whole conversation again for every token."""
    written = list(ids)
    for _ in range(count):
        written.append(int(logits(module, written)[-1].argmax()))
    return written[len(ids) :]


def is_greedy(module: torch.nn.Module, ids: Sequence[int], reply: Sequence[int]) -> bool:
    """Whether each token of the reply is the likeliest after everything before it."""
    likeliest = logits(module, [*ids, *reply]).argmax(-1).tolist()
    return list(reply) == likeliest[len(ids) - 1 : -1]


def some_ids(rng: Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]


def tokens_read(module: torch.nn.Module) -> list[int]:
    """A list that grows by the size of each forward pass."""
    sizes: list[int] = []

    def note(module: torch.nn.Module, positional: Any, named: dict[str, Any]) -> None:
        sizes.append(named["input_ids"].numel())

    module.register_forward_pre_hook(note, with_kwargs=True)
    return sizes
