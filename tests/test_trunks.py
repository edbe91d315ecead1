"""Long beginnings that many conversations share."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from architectures import EAGER, GROUPED, SIZES, built
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.trunks import COUNT, LEAST, NOWHERE, PAGE, Place, Trunks
from sampling import finish, is_greedy, request, sampler, some_ids, tokens_read

CONTEXT = 2500
LONG: dict[str, Any] = GROUPED | {"max_position_embeddings": CONTEXT}
PROBE = [PAGE + 1, 1]
"""What a sampler reads to try whether a model sees trunks."""


def long_llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**LONG))


def eager_llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**LONG | EAGER))


def ungrouped_llama() -> torch.nn.Module:
    sizes: dict[str, Any] = SIZES | {"max_position_embeddings": CONTEXT}
    return LlamaForCausalLM(LlamaConfig(**sizes))


def windowed_mistral() -> torch.nn.Module:
    return MistralForCausalLM(MistralConfig(**LONG, sliding_window=600))


def openings() -> dict[int, list[int]]:
    """Two domains of three tickets each, the first two alike, and a short prompt."""
    rng = Random(0)
    domains = [some_ids(rng, length, length) for length in (1300, 1900)]
    tickets = [some_ids(rng, 40, 60) for _ in range(4)]
    found = [domain + ticket for domain in domains for ticket in (tickets[0], *tickets[:2])]
    return dict(enumerate([*found, tickets[3]]))


@pytest.mark.parametrize(
    ("builder", "graphs"),
    [
        (long_llama, False),
        (long_llama, True),
        (ungrouped_llama, False),
        (ungrouped_llama, True),
        (windowed_mistral, True),
        pytest.param(eager_llama, False, marks=pytest.mark.slow),
    ],
)
def test_turns_after_a_shared_beginning_equal_reading_everything_again(
    builder: Callable[[], torch.nn.Module], graphs: bool
) -> None:
    module, rng = built(builder), Random(1)
    engine = sampler(module, slots=5, context=CONTEXT, graphs=graphs)  # fewer than sequences
    histories = openings()
    for turn in range(3):
        for name, history in histories.items():
            append = some_ids(rng, 1, 60) if turn else history
            engine.submit([request(name, append, max_new_tokens=rng.randint(1, 9))])
            history += append if turn else []
        for name, completion in finish(engine, len(histories)).items():
            assert is_greedy(module, histories[name], completion.ids)
            histories[name] += completion.ids


def test_a_shared_beginning_is_read_once_and_rows_hold_the_rest() -> None:
    module = built(long_llama)
    engine, sizes = sampler(module, slots=8, context=CONTEXT), tokens_read(module)
    opening = some_ids(Random(0), 1330, 1330)
    engine.submit(request(name, [*opening, name, name]) for name in range(4))
    finish(engine, 4)
    kept = 1330 // PAGE * PAGE
    # One of the four reads what is left of the opening, and the others copy its row.
    assert sizes[:5] == [*PROBE, kept, 1331 - kept, 3]
    assert rows_of(engine) == [(4, 2, 64, 8)] * 2


def rows_of(engine: TransformersSampler) -> list[tuple[int, ...]]:
    return [tuple(buffer.shape) for buffer in engine._reader.cache._slot_layers[0].buffers]


def test_a_newcomer_with_another_ticket_uses_what_it_has_in_common() -> None:
    module = built(long_llama)
    engine, sizes = sampler(module, context=CONTEXT), tokens_read(module)
    rng = Random(0)
    opening = some_ids(rng, 1300, 1300)
    engine.submit([request(0, opening + some_ids(rng, 400, 400))])
    finish(engine, 1)
    sizes.clear()
    engine.submit([request(1, opening + some_ids(rng, 300, 300))])
    finish(engine, 1)
    assert sizes[0] == 1599 - 1300 // PAGE * PAGE


@pytest.mark.parametrize("graphs", [False, True])
def test_trunks_are_forgotten_with_the_last_sequence(graphs: bool) -> None:
    module, prompt = built(long_llama), some_ids(Random(0), 1300, 1300)
    engine = sampler(module, context=CONTEXT, graphs=graphs)
    for _ in range(2):
        engine.submit([request(0, prompt)])
        assert is_greedy(module, prompt, finish(engine, 1)[0].ids)
        engine.release(0)
        with torch.no_grad():
            for weight in module.parameters():
                weight.mul_(1.5)
    assert graphs or not engine._reader.trunks.layers


class Shelf:
    """Notes what is planted."""

    def __init__(self) -> None:
        self.planted: list[tuple[int, int]] = []

    def sees_trunks(self) -> bool:
        return True

    def plant(self, trunk: int, ids: Sequence[int]) -> None:
        self.planted.append((trunk, len(ids)))


def test_a_beginning_below_the_least_stays_in_its_row() -> None:
    shelf = Shelf()
    assert Trunks(shelf).place([1] * LEAST, ()) == NOWHERE
    assert Trunks(shelf).place([1] * (LEAST + 1), ()) == Place(0, LEAST)
    assert shelf.planted == [(0, LEAST)]


def test_a_conversation_that_shares_little_plants_its_own_beginning() -> None:
    shelf, rng = Shelf(), Random(0)
    trunks, long = Trunks(shelf), some_ids(rng, 3000, 3000)
    assert trunks.place(long, ()) == Place(0, 2816)
    assert trunks.place(long[:1500] + [0] * 600, {0}) == Place(0, 1280)  # most of it
    assert trunks.place(long[:1100] + some_ids(rng, 1900, 1900), {0}) == Place(1, 2816)


def test_where_no_place_is_free_what_is_shared_is_used_or_nothing() -> None:
    shelf, rng = Shelf(), Random(0)
    trunks, beginnings = Trunks(shelf), [some_ids(rng, 2000, 2000) for _ in range(COUNT + 1)]
    everyone = set(range(COUNT))
    assert [trunks.place(ids, everyone).trunk for ids in beginnings[:COUNT]] == sorted(everyone)
    assert trunks.place(beginnings[COUNT], everyone) == NOWHERE
    assert trunks.place(beginnings[3][:1030] + [0] * 2000, everyone) == Place(3, 1024)
    assert trunks.place(beginnings[COUNT], everyone - {5}) == Place(5, 1792)


def test_graphs_stay_while_the_cache_stays_where_it_is() -> None:
    module = built(long_llama)
    engine = sampler(module, slots=2, context=200, graphs=True)  # less than is reserved elsewhere
    engine.submit([request(0, [1, 2, 3], max_new_tokens=40)])
    finish(engine, 1)
    address = engine._reader.cache.address
    engine.submit([request(0, [4], max_new_tokens=40)])
    finish(engine, 1)
    assert engine._reader.cache.address == address
