from random import Random

import pytest
import torch

from architectures import VOCABULARY, built, llama
from grpo_cl.policy.inference.slot_scheduler import (
    MIN_SHARED_PREFIX,
    SequenceState,
    SlotScheduler,
    slot_prefixes,
)
from grpo_cl.policy.kernels.kv_cache import (
    COPIED_BYTES,
    KVCache,
    KVCacheLayer,
    SlotPrefix,
    WritePlan,
)
from sampling import (
    finish,
    forward_sizes,
    is_greedy,
    request,
    sampler,
    some_ids,
)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return built(llama)


def test_one_slot_serves_sequences_that_alternate(model: torch.nn.Module) -> None:
    engine, histories = sampler(model, slots=1), {0: [1, 2, 3], 1: [4, 5]}
    for turn in range(3):
        for name, history in histories.items():
            append = [turn, name] if turn else history
            history += append if turn else []
            engine.submit([request(name, append)])
            ids = finish(engine, 1)[name].ids
            assert is_greedy(model, history, ids)
            history += ids


def test_running_sequence_is_never_evicted_and_new_ones_wait(model: torch.nn.Module) -> None:
    engine = sampler(model, slots=1)
    engine.submit([request(0, [1], max_new_tokens=60), request(1, [2], max_new_tokens=1)])
    order: list[int] = []
    while len(order) < 2:
        order += [completion.id for completion in engine.poll()]
    assert order == [0, 1]


def test_shared_prefix_is_prefilled_once() -> None:
    module, shared = built(llama), list(range(VOCABULARY))
    engine, sizes = sampler(module, slots=8), forward_sizes(module)
    prompts = [[*shared, index, index] for index in range(4)] + [[5, *shared]]
    engine.submit(request(index, ids, max_new_tokens=4) for index, ids in enumerate(prompts))
    done = finish(engine, len(prompts))
    assert sizes[:2] == [
        2 * 51,
        3,
    ]  # the leader of the four and the other prompt; then one token each
    assert all(is_greedy(module, ids, done[index].ids) for index, ids in enumerate(prompts))


@pytest.mark.parametrize("graphs", [False, True])
def test_prompt_of_each_group_is_prefilled_once(graphs: bool) -> None:
    module, rng = built(llama), Random(0)
    engine, sizes = sampler(module, slots=16, graphs=graphs), forward_sizes(module)
    prompts = [some_ids(rng, length, length) for length in (60, 60)]
    engine.submit(request(name, prompts[name // 8]) for name in range(16))
    done = finish(engine, 16)
    passes = [
        size for size in sizes if size > 1
    ]  # graphs create the layers with a pass of one token
    assert passes[:2] == [2 * 59, 16]
    for group in range(2):
        completions = [done[name].ids for name in range(8 * group, 8 * group + 8)]
        assert completions == [completions[0]] * 8
        assert is_greedy(module, prompts[group], completions[0])


def test_new_sequence_copies_the_longest_prefix_of_any_slot() -> None:
    module, prompt = built(llama), some_ids(Random(0), 90, 90)
    engine, sizes = sampler(module), forward_sizes(module)
    for name, shared in enumerate((40, 70, 50)):
        engine.submit([request(name, [*prompt[:shared], 1 + prompt[shared], name])])
        finish(engine, 1)
    sizes.clear()
    engine.submit([request(3, prompt)])
    assert is_greedy(module, prompt, finish(engine, 1)[3].ids)
    assert sizes[0] == 89 - 70


def test_prefixes_of_different_lengths_are_copied_in_one_call() -> None:
    module, rng = built(llama), Random(0)
    engine, sizes = sampler(module, slots=8), forward_sizes(module)
    sources = [some_ids(rng, length, length) for length in (100, 45)]
    engine.submit(request(name, ids) for name, ids in enumerate(sources))
    finish(engine, 2)
    sizes.clear()
    prompts = {2: sources[1][:40] + [1] * 20, 3: sources[0][:80] + [2] * 20, 4: sources[1]}
    engine.submit(request(name, ids) for name, ids in prompts.items())
    done = finish(engine, 3)
    assert sizes[:2] == [2 * 19, 3]  # the tokens after the prefix, all but the last
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in prompts.items())


def waiting(name: int, ids: list[int]) -> SequenceState:
    return SequenceState(name, ids, is_waiting=True)


def prefilled(scheduler: SlotScheduler, *sequences: SequenceState) -> None:
    """Give slots to the sequences, copy what others hold and prefill the rest."""
    scheduler.admit(sequences)
    scheduler.copy_shared_prefixes(sequences)
    for state in sequences:
        state.num_cached = len(state.ids) - 1


def test_copies_of_a_prompt_are_read_from_one_slot() -> None:
    scheduler, prompt = SlotScheduler(KVCache(8, 256), 8), list(range(100))
    first, other = waiting(0, [*prompt, 1, 2]), waiting(1, list(range(500, 600)))
    second, third = waiting(2, [*prompt, 3]), waiting(3, [*prompt[:50], 4, 5])
    prefilled(scheduler, first, other)
    prefilled(scheduler, second, third)
    running = [first, other, second, third]
    assert slot_prefixes(running) == [(0, 101), (1, 99), (0, 100), (0, 50)]
    assert slot_prefixes([second, third]) == [(2, 100), (2, 50)]
    scheduler.free(first)
    new = waiting(4, [7, *prompt])
    prefilled(scheduler, new)
    assert new.slot == 0
    assert slot_prefixes([new, second, third]) == [(0, 100), (2, 100), (2, 50)]


def test_a_copy_of_more_than_the_prompt_is_not_read_from_the_prompts_slot() -> None:
    scheduler, prompt = SlotScheduler(KVCache(8, 256), 8), list(range(100))
    first, second = waiting(0, prompt), waiting(1, [*prompt, 1])
    prefilled(scheduler, first)
    prefilled(scheduler, second)
    third = waiting(2, [*prompt, 1, 2])
    second.ids += [8, 9]
    second.num_cached += 2
    third.ids = [*second.ids, 3]
    prefilled(scheduler, third)
    assert slot_prefixes([first, second, third])[1:] == [SlotPrefix(0, 99), SlotPrefix(2, 102)]


def test_sequence_does_not_wait_for_a_leader_that_is_too_short_to_copy() -> None:
    module, prompt = built(llama), some_ids(Random(0), 60, 60)
    engine, sizes = sampler(module), forward_sizes(module)
    prompts = [prompt[:MIN_SHARED_PREFIX], prompt]
    engine.submit(request(name, ids) for name, ids in enumerate(prompts))
    done = finish(engine, 2)
    assert sizes[:2] == [2 * 59, 2]
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in enumerate(prompts))


def test_sequences_that_swap_slots_keep_their_cache() -> None:
    module, rng = built(llama), Random(0)
    engine, sizes = sampler(module, slots=6), forward_sizes(module)
    histories = {name: some_ids(rng, 5 + 11 * name, 5 + 11 * name) for name in range(6)}
    engine.submit(request(name, ids) for name, ids in histories.items())
    for name, completion in finish(engine, 6).items():
        histories[name] += completion.ids
    for names in ((2, 4, 5), (0, 1, 3), (5, 0), (1, 2, 3, 4)):
        sizes.clear()
        engine.submit(request(name, [7, name]) for name in names)
        done = finish(engine, len(names))
        assert sizes[0] == 2 * len(names)  # the last sampled token and one of the two
        for name in names:
            histories[name] += [7, name]
            assert is_greedy(module, histories[name], done[name].ids)
            histories[name] += done[name].ids


def filled(rows: int, length: int) -> KVCache:
    """A cache of two layers in which all keys differ."""
    cache = KVCache(8, 64)
    rows_N = torch.arange(rows).repeat_interleave(length)
    positions_N = torch.arange(length).repeat(rows)
    cache.set_write_plan(WritePlan(slice(0, rows), rows_N, positions_N, None, rows, length))
    for layer in range(2):
        states = torch.randn(rows, 2, length, 4)
        cache.update(states, -states, layer)
    return cache


def test_copies_may_form_a_cycle_and_may_go_to_new_rows() -> None:
    cache = filled(rows=4, length=10)
    before = [[buffer.clone() for buffer in cache.layer(number)] for number in range(2)]
    moves = {0: 1, 1: 3, 3: 0}  # a cycle of three
    cache.copy([*moves, 2, 2], [*moves.values(), 4, 6], length=6)
    for number in range(2):
        for was, now in zip(before[number], cache.layer(number), strict=True):
            assert all(now[new, :, :6].equal(was[old, :, :6]) for old, new in moves.items())
            assert all(now[new, :, :6].equal(was[2, :, :6]) for new in (2, 4, 6))
            assert now[:4, :, 6:].equal(was[:4, :, 6:])


def test_copies_keep_the_buffer_address_that_graphs_use() -> None:
    cache = filled(rows=4, length=10)
    addresses = [buffer.data_ptr() for number in range(2) for buffer in cache.layer(number)]
    cache.copy([0, 3, 1], [3, 0, 2], length=10)
    assert addresses == [buffer.data_ptr() for number in range(2) for buffer in cache.layer(number)]


def test_large_copies_are_split_by_tokens() -> None:
    layer, tokens = KVCacheLayer(2, 4), torch.arange(8.0, dtype=torch.double).reshape(2, 1, 4, 1)
    width = COPIED_BYTES // (2 * 2 * tokens.itemsize)  # two rows of two tokens fill the limit
    layer.buffers = [tokens.repeat(1, 1, 1, width)]
    layer.copy(torch.tensor([0, 1]), torch.tensor([1, 0]), 3)
    for column in (0, width - 1):
        assert layer.buffers[0][:, 0, :, column].tolist() == [[4, 5, 6, 3], [0, 1, 2, 7]]


def test_releasing_the_last_sequence_frees_the_cache(model: torch.nn.Module) -> None:
    engine = sampler(model)
    engine.submit([request(0, [1, 2, 3]), request(1, [4])])
    finish(engine, 2)
    engine.release(0)
    assert len(engine._runner.cache.layers) == 2
    engine.release(1)
    assert not engine._runner.cache.layers


def test_cache_grows_with_its_use(model: torch.nn.Module) -> None:
    engine = sampler(model, slots=100)
    engine.submit([request(0, [1] * 70), request(1, [2]), request(2, [3])])
    finish(engine, 3)
    buffers = engine._runner.cache._kv_layers[0].buffers
    assert [tuple(buffer.shape) for buffer in buffers] == [(4, 2, 128, 8)] * 2


def test_results_that_episodes_share_are_prefilled_once_until_the_episodes_differ() -> None:
    module, prompt, result = built(llama), list(range(40)), list(range(45))
    engine, sizes = sampler(module, slots=4), forward_sizes(module)
    engine.submit(request(name, prompt, max_new_tokens=2) for name in range(3))
    replies = finish(engine, 3)
    histories = [[*prompt, *replies[name].ids] for name in range(3)]
    assert histories[0] == histories[1] == histories[2]  # greedy
    del sizes[:]
    other = [*result[:20], 7, 7, *result[22:]]  # fewer shared tokens than are worth a copy
    appended = [result, [*result[:40], 3], other]
    engine.submit(request(name, ids, max_new_tokens=1) for name, ids in enumerate(appended))
    done = finish(engine, 3)
    assert sizes == [2 * 45, 3]  # the second copies from the first; then one token each
    for name, ids in enumerate(appended):
        assert is_greedy(module, [*histories[name], *ids], done[name].ids)
