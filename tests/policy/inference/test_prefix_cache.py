"""Long prompt prefixes that many sequences share."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from architectures import EAGER, GROUPED, SIZES, built
from grpo_cl.gpu_memory.constants import MAX_PREFIXES, MIN_PREFIX, PAGE_SIZE
from grpo_cl.policy.inference.prefix_cache import PrefixCache
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.kernels.prefix_view import (
    NO_PREFIX,
    PrefixRef,
)
from sampling import finish, forward_sizes, is_greedy, request, sampler, some_ids

CONTEXT = 2500
LONG: dict[str, Any] = GROUPED | {"max_position_embeddings": CONTEXT}
PROBE = [PAGE_SIZE + 1, 1]
"""Sizes of the forward passes that probe a model's support of the prefix cache."""


def long_llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**LONG))


def eager_llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**LONG | EAGER))


def ungrouped_llama() -> torch.nn.Module:
    sizes: dict[str, Any] = SIZES | {"max_position_embeddings": CONTEXT}
    return LlamaForCausalLM(LlamaConfig(**sizes))


def windowed_mistral() -> torch.nn.Module:
    return MistralForCausalLM(MistralConfig(**LONG, sliding_window=600))


def prompts() -> dict[int, list[int]]:
    """Two domains of three tickets each, of which the first two are equal, and a short prompt."""
    rng = Random(0)
    domains = [some_ids(rng, length, length) for length in (1300, 1900)]
    tickets = [some_ids(rng, 40, 60) for _ in range(4)]
    long = [domain + ticket for domain in domains for ticket in (tickets[0], *tickets[:2])]
    return dict(enumerate([*long, tickets[3]]))


@pytest.mark.parametrize(
    ("builder", "graphs"),
    [
        (long_llama, False),
        (long_llama, True),
        pytest.param(ungrouped_llama, False, marks=pytest.mark.slow),
        pytest.param(ungrouped_llama, True, marks=pytest.mark.slow),
        pytest.param(windowed_mistral, True, marks=pytest.mark.slow),
        pytest.param(eager_llama, False, marks=pytest.mark.slow),
    ],
)
def test_turns_after_a_shared_prefix_equal_a_full_forward_pass(
    builder: Callable[[], torch.nn.Module], graphs: bool
) -> None:
    module, rng = built(builder), Random(1)
    engine = sampler(module, slots=5, context=CONTEXT, graphs=graphs)  # fewer than sequences
    histories = prompts()
    for turn in range(3):
        for name, history in histories.items():
            append = some_ids(rng, 1, 60) if turn else history
            engine.submit([request(name, append, max_new_tokens=rng.randint(1, 9))])
            history += append if turn else []
        for name, completion in finish(engine, len(histories)).items():
            assert is_greedy(module, histories[name], completion.ids)
            histories[name] += completion.ids


def test_a_shared_prefix_is_prefilled_once_and_slots_hold_the_suffixes() -> None:
    module = built(long_llama)
    engine, sizes = sampler(module, slots=8, context=CONTEXT), forward_sizes(module)
    common = some_ids(Random(0), 1330, 1330)
    engine.submit(request(name, [*common, name, name]) for name in range(4))
    finish(engine, 4)
    shared = 1330 // PAGE_SIZE * PAGE_SIZE
    # One of the four prefills the rest of the common tokens, and the others copy its slot.
    assert sizes[:5] == [*PROBE, shared, 1331 - shared, 3]
    assert buffer_shapes(engine) == [(4, 2, 64, 8)] * 2


def buffer_shapes(engine: TransformersSampler) -> list[tuple[int, ...]]:
    return [tuple(buffer.shape) for buffer in engine._runner.cache._kv_layers[0].buffers]


def test_a_later_sequence_uses_the_pages_it_has_in_common() -> None:
    module = built(long_llama)
    engine, sizes = sampler(module, context=CONTEXT), forward_sizes(module)
    rng = Random(0)
    common = some_ids(rng, 1300, 1300)
    engine.submit([request(0, common + some_ids(rng, 400, 400))])
    finish(engine, 1)
    sizes.clear()
    engine.submit([request(1, common + some_ids(rng, 300, 300))])
    finish(engine, 1)
    assert sizes[0] == 1599 - 1300 // PAGE_SIZE * PAGE_SIZE


@pytest.mark.parametrize("graphs", [False, True])
def test_prefixes_are_dropped_with_the_last_sequence(graphs: bool) -> None:
    module, prompt = built(long_llama), some_ids(Random(0), 1300, 1300)
    engine = sampler(module, context=CONTEXT, graphs=graphs)
    for _ in range(2):
        engine.submit([request(0, prompt)])
        assert is_greedy(module, prompt, finish(engine, 1)[0].ids)
        engine.release(0)
        with torch.no_grad():
            for weight in module.parameters():
                weight.mul_(1.5)
    assert graphs or not engine._runner.prefix_kv.layers


class RecordingRunner:
    """Records slot and length of each prefilled prefix."""

    def __init__(self) -> None:
        self.prefilled: list[tuple[int, int]] = []

    def supports_prefix_cache(self) -> bool:
        return True

    def prefill_prefix(self, slot: int, ids: Sequence[int]) -> None:
        self.prefilled.append((slot, len(ids)))


def test_a_prefix_below_the_minimum_is_not_shared() -> None:
    runner = RecordingRunner()
    assert PrefixCache(runner).find_or_prefill([1] * MIN_PREFIX, ()) == NO_PREFIX
    found = PrefixCache(runner).find_or_prefill([1] * (MIN_PREFIX + 1), ())
    assert found == PrefixRef(0, MIN_PREFIX)
    assert runner.prefilled == [(0, MIN_PREFIX)]


def test_a_sequence_with_a_short_cached_prefix_prefills_its_own() -> None:
    cache, rng = PrefixCache(RecordingRunner()), Random(0)
    long = some_ids(rng, 3000, 3000)
    assert cache.find_or_prefill(long, ()) == PrefixRef(0, 2816)
    mostly_cached = long[:1500] + [0] * 600
    assert cache.find_or_prefill(mostly_cached, {0}) == PrefixRef(0, 1280)
    hardly_cached = long[:1100] + some_ids(rng, 1900, 1900)
    assert cache.find_or_prefill(hardly_cached, {0}) == PrefixRef(1, 2816)


def test_without_a_free_slot_a_cached_prefix_is_used_or_none() -> None:
    cache, rng = PrefixCache(RecordingRunner()), Random(0)
    prompts = [some_ids(rng, 2000, 2000) for _ in range(MAX_PREFIXES + 1)]
    slots = set(range(MAX_PREFIXES))
    found = [cache.find_or_prefill(ids, slots).slot for ids in prompts[:MAX_PREFIXES]]
    assert found == sorted(slots)
    assert cache.find_or_prefill(prompts[-1], slots) == NO_PREFIX
    partly_cached = prompts[3][:1030] + [0] * 2000
    assert cache.find_or_prefill(partly_cached, slots) == PrefixRef(3, 1024)
    assert cache.find_or_prefill(prompts[-1], slots - {5}) == PrefixRef(5, 1792)


def test_the_reserved_cache_keeps_its_address() -> None:
    module = built(long_llama)
    engine = sampler(module, slots=2, context=200, graphs=True)  # below the usual reservation
    engine.submit([request(0, [1, 2, 3], max_new_tokens=40)])
    finish(engine, 1)
    address = engine._runner.cache.address
    engine.submit([request(0, [4], max_new_tokens=40)])
    finish(engine, 1)
    assert engine._runner.cache.address == address
