"""The fused decoding step and its kernels, run by Triton's interpreter."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
)

from architectures import PARTIAL_ROPE, WINDOW, built
from grpo_cl.gpu_memory.constants import MIN_PREFIX
from grpo_cl.policy.inference.decoders import MAX_GRAPH_PREFILL, GraphDecoder
from grpo_cl.policy.inference.fused_decode import (
    FusedDecoder,
    is_exact,
    make_fused_decoder,
    query_tiles,
)
from grpo_cl.policy.inference.merged_linears import MergedLinears
from grpo_cl.policy.inference.model_runner import Chunk, ModelRunner
from grpo_cl.policy.inference.sampler import TokenCompletion
from grpo_cl.policy.inference.shared_tiles import shared_columns, shared_tiles
from grpo_cl.policy.inference.slot_scheduler import slot_prefixes
from grpo_cl.policy.kernels.kv_cache import SharedTiles, SlotPrefix
from grpo_cl.policy.kernels.llama_block import block_linears
from grpo_cl.policy.kernels.lora_linear import AdaptedOutput, lora_linear
from llama_models import (
    CONTEXT,
    SIZES,
    adapted_llama,
    adapted_phi3,
    llama,
    partly_adapted_qwen2,
    phi3,
    qwen2,
    qwen3,
)
from parameters import mostly_slow
from sampling import finish, is_greedy, request, sampler, some_ids

pytest.importorskip("triton")
decode: Any = import_module("grpo_cl.policy.kernels.triton.decode")
decode_attention: Any = import_module("grpo_cl.policy.kernels.triton.decode_attention")
lora: Any = import_module("grpo_cl.policy.kernels.triton.lora")

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "builder",
    mostly_slow(
        [llama, phi3, qwen2, qwen3, adapted_llama, adapted_phi3, partly_adapted_qwen2],
        fast=[adapted_llama, adapted_phi3],
    ),
)
def test_the_fused_step_reproduces_the_models_layers(builder: Callable[[], Any]) -> None:
    module = built(builder)
    assert isinstance(module, PreTrainedModel)
    assert make_fused_decoder(module, CPU, context=CONTEXT) is not None


@pytest.mark.slow
def test_a_model_with_other_layers_is_detected() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    decoder = FusedDecoder(module)
    module.model.layers[1].input_layernorm.forward = lambda hidden: hidden
    assert not is_exact(decoder, module, CPU)


@pytest.mark.slow
def test_changed_weights_are_refreshed() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    decoder = FusedDecoder(module)
    with torch.no_grad():
        module.model.layers[0].mlp.up_proj.weight.mul_(2)
        module.model.layers[1].self_attn.k_proj.bias.add_(1)
    assert not is_exact(decoder, module, CPU)
    decoder.refresh_weights()
    assert is_exact(decoder, module, CPU)


@pytest.mark.slow
def test_changed_adapters_are_refreshed_and_disabled_ones_are_left_out() -> None:
    module = built(adapted_llama)
    assert isinstance(module, PreTrainedModel)
    decoder = FusedDecoder(module)
    layer: Any = module.model.layers[1].mlp.down_proj
    with torch.no_grad():
        layer.lora_B["default"].weight.mul_(3)
    assert not is_exact(decoder, module, CPU)
    decoder.refresh_weights()
    assert is_exact(decoder, module, CPU)
    layer.enable_adapters(False)
    assert is_exact(decoder, module, CPU)


def test_unsupported_architectures_have_no_fused_decoder() -> None:
    sizes: dict[str, Any] = SIZES | WINDOW
    windowed = MistralForCausalLM(MistralConfig(**sizes))
    other = LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))
    sizes = SIZES | {"head_dim": 8}
    narrow = LlamaForCausalLM(LlamaConfig(**sizes))
    partial = Phi3Config(**SIZES, rope_parameters=PARTIAL_ROPE)
    dropped = Phi3Config(**SIZES, resid_pdrop=0.1)
    models = windowed, other, narrow, Phi3ForCausalLM(partial), Phi3ForCausalLM(dropped)
    assert all(make_fused_decoder(model, CPU, context=CONTEXT) is None for model in models)


@pytest.mark.slow
def test_replies_after_a_shared_prefix_are_those_of_the_model() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    engine = sampler(module, slots=3, context=CONTEXT, graphs=True)
    engine._decoder = GraphDecoder(module, engine._runner, lambda: FusedDecoder(module))
    rng = Random(0)
    prefix = some_ids(rng, MIN_PREFIX, MIN_PREFIX)
    prompts = [prefix + some_ids(rng, 9, 9), prefix + some_ids(rng, 4, 4), some_ids(rng, 9, 9)]
    engine.submit(request(name, ids, max_new_tokens=4) for name, ids in enumerate(prompts))
    done = finish(engine, len(prompts))
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in enumerate(prompts))


@pytest.mark.slow
def test_fused_prefill_and_decoding_of_several_turns_are_those_of_the_model() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    engine = sampler(module, slots=3, graphs=True)
    engine._decoder = GraphDecoder(module, engine._runner, lambda: FusedDecoder(module))
    rng = Random(1)
    histories = [some_ids(rng, 3, 7) for _ in range(3)]
    added = histories
    for _ in range(2):
        engine.submit(request(name, ids, max_new_tokens=2) for name, ids in enumerate(added))
        done = finish(engine, len(histories))
        assert all(is_greedy(module, ids, done[name].ids) for name, ids in enumerate(histories))
        added = [some_ids(rng, 2, 5) for _ in histories]
        pairs = zip(histories, added, strict=True)
        histories = [[*ids, *done[name].ids, *more] for name, (ids, more) in enumerate(pairs)]


@pytest.mark.slow
def test_sequences_in_slots_with_gaps_are_decoded_where_they_are() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    engine = sampler(module, slots=4, graphs=True)
    engine._decoder = GraphDecoder(module, engine._runner, lambda: FusedDecoder(module))
    rng = Random(2)
    histories = [some_ids(rng, 3, 7) for _ in range(4)]
    engine.submit(request(name, ids, max_new_tokens=2) for name, ids in enumerate(histories))
    done = finish(engine, len(histories))
    slots = [engine._sequences[name].slot for name in range(4)]
    added = {name: some_ids(rng, 2, 5) for name in (1, 3)}  # the sequences in slots 0 and 2 wait
    engine.submit(request(name, ids, max_new_tokens=2) for name, ids in added.items())
    again = finish(engine, len(added))
    for name, ids in added.items():
        prompt = [*histories[name], *done[name].ids, *ids]
        assert is_greedy(module, prompt, again[name].ids)
    assert [engine._sequences[name].slot for name in range(4)] == slots


@pytest.mark.slow
def test_groups_that_read_their_prompt_from_one_slot_have_the_replies_of_the_model() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    engine = sampler(module, slots=5, context=CONTEXT, graphs=True)
    engine._decoder = GraphDecoder(module, engine._runner, lambda: FusedDecoder(module))
    rng = Random(3)
    prompts = [some_ids(rng, 70, 70) for _ in range(2)]
    # Eight sequences for five slots: later ones take the slots of those that others read.
    histories = {name: [*prompts[name // 4], name] for name in range(8)}
    lengths = {name: 2 + 5 * (name % 4) for name in histories}
    engine.submit(
        request(name, ids, max_new_tokens=lengths[name]) for name, ids in histories.items()
    )
    read: list[SlotPrefix] = []
    done: dict[int, TokenCompletion] = {}
    while len(done) < len(histories):
        for completion in engine.poll():
            done[completion.id] = completion
            engine.release(completion.id)
        read += slot_prefixes(engine._scheduler.running())
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in histories.items())
    assert any(prefix.length == 70 for prefix in read)


@pytest.mark.slow
def test_weights_that_change_between_sequences_are_used_by_the_next_one() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    engine = sampler(module, slots=1, graphs=True)
    engine._decoder = GraphDecoder(module, engine._runner, lambda: FusedDecoder(module))
    for name, ids in enumerate(([3, 1, 4], [3, 1, 4])):
        engine.submit([request(name, ids, max_new_tokens=3)])
        assert is_greedy(module, ids, finish(engine, 1)[name].ids)
        engine.release(name)
        with torch.no_grad():
            for layer in module.model.layers:
                layer.mlp.up_proj.weight.mul_(-2)


def test_long_prefills_are_left_to_the_model_runner() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    limit = MAX_GRAPH_PREFILL
    runner = ModelRunner(module, context=2 * limit, slots=1, device=CPU, max_prefill_tokens=limit)
    decoder = GraphDecoder(module, runner, lambda: FusedDecoder(module))
    assert not decoder.prefill([Chunk(0, 0, [1] * (limit + 1))])
    unfused = GraphDecoder(module, runner, lambda: None)
    assert not unfused.prefill([Chunk(0, 0, [1])])


def reference_attention(query_HD: Tensor, keys_JKD: Tensor, values_JKD: Tensor) -> Tensor:
    group = len(query_HD) // len(keys_JKD)
    keys, values = (state.repeat_interleave(group, 0) for state in (keys_JKD, values_JKD))
    scores_HK = (keys @ query_HD[..., None])[..., 0] * query_HD.shape[-1] ** -0.5
    return (scores_HK.softmax(-1)[:, None] @ values)[:, 0]


def test_rows_attend_to_their_own_tokens_and_the_visible_part_of_each_prefix() -> None:
    torch.manual_seed(0)
    query_BHD, cache = (
        torch.randn(5, 6, 16),
        (torch.randn(7, 2, 600, 16), torch.randn(7, 2, 600, 16)),
    )
    prefixes = [(torch.randn(2, 1024, 16), torch.randn(2, 1024, 16)) for _ in range(2)]
    positions_B = torch.tensor([0, 599, 255, 256, 7])
    visible_SB = torch.tensor([[0, 1024, 256, 0, 0], [0, 0, 0, 768, 512]])
    attention = decode_attention.SplitKVAttention(query_BHD, 2, 600, (1024, 1024))
    attention.attend_suffix(cache, (torch.arange(5), positions_B))
    for prefix, visible_B in zip(prefixes, visible_SB, strict=True):
        attention.attend_prefix(prefix, visible_B)
    output_BHD = attention.merge()
    for row, (query_HD, end) in enumerate(zip(query_BHD, positions_B + 1, strict=True)):
        keys, values = (
            torch.cat([cache[kind][row, :, :end], *(
                prefix[kind][:, :visible]
                for prefix, visible in zip(prefixes, visible_SB[:, row], strict=True)
            )], 1) for kind in (0, 1)
        )  # fmt: skip
        torch.testing.assert_close(output_BHD[row], reference_attention(query_HD, keys, values))


def test_rows_attend_together_to_the_first_tokens_that_they_share() -> None:
    """Rows of slots 3, 1 and 4 share 270 tokens, one is alone, and two share 65 of slot 5."""
    torch.manual_seed(0)
    query_BHD, length = torch.randn(6, 6, 16), 300
    keys, values = torch.randn(7, 2, length, 16), torch.randn(7, 2, length, 16)
    rows_B, positions_B = (
        torch.tensor([3, 1, 4, 0, 5, 2]),
        torch.tensor([299, 280, 270, 100, 65, 90]),
    )
    prefixes = [
        SlotPrefix(*pair) for pair in ((3, 299), (3, 270), (3, 270), (0, 0), (5, 65), (5, 65))
    ]
    tiles = shared_tiles(prefixes, 3)
    for tile in tiles:
        for row in tile.rows:
            for stored in (keys, values):
                stored[rows_B[row], :, : tile.length] = stored[tile.slot, :, : tile.length]
    complete = keys.clone(), values.clone()
    for stored in (keys, values):  # not read in these slots
        stored[1, :, :270] = stored[4, :, :270] = stored[2, :, :65] = torch.nan
    shared = SharedTiles(*torch.tensor(shared_columns(tiles, 6)), num_tiles=3)
    attention = decode_attention.SplitKVAttention(query_BHD, 2, length, (), None, shared)
    assert len(attention.lse_SBH) == 2 + 2
    attention.attend_suffix((keys, values), (rows_B, positions_B))
    for index, output_HD in enumerate(attention.merge()):
        visible = (kind[rows_B[index], :, : positions_B[index] + 1] for kind in complete)
        torch.testing.assert_close(output_HD, reference_attention(query_BHD[index], *visible))


def test_shared_tokens_and_prefixes_are_merged() -> None:
    torch.manual_seed(0)
    query_BHD, visible_B = torch.randn(2, 6, 16), torch.tensor([512, 256])
    cache = torch.randn(1, 2, 300, 16), torch.randn(1, 2, 300, 16)
    prefix = torch.randn(2, 512, 16), torch.randn(2, 512, 16)
    rows_B, positions_B = torch.tensor([0, 0]), torch.tensor([150, 80])
    tiles = shared_tiles([SlotPrefix(0, 70)] * 2, 8)
    shared = SharedTiles(*torch.tensor(shared_columns(tiles, 2)), num_tiles=1)
    attention = decode_attention.SplitKVAttention(query_BHD, 2, 300, (512,), None, shared)
    attention.attend_suffix(cache, (rows_B, positions_B))
    attention.attend_prefix(prefix, visible_B)
    for row, output_HD in enumerate(attention.merge()):
        keys, values = (
            torch.cat([stored[0, :, : positions_B[row] + 1], other[:, : visible_B[row]]], 1)
            for stored, other in zip(cache, prefix, strict=True)
        )
        torch.testing.assert_close(output_HD, reference_attention(query_BHD[row], keys, values))


def test_rows_with_as_many_shared_tokens_form_tiles() -> None:
    prefixes = [SlotPrefix(0, 200)] + [SlotPrefix(0, 100)] * 4 + [SlotPrefix(0, 70)] * 2
    prefixes += [SlotPrefix(7, 900), SlotPrefix(), SlotPrefix(9, 63), SlotPrefix(9, 63)]
    tiles = shared_tiles(prefixes, 4)
    assert tiles == [(0, 100, [0, 2, 4]), (0, 100, [1, 3]), (0, 70, [5, 6])]
    assert shared_columns(tiles, 12) == [
        [100] * 5 + [70] * 2 + [0] * 5,
        [0, 2, 4, 1, 3, 5, 6] + [0] * 5,
        [0, 3, 5] + [0] * 9,
        [3, 2, 2] + [0] * 9,
        [0] * 12,
    ]
    assert shared_tiles([SlotPrefix(0, 100)] * 2, 1) == []
    pairs = [SlotPrefix(row // 2, 64 + row // 2) for row in range(16)]
    assert [tile.slot for tile in shared_tiles(pairs, 8)] == [7, 6, 5, 4]  # a tile for four rows


@pytest.mark.parametrize(
    ("rows", "length", "splits"),
    [(4, 200, 1), (4, 300, 2), pytest.param(192, 300, 1, marks=pytest.mark.slow)],
)
def test_many_or_short_rows_are_not_split(rows: int, length: int, splits: int) -> None:
    torch.manual_seed(0)
    query_BHD = torch.randn(rows, 2, 16)
    cache = torch.randn(rows, 2, length, 16), torch.randn(rows, 2, length, 16)
    ends_B = torch.ones(rows, dtype=torch.long)
    ends_B[:3] = torch.tensor([length, 64, 65])
    attention = decode_attention.SplitKVAttention(query_BHD, 2, length)
    assert len(attention.lse_SBH) == splits
    attention.attend_suffix(cache, (torch.arange(rows), ends_B - 1))
    for row, output_HD in enumerate(attention.merge()):
        visible = (kind[row, :, : ends_B[row]] for kind in cache)
        torch.testing.assert_close(output_HD, reference_attention(query_BHD[row], *visible))


def test_splits_are_as_long_as_enough_programs_allow() -> None:
    assert [decode_attention.split_size(384, length) for length in (256, 512, 768, 6144)] == [
        256,
        512,
        1024,
        1024,
    ]
    assert [decode_attention.split_size(programs, 768) for programs in (3, 128, 192, 383)] == [
        256,
        256,
        512,
        512,
    ]
    assert decode_attention.split_size(48, 6144) == 512
    assert (
        decode_attention.split_size(288, 9728, 512, 2048) == 2048
    )  # a prefix that 2,048 tokens attend to


def num_splits(rows: int, length: int, *prefixes: int) -> int:
    query_BHD = torch.empty(rows, 3, 16)
    return len(decode_attention.SplitKVAttention(query_BHD, 1, length, prefixes).lse_SBH)


def test_few_rows_have_many_splits_and_many_rows_have_few() -> None:
    assert num_splits(384, 768) == 1
    assert num_splits(192, 768, 1024, 1536) == 2 + 2 + 3
    assert num_splits(128, 768, 9728) == 3 + 19
    assert num_splits(2048, 768, 9728) == 1 + 5


def test_tokens_of_a_tile_attend_to_their_row_causally() -> None:
    """Seven tokens of row 3 in tiles of at most four, one token of row 0, and an empty tile."""
    torch.manual_seed(0)
    assert [decode_attention.tile_size(group) for group in (1, 3, 7, 8, 64, 100)] == [
        64,
        16,
        8,
        8,
        1,
        1,
    ]
    query_BHD = torch.randn(8, 6, 16)
    cache = torch.randn(4, 2, 300, 16), torch.randn(4, 2, 300, 16)
    rows, positions_B = [3] * 7 + [0], torch.tensor([*range(252, 259), 0])
    assert query_tiles(rows, 4) == [(0, 4), (4, 3), (7, 1)]
    firsts_M, counts_M = torch.tensor([*query_tiles(rows, 4), (0, 0)]).t().contiguous()
    tiles = decode_attention.Tiles(firsts_M, counts_M, 4)
    attention = decode_attention.SplitKVAttention(query_BHD, 2, 300, (), tiles)
    attention.attend_suffix(cache, (torch.tensor(rows), positions_B))
    for token, output_HD in enumerate(attention.merge()):
        visible = (kind[rows[token], :, : positions_B[token] + 1] for kind in cache)
        torch.testing.assert_close(output_HD, reference_attention(query_BHD[token], *visible))


def test_norm_swiglu_and_rope_are_those_of_the_formulas() -> None:
    torch.manual_seed(0)
    gate, up, weight = torch.randn(3, 48), torch.randn(3, 48), torch.randn(48)
    total, normed = decode.add_norm(gate, up, weight, 1e-5)
    torch.testing.assert_close(total, gate + up)
    torch.testing.assert_close(normed, torch.rms_norm(gate + up, (48,), weight, 1e-5))
    torch.testing.assert_close(decode.swiglu(gate, up), torch.nn.functional.silu(gate) * up)
    cache = torch.zeros(4, 1, 5, 4), torch.zeros(4, 1, 5, 4)
    query, key, value = (
        torch.tensor([[[1.0, 2, 3, 4]] * 2]),
        torch.tensor([[[5.0, 6, 7, 8]]]),
        gate[:1, None, :4],
    )
    angles = torch.tensor([[torch.pi / 2, 0] * 2])
    where = torch.tensor([3]), torch.tensor([2])
    rotated = decode.rope_and_cache((query, key, value), (angles.cos(), angles.sin()), cache, where)
    # A quarter turn takes the first pair (1, 3) to (-3, 1); the second pair stays.
    torch.testing.assert_close(rotated[0], torch.tensor([[-3.0, 2, 1, 4]] * 2))
    torch.testing.assert_close(cache[0][3, 0, 2], torch.tensor([-7.0, 6, 5, 8]))
    torch.testing.assert_close(cache[1][3, 0, 2], value[0, 0])
    assert cache[0].count_nonzero() == 4


def adapted_layers(
    widths: dict[str, int], dtype: torch.dtype = torch.float32, **settings: Any
) -> list[nn.Module]:
    """Layers with 300 inputs, which are three splits, and adapters of rank 4 and scale 1.5."""
    torch.manual_seed(0)
    plain = nn.ModuleDict({name: nn.Linear(300, width) for name, width in widths.items()}).to(dtype)
    adapters = LoraConfig(r=4, lora_alpha=6, init_lora_weights=False, **settings)
    layers: Any = get_peft_model(plain, adapters).base_model.model
    return [layers[name] for name in widths]


def copies(linears: MergedLinears) -> list[int]:
    """Addresses of copied weights, which CUDA graphs have captured."""
    weights = [linears._weight_FE, linears._bias_F, linears._down_RE]
    weights += [weight for up in linears._ups for weight in (up.weight_FR, up.scale_F)]
    return [weight.data_ptr() for weight in weights if weight is not None]


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_merged_linears_have_the_outputs_of_each_layer(merge: bool, dtype: torch.dtype) -> None:
    """Adapters of rank 4 and 9 with other scales, and a layer without."""
    layers = adapted_layers(
        {"wide": 160, "bare": 7, "narrow": 40},
        dtype,
        target_modules=["wide", "narrow"],
        rank_pattern={"narrow": 9},
    )
    merged = MergedLinears(layers, merge=merge)
    tokens = torch.randn(35, 300).to(dtype)
    merged.refresh_weights()
    with torch.no_grad():
        for layer, output in zip(layers, merged(tokens), strict=True):
            torch.testing.assert_close(output, lora_linear(layer, tokens))
        before = copies(merged)
        for weight in merged.copied:
            weight.mul_(-2)
        merged.refresh_weights()
        assert copies(merged) == before
        for layer, output in zip(layers, merged(tokens), strict=True):
            torch.testing.assert_close(output, lora_linear(layer, tokens))


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("targets", [["gate", "up"], ["up"]])
def test_swiglu_of_merged_linears_is_that_of_their_outputs(merge: bool, targets: list[str]) -> None:
    layers = adapted_layers(
        {"gate": 150, "up": 150}, target_modules=targets, rank_pattern={"up": 70}
    )
    merged = MergedLinears(layers, merge=merge)
    merged.refresh_weights()
    tokens = torch.randn(35, 300)
    with torch.no_grad():
        gate, up = (lora_linear(layer, tokens) for layer in layers)
        expected = nn.functional.silu(gate) * up
        torch.testing.assert_close(merged.swiglu(tokens), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "width"), [(3, 130), (200, 2700)])
def test_lora_down_and_up_are_the_two_matrix_products(rows: int, width: int) -> None:
    """Adapters of rank 2 and rank 70; splits of 128 inputs and of 2."""
    torch.manual_seed(0)
    tokens, down = torch.randn(rows, 130), torch.randn(72, 130)
    inner = lora.lora_down(tokens, down)
    torch.testing.assert_close(inner, tokens @ down.T, rtol=1e-4, atol=1e-4)
    up, scale, output = torch.randn(width, 70), torch.randn(width), torch.ones(rows, width + 70)
    lora.lora_up(AdaptedOutput(output[:, 50:-20], inner[:, 2:], up, scale))
    expected = 1 + tokens @ down[2:].T @ up.T * scale
    torch.testing.assert_close(output[:, 50:-20], expected, rtol=1e-4, atol=1e-3)
    assert (output[:, :50] == 1).all() and (output[:, -20:] == 1).all()


@pytest.mark.parametrize(("merge_gate_up", "downs"), [(False, 3), (True, 2)])
def test_merged_layers_have_one_up_projection_and_no_down_projection(
    merge_gate_up: bool, downs: int
) -> None:
    """LoRA kernels of a block: the merged product projects down, SwiGLU adds what it reads."""
    module: Any = built(adapted_llama)
    linears: Any = block_linears(module.model.layers[0])
    merges = (True, False, merge_gate_up, False)
    groups = [
        MergedLinears(layers, merge=merge) for layers, merge in zip(linears, merges, strict=True)
    ]
    kernels = [lora._lora_down, lora._sum_splits, lora._lora_up, lora._lora_swiglu]
    launches: Counter[str] = Counter()

    def record(name: str, *_: object, **__: object) -> None:
        launches[name] += 1

    hooks = [partial(record, kernel.__name__) for kernel in kernels]
    for kernel, hook in zip(kernels, hooks, strict=True):
        kernel.add_pre_run_hook(hook)
    with torch.no_grad():
        for group, layers in zip(groups, linears, strict=True):
            group.refresh_weights()
            function = group.swiglu if layers is linears.gate_up else group
            function(torch.randn(2, layers[0].in_features))
    for kernel, hook in zip(kernels, hooks, strict=True):
        kernel.pre_run_hooks.remove(hook)
    assert launches == Counter(_lora_down=downs, _sum_splits=downs, _lora_up=3, _lora_swiglu=1)
