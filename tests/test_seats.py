import pytest
import torch

from architectures import VOCABULARY, built, llama
from sampling import (
    finish,
    is_greedy,
    request,
    sampler,
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
