import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from architectures import BUILDERS, CONTEXT, GROUPED, SIZES, built, llama
from grpo_cl.errors import ConfigError, ContextFullError, TrainingError
from grpo_cl.gpu_memory.constants import GRAPH_STEPS
from grpo_cl.policy.inference.sampler import Sampler
from grpo_cl.policy.inference.transformers_sampler import PREFILL_TOKENS
from sampling import (
    finish,
    forward_sizes,
    greedy,
    is_greedy,
    logits,
    request,
    sampler,
    some_ids,
)
from serving import remote_sampler

Make = Callable[..., Sampler]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return built(llama)


@pytest.fixture(params=["transformers", "graphs", "server"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Every sampler: in process, eagerly and with graphs, and over a real server on loopback."""
    with ExitStack() as stack:

        def build(module: torch.nn.Module, slots: int = 4, context: int = CONTEXT) -> Sampler:
            if request.param != "server":
                return sampler(module, slots, context, graphs=request.param == "graphs")
            return stack.enter_context(remote_sampler(module, slots=slots, context=context))

        yield build


@pytest.mark.parametrize("builder", BUILDERS)
def test_greedy_completions_equal_those_without_a_cache(
    builder: Callable[[], torch.nn.Module],
) -> None:
    module, rng = built(builder), Random(0)
    engine = sampler(module, slots=2)  # fewer than sequences, so that some are evicted
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


def test_sequences_that_arrive_and_leave_do_not_affect_each_other(
    model: torch.nn.Module, make: Make
) -> None:
    rng, engine = Random(3), make(model, slots=3)
    histories: dict[int, list[int]] = {}
    waiting: set[int] = set()
    for time in range(40):
        if time % 3 == 0:
            histories[time] = []
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


def test_later_turn_prefills_only_new_tokens() -> None:
    module = built(llama)
    engine, sizes = sampler(module), forward_sizes(module)
    engine.submit([request(0, list(range(40)), max_new_tokens=3)])
    finish(engine, 1)
    assert sizes == [39, 1, 1, 1]  # decoding feeds the last token of a prompt
    sizes.clear()
    engine.submit([request(0, [7] * 10, max_new_tokens=2)])
    finish(engine, 1)
    assert sizes == [10, 1, 1]  # the completion's last token and nine of the ten


def test_prompt_longer_than_one_pass_is_prefilled_in_chunks() -> None:
    sizes: dict[str, Any] = SIZES | {"hidden_size": 8, "num_attention_heads": 1}
    sizes |= {"num_hidden_layers": 1, "max_position_embeddings": 5000}
    module = built(lambda: LlamaForCausalLM(LlamaConfig(**sizes)))
    passes = forward_sizes(module)
    ids = some_ids(Random(0), 4200, 4200)
    engine = sampler(module, context=5000)
    engine.submit([request(0, ids, max_new_tokens=2)])
    completion = finish(engine, 1)[0].ids
    # The first two passes probe the prefix cache.
    assert passes[2:] == [PREFILL_TOKENS, 4199 - PREFILL_TOKENS, 1, 1]
    assert is_greedy(module, ids, completion)


def test_small_batches_mix_prompts_of_all_lengths_on_a_gpu() -> None:
    module, rng = built(llama), Random(0)
    engine, sizes = sampler(module), forward_sizes(module)
    engine._unsorted_tokens = 1000  # as on a GPU
    prompts = [some_ids(rng, length, length) for length in (3, 90, 25)]
    engine.submit(request(name, ids) for name, ids in enumerate(prompts))
    done = finish(engine, len(prompts))
    assert sizes[0] == 3 * 89
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in enumerate(prompts))


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.3, 0.6)])
def test_logprobs_equal_those_of_a_full_forward_pass(
    model: torch.nn.Module, make: Make, temperature: float, top_p: float
) -> None:
    engine, rng, histories = make(model), Random(1), [[0], [1], [2]]
    params = {"temperature": temperature, "top_p": top_p, "max_new_tokens": 12}
    for turn in range(3):
        for index, history in enumerate(histories):
            append = some_ids(rng, 1, 20)
            history += append
            first = [index] if turn == 0 else []
            engine.submit([request(index, first + append, seed=7 * turn + index, **params)])
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


def test_completion_depends_on_its_seed_and_not_on_the_batch(
    model: torch.nn.Module, make: Make
) -> None:
    params = {"temperature": 1.0, "max_new_tokens": 20}
    alone = make(model)
    alone.submit([request(0, [1, 2, 3], seed=11, **params)])
    expected = finish(alone, 1)[0]
    batched = make(model, slots=8)
    others = [request(n, [n] * n, seed=n, temperature=0.5 * (n % 3)) for n in range(1, 6)]
    batched.submit([*others, request(0, [1, 2, 3], seed=11, **params)])
    done = finish(batched, 6)
    assert done[0].ids == expected.ids
    assert done[0].logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    alone.release(0)
    alone.submit([request(0, [1, 2, 3], seed=12, **params)])
    assert finish(alone, 1)[0].ids != expected.ids


def test_graphs_sample_the_same_tokens_as_eager_steps() -> None:
    sizes: dict[str, Any] = GROUPED | {"max_position_embeddings": 700}
    module = built(lambda: LlamaForCausalLM(LlamaConfig(**sizes)))
    requests = [
        request(name, [name] * (30 + name), temperature=1.0, seed=name, max_new_tokens=290 + name)
        for name in range(3)
    ]  # crosses from one graph size to the next
    completions: list[dict[int, Any]] = []
    for graphs in (False, True):
        engine = sampler(module, context=700, graphs=graphs)
        engine.submit(requests)
        completions.append(finish(engine, len(requests)))
    assert [completions[1][name].ids for name in range(3)] == [
        completions[0][name].ids for name in range(3)
    ]


def test_graphs_run_no_further_step_once_all_replies_reach_their_limit() -> None:
    module = built(llama)
    sizes, engine = forward_sizes(module), sampler(module, graphs=True)
    engine.submit([request(0, [1, 2, 3], max_new_tokens=2 * GRAPH_STEPS)])
    finish(engine, 1)
    assert sizes == [2] + [1] * 2 * GRAPH_STEPS


def test_a_reply_that_ends_early_does_not_make_graphs_run_a_further_step() -> None:
    module = built(llama)
    stop = greedy(module, [1, 2, 3], 1)
    sizes, engine = forward_sizes(module), sampler(module, graphs=True)
    limits = {"max_new_tokens": 2 * GRAPH_STEPS}
    engine.submit([request(0, [1, 2, 3], stop_ids=stop, **limits), request(1, [5, 6], **limits)])
    done = finish(engine, 2)
    assert [len(done[name].ids) for name in (0, 1)] == [1, 2 * GRAPH_STEPS]
    assert len(sizes) == 1 + 2 * GRAPH_STEPS  # the prefill of both, then steps


def test_completion_ends_with_a_stop_id_or_at_a_limit(model: torch.nn.Module, make: Make) -> None:
    expected = greedy(model, [1, 2, 3], 6)
    stop = expected[3]
    end = expected.index(stop) + 1
    engine = make(model, context=10)
    engine.submit([request(0, [1, 2, 3], stop_ids=(stop,))])
    engine.submit([request(1, [1, 2, 3], max_new_tokens=2)])
    engine.submit([request(2, [1, 2, 3], max_new_tokens=100)])
    done = finish(engine, 3)
    assert (done[0].ids, done[0].reason) == (expected[:end], "stop")
    assert (done[1].ids, done[1].reason) == (expected[:2], "length")
    assert (len(done[2].ids), done[2].reason) == (
        7,
        "length",
    )  # three and seven fill the context of ten


def test_released_sequence_is_empty_and_its_request_is_dropped(
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


def test_sampling_restores_the_model_state(model: torch.nn.Module) -> None:
    config: Any = model.config
    model.train()
    engine = sampler(model)
    engine.submit([request(0, [1, 2, 3])])
    finish(engine, 1)
    assert model.training
    assert config._attn_implementation == "sdpa"
    model.eval()


def test_half_precision_model_has_a_half_precision_cache() -> None:
    engine = sampler(built(llama).to(torch.bfloat16))
    engine.submit([request(0, [1, 2, 3], temperature=1.0)])
    assert len(finish(engine, 1)[0].ids) == 6
    assert engine._runner.cache._kv_layers[0].buffers[0].dtype == torch.bfloat16


def test_second_request_of_a_waiting_sequence_is_rejected(
    model: torch.nn.Module, make: Make
) -> None:
    engine = make(model)
    engine.submit([request(0, [1])])
    with pytest.raises(ValueError, match="sequence 0 already waits"):
        engine.submit([request(0, [2])])


@pytest.mark.parametrize("append", [[], [1] * 256])
def test_empty_or_too_long_prompt_is_rejected(
    model: torch.nn.Module, make: Make, append: list[int]
) -> None:
    with pytest.raises(ContextFullError, match=r"sequence 0 would have \d+ tokens"):
        make(model).submit([request(0, append)])


def test_linear_attention_layers_are_rejected(model: torch.nn.Module) -> None:
    module = built(lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)))
    config: Any = module.config
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ConfigError, match="layers of kind linear_attention"):
        sampler(module)


def test_diverged_weights_raise_an_error_with_advice(model: torch.nn.Module) -> None:
    module = built(llama)
    with torch.no_grad():
        next(module.parameters()).fill_(math.nan)
    engine = sampler(module)
    engine.submit([request(0, [1, 2])])
    with pytest.raises(TrainingError, match="lower learning_rate"):
        engine.poll()


def test_attention_without_mask_support_is_rejected() -> None:
    class FlashOnlyLlama(LlamaForCausalLM):
        _supports_sdpa = False

    module = built(lambda: FlashOnlyLlama(LlamaConfig(**GROUPED)))
    config: Any = module.config
    sampler(module)  # eager attention supports masks
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="load the model with flash_attention=false"):
        sampler(module)
