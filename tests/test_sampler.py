import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from architectures import BUILDERS, CONTEXT, GROUPED, SIZES, built, llama
from grpo_cl.errors import ConfigError, ContextFullError
from grpo_cl.policy.local import PREFILL_TOKENS
from grpo_cl.policy.sampler import Sampler
from sampling import (
    finish,
    greedy,
    is_greedy,
    logits,
    request,
    sampler,
    some_ids,
    tokens_read,
)
from serving import remote_sampler

Make = Callable[..., Sampler]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return built(llama)


@pytest.fixture(params=["transformers", "graphs", "server"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Every sampler: in process by tokens and by graphs, and over a real server on loopback."""
    with ExitStack() as stack:

        def build(module: torch.nn.Module, slots: int = 4, context: int = CONTEXT) -> Sampler:
            if request.param != "server":
                return sampler(module, slots, context, graphs=request.param == "graphs")
            return stack.enter_context(remote_sampler(module, slots=slots, context=context))

        yield build


@pytest.mark.parametrize("builder", BUILDERS)
def test_greedy_turns_equal_reading_everything_again(
    builder: Callable[[], torch.nn.Module],
) -> None:
    module, rng = built(builder), Random(0)
    engine = sampler(module, slots=2)  # fewer than sequences, so rows are lost and made again
    histories: list[list[int]] = [[] for _ in range(5)]
    for _ in range(3):
        lengths = [rng.randint(1, 9) for _ in histories]
        for index, history in enumerate(histories):
            append = some_ids(rng, 1, 25)
            history += append
            engine.submit([request(index, append, max_new_tokens=lengths[index])])
        done = finish(engine, len(histories))
        for index, history in enumerate(histories):
            assert len(done[index].ids) == lengths[index]
            assert is_greedy(module, history, done[index].ids)
            history += done[index].ids


def test_sequences_that_come_and_go_do_not_change_each_other(
    model: torch.nn.Module, make: Make
) -> None:
    rng, engine = Random(3), make(model, slots=3)
    histories: dict[int, list[int]] = {}
    waiting: set[int] = set()
    for moment in range(40):
        if moment % 3 == 0:
            histories[moment] = []
        for name in [name for name in histories if name not in waiting and rng.random() < 0.6]:
            if len(histories[name]) > 120:
                engine.release(name)
                del histories[name]
                continue
            append = some_ids(rng, 1, 12)
            histories[name] += append
            waiting.add(name)
            engine.submit([request(name, append, max_new_tokens=rng.randint(1, 20))])
        for completion in engine.poll():
            history = histories[completion.id]
            assert is_greedy(model, history, completion.ids)
            history += completion.ids
            waiting.discard(completion.id)


def test_a_later_turn_reads_only_what_is_new() -> None:
    module = built(llama)
    engine, sizes = sampler(module), tokens_read(module)
    engine.submit([request(0, list(range(40)), max_new_tokens=3)])
    finish(engine, 1)
    assert sizes == [39, 1, 1, 1]  # the last token of a prompt is read when the reply begins
    sizes.clear()
    engine.submit([request(0, [7] * 10, max_new_tokens=2)])
    finish(engine, 1)
    assert sizes == [10, 1, 1]  # the reply's last token and nine of the ten


def test_a_prompt_longer_than_one_pass_is_read_in_pieces() -> None:
    sizes: dict[str, Any] = SIZES | {"hidden_size": 8, "num_attention_heads": 1}
    sizes |= {"num_hidden_layers": 1, "max_position_embeddings": 5000}
    module = built(lambda: LlamaForCausalLM(LlamaConfig(**sizes)))
    read = tokens_read(module)
    ids = some_ids(Random(0), 4200, 4200)
    engine = sampler(module, context=5000)
    engine.submit([request(0, ids, max_new_tokens=2)])
    written = finish(engine, 1)[0].ids
    assert read[2:] == [PREFILL_TOKENS, 4199 - PREFILL_TOKENS, 1, 1]  # after a trial
    assert is_greedy(module, ids, written)


def test_where_passes_are_dear_prompts_of_all_lengths_share_one() -> None:
    module, rng = built(llama), Random(0)
    engine, sizes = sampler(module), tokens_read(module)
    engine._free = 1000  # as on a GPU
    prompts = [some_ids(rng, length, length) for length in (3, 90, 25)]
    engine.submit(request(name, ids) for name, ids in enumerate(prompts))
    done = finish(engine, len(prompts))
    assert sizes[0] == 3 * 89
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in enumerate(prompts))


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.3, 0.6)])
def test_logprobs_are_those_of_a_plain_forward_pass(
    model: torch.nn.Module, make: Make, temperature: float, top_p: float
) -> None:
    engine, rng, histories = make(model), Random(1), [[0], [1], [2]]
    warm = {"temperature": temperature, "top_p": top_p, "max_new_tokens": 12}
    for turn in range(3):
        for index, history in enumerate(histories):
            append = some_ids(rng, 1, 20)
            history += append
            first = [index] if turn == 0 else []
            engine.submit([request(index, first + append, seed=7 * turn + index, **warm)])
        for index, completion in finish(engine, 3).items():
            history = histories[index]
            start = len(history)
            history += completion.ids
            plain = (logits(model, history) / temperature).log_softmax(-1)
            picked = plain[start - 1 : -1].gather(1, torch.tensor(completion.ids)[:, None])
            assert completion.logprobs == pytest.approx(picked[:, 0].tolist(), abs=1e-4)


def test_greedy_logprobs_are_at_temperature_one(model: torch.nn.Module, make: Make) -> None:
    engine = make(model)
    engine.submit([request(0, [1, 2, 3], max_new_tokens=1)])
    (completion,) = finish(engine, 1).values()
    expected = logits(model, [1, 2, 3])[-1].log_softmax(-1).max()
    assert completion.logprobs == pytest.approx([float(expected)], abs=1e-4)


def test_a_reply_depends_on_its_seed_and_not_on_batch_mates(
    model: torch.nn.Module, make: Make
) -> None:
    warm = {"temperature": 1.0, "max_new_tokens": 20}
    alone = make(model)
    alone.submit([request(0, [1, 2, 3], seed=11, **warm)])
    expected = finish(alone, 1)[0]
    crowd = make(model, slots=8)
    others = [request(n, [n] * n, seed=n, temperature=0.5 * (n % 3)) for n in range(1, 6)]
    crowd.submit([*others, request(0, [1, 2, 3], seed=11, **warm)])
    done = finish(crowd, 6)
    assert done[0].ids == expected.ids
    assert done[0].logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    alone.release(0)
    alone.submit([request(0, [1, 2, 3], seed=12, **warm)])
    assert finish(alone, 1)[0].ids != expected.ids


def test_graphs_write_the_tokens_that_single_steps_write() -> None:
    sizes: dict[str, Any] = GROUPED | {"max_position_embeddings": 700}
    module = built(lambda: LlamaForCausalLM(LlamaConfig(**sizes)))
    requests = [
        request(name, [name] * (30 + name), temperature=1.0, seed=name, max_new_tokens=290 + name)
        for name in range(3)
    ]  # past one size of graph and into the next
    written: list[dict[int, Any]] = []
    for graphs in (False, True):
        engine = sampler(module, context=700, graphs=graphs)
        engine.submit(requests)
        written.append(finish(engine, len(requests)))
    assert [written[1][name].ids for name in range(3)] == [
        written[0][name].ids for name in range(3)
    ]


def test_a_reply_ends_with_a_stop_id_or_at_a_limit(model: torch.nn.Module, make: Make) -> None:
    written = greedy(model, [1, 2, 3], 6)
    stop = written[3]
    end = written.index(stop) + 1
    engine = make(model, context=10)
    engine.submit([request(0, [1, 2, 3], stop_ids=(stop,))])
    engine.submit([request(1, [1, 2, 3], max_new_tokens=2)])
    engine.submit([request(2, [1, 2, 3], max_new_tokens=100)])
    done = finish(engine, 3)
    assert (done[0].ids, done[0].reason) == (written[:end], "stop")
    assert (done[1].ids, done[1].reason) == (written[:2], "length")
    assert (len(done[2].ids), done[2].reason) == (7, "length")  # three and seven fill ten


def test_a_released_sequence_begins_anew_and_its_request_is_dropped(
    model: torch.nn.Module,
    make: Make,
) -> None:
    engine = make(model)
    engine.submit([request(0, [1, 2, 3]), request(1, [4])])
    engine.release(0)
    assert set(finish(engine, 1)) == {1}
    assert engine.poll() == []
    engine.submit([request(0, [9])])
    assert finish(engine, 1)[0].ids == greedy(model, [9], 6)


def test_the_model_is_left_as_it_was(model: torch.nn.Module) -> None:
    config: Any = model.config
    model.train()
    engine = sampler(model)
    engine.submit([request(0, [1, 2, 3])])
    finish(engine, 1)
    assert model.training
    assert config._attn_implementation == "sdpa"
    model.eval()


def test_half_precision_models_are_sampled_in_half_precision() -> None:
    engine = sampler(built(llama).to(torch.bfloat16))
    engine.submit([request(0, [1, 2, 3], temperature=1.0)])
    assert len(finish(engine, 1)[0].ids) == 6
    assert engine._reader.cache._slot_layers[0].buffers[0].dtype == torch.bfloat16


def test_a_second_request_for_a_busy_sequence_is_refused(
    model: torch.nn.Module, make: Make
) -> None:
    engine = make(model)
    engine.submit([request(0, [1])])
    with pytest.raises(ValueError, match="sequence 0 already waits"):
        engine.submit([request(0, [2])])


@pytest.mark.parametrize("append", [[], [1] * 256])
def test_a_prompt_must_fit_and_not_be_empty(
    model: torch.nn.Module, make: Make, append: list[int]
) -> None:
    with pytest.raises(ContextFullError, match=r"sequence 0 would have \d+ tokens"):
        make(model).submit([request(0, append)])


def test_layers_without_keys_and_values_are_refused(model: torch.nn.Module) -> None:
    module = built(lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)))
    config: Any = module.config
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ConfigError, match="layers of kind linear_attention"):
        sampler(module)


def test_diverged_weights_are_named(model: torch.nn.Module) -> None:
    module = built(llama)
    with torch.no_grad():
        next(module.parameters()).fill_(math.nan)
    engine = sampler(module)
    engine.submit([request(0, [1, 2])])
    with pytest.raises(FloatingPointError, match="lower learning_rate"):
        engine.poll()


def test_an_attention_that_takes_no_masks_is_refused() -> None:
    class FlashOnlyLlama(LlamaForCausalLM):
        _supports_sdpa = False

    module = built(lambda: FlashOnlyLlama(LlamaConfig(**GROUPED)))
    config: Any = module.config
    sampler(module)  # loaded with eager attention, which takes them
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="load the model with flash_attention=false"):
        sampler(module)
