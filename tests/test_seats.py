from random import Random

import pytest
import torch

from architectures import VOCABULARY, built, llama
from grpo_cl.policy.seats import SHARED_PREFIX
from grpo_cl.policy.slots import COPIED_BYTES, SlotCache, SlotLayer, Span
from sampling import (
    finish,
    is_greedy,
    request,
    sampler,
    some_ids,
    tokens_read,
)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return built(llama)


def test_one_row_serves_sequences_that_take_turns(model: torch.nn.Module) -> None:
    engine, histories = sampler(model, slots=1), {0: [1, 2, 3], 1: [4, 5]}
    for turn in range(3):
        for name, history in histories.items():
            append = [turn, name] if turn else history
            history += append if turn else []
            engine.submit([request(name, append)])
            ids = finish(engine, 1)[name].ids
            assert is_greedy(model, history, ids)
            history += ids


def test_a_running_reply_is_never_evicted_and_newcomers_wait(model: torch.nn.Module) -> None:
    engine = sampler(model, slots=1)
    engine.submit([request(0, [1], max_new_tokens=60), request(1, [2], max_new_tokens=1)])
    order: list[int] = []
    while len(order) < 2:
        order += [completion.id for completion in engine.poll()]
    assert order == [0, 1]


def test_episodes_that_begin_alike_read_the_beginning_once() -> None:
    module, opening = built(llama), list(range(VOCABULARY))
    engine, sizes = sampler(module, slots=8), tokens_read(module)
    prompts = [[*opening, index, index] for index in range(4)] + [[5, *opening]]
    engine.submit(request(index, ids, max_new_tokens=4) for index, ids in enumerate(prompts))
    done = finish(engine, len(prompts))
    assert sizes[:2] == [2 * 51, 3]  # the first of the four and the stranger; then one token each
    assert all(is_greedy(module, ids, done[index].ids) for index, ids in enumerate(prompts))


@pytest.mark.parametrize("graphs", [False, True])
def test_groups_of_eight_read_their_prompt_once_each(graphs: bool) -> None:
    module, rng = built(llama), Random(0)
    engine, sizes = sampler(module, slots=16, graphs=graphs), tokens_read(module)
    prompts = [some_ids(rng, length, length) for length in (60, 60)]
    engine.submit(request(name, prompts[name // 8]) for name in range(16))
    done = finish(engine, 16)
    read = [size for size in sizes if size > 1]  # one that graphs need to know the layers
    assert read[:2] == [2 * 59, 16]
    for group in range(2):
        written = [done[name].ids for name in range(8 * group, 8 * group + 8)]
        assert written == [written[0]] * 8
        assert is_greedy(module, prompts[group], written[0])


def test_a_newcomer_copies_the_longest_beginning_that_any_row_holds() -> None:
    module, prompt = built(llama), some_ids(Random(0), 90, 90)
    engine, sizes = sampler(module), tokens_read(module)
    for name, shared in enumerate((40, 70, 50)):
        engine.submit([request(name, [*prompt[:shared], 1 + prompt[shared], name])])
        finish(engine, 1)
    sizes.clear()
    engine.submit([request(3, prompt)])
    assert is_greedy(module, prompt, finish(engine, 1)[3].ids)
    assert sizes[0] == 89 - 70


def test_newcomers_copy_beginnings_of_different_lengths_in_one_go() -> None:
    module, rng = built(llama), Random(0)
    engine, sizes = sampler(module, slots=8), tokens_read(module)
    donors = [some_ids(rng, length, length) for length in (100, 45)]
    engine.submit(request(name, ids) for name, ids in enumerate(donors))
    finish(engine, 2)
    sizes.clear()
    prompts = {2: donors[1][:40] + [1] * 20, 3: donors[0][:80] + [2] * 20, 4: donors[1]}
    engine.submit(request(name, ids) for name, ids in prompts.items())
    done = finish(engine, 3)
    assert sizes[:2] == [2 * 19, 3]  # what is their own, all but the last token
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in prompts.items())


def test_nobody_waits_for_one_who_is_too_short_to_copy_from() -> None:
    module, prompt = built(llama), some_ids(Random(0), 60, 60)
    engine, sizes = sampler(module), tokens_read(module)
    prompts = [prompt[:SHARED_PREFIX], prompt]
    engine.submit(request(name, ids) for name, ids in enumerate(prompts))
    done = finish(engine, 2)
    assert sizes[:2] == [2 * 59, 2]
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in enumerate(prompts))


def test_rows_that_change_places_keep_all_they_hold() -> None:
    module, rng = built(llama), Random(0)
    engine, sizes = sampler(module, slots=6), tokens_read(module)
    histories = {name: some_ids(rng, 5 + 11 * name, 5 + 11 * name) for name in range(6)}
    engine.submit(request(name, ids) for name, ids in histories.items())
    for name, completion in finish(engine, 6).items():
        histories[name] += completion.ids
    for names in ((2, 4, 5), (0, 1, 3), (5, 0), (1, 2, 3, 4)):
        sizes.clear()
        engine.submit(request(name, [7, name]) for name in names)
        done = finish(engine, len(names))
        assert sizes[0] == 2 * len(names)  # the last token written and one of the two
        for name in names:
            histories[name] += [7, name]
            assert is_greedy(module, histories[name], done[name].ids)
            histories[name] += done[name].ids


def filled(rows: int, length: int) -> SlotCache:
    """A cache of two layers whose tokens are all different."""
    cache = SlotCache(8, 64)
    rows_N = torch.arange(rows).repeat_interleave(length)
    positions_N = torch.arange(length).repeat(rows)
    cache.place(Span(slice(0, rows), rows_N, positions_N, None, rows, length))
    for layer in range(2):
        states = torch.randn(rows, 2, length, 4)
        cache.update(states, -states, layer)
    return cache


def test_rows_copied_at_once_go_round_and_to_rows_that_were_not_there() -> None:
    cache = filled(rows=4, length=10)
    before = [[buffer.clone() for buffer in cache.layer(number)] for number in range(2)]
    moves = {0: 1, 1: 3, 3: 0}  # a round of three
    cache.copy([*moves, 2, 2], [*moves.values(), 4, 6], length=6)
    for number in range(2):
        for was, now in zip(before[number], cache.layer(number), strict=True):
            assert all(now[new, :, :6].equal(was[old, :, :6]) for old, new in moves.items())
            assert all(now[new, :, :6].equal(was[2, :, :6]) for new in (2, 4, 6))
            assert now[:4, :, 6:].equal(was[:4, :, 6:])


def test_rows_are_copied_where_they_are_because_graphs_know_the_place() -> None:
    cache = filled(rows=4, length=10)
    places = [buffer.data_ptr() for number in range(2) for buffer in cache.layer(number)]
    cache.copy([0, 3, 1], [3, 0, 2], length=10)
    assert places == [buffer.data_ptr() for number in range(2) for buffer in cache.layer(number)]


def test_of_many_long_rows_some_tokens_are_copied_at_a_time() -> None:
    layer, tokens = SlotLayer(2, 4), torch.arange(8.0, dtype=torch.double).reshape(2, 1, 4, 1)
    width = COPIED_BYTES // (2 * 2 * tokens.itemsize)  # two rows of two tokens, and no more
    layer.buffers = [tokens.repeat(1, 1, 1, width)]
    layer.copy(torch.tensor([0, 1]), torch.tensor([1, 0]), 3)
    for place in (0, width - 1):
        assert layer.buffers[0][:, 0, :, place].tolist() == [[4, 5, 6, 3], [0, 1, 2, 7]]


def test_memory_is_given_back_with_the_last_sequence(model: torch.nn.Module) -> None:
    engine = sampler(model)
    engine.submit([request(0, [1, 2, 3]), request(1, [4])])
    finish(engine, 2)
    engine.release(0)
    assert len(engine._reader.cache.layers) == 2
    engine.release(1)
    assert not engine._reader.cache.layers


def test_the_cache_grows_with_what_is_used(model: torch.nn.Module) -> None:
    engine = sampler(model, slots=100)
    engine.submit([request(0, [1] * 70), request(1, [2]), request(2, [3])])
    finish(engine, 3)
    buffers = engine._reader.cache._slot_layers[0].buffers
    assert [tuple(buffer.shape) for buffer in buffers] == [(4, 2, 128, 8)] * 2
