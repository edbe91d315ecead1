"""A decoding step with fused kernels, run by Triton's interpreter."""

from collections.abc import Callable
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
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from architectures import GROUPED, WINDOW, built
from grpo_cl.policy.adapted import project
from grpo_cl.policy.decoding import FEW, GraphDecoder
from grpo_cl.policy.lean import LeanStep, is_exact, lean_step, tiles_of
from grpo_cl.policy.projections import Projections
from grpo_cl.policy.reader import Chunk, SlotReader
from grpo_cl.policy.trunks import LEAST
from sampling import finish, is_greedy, request, sampler, some_ids

pytest.importorskip("triton")
fused: Any = import_module("grpo_cl.policy.fused")
fused_looks: Any = import_module("grpo_cl.policy.fused_looks")
fused_adapters: Any = import_module("grpo_cl.policy.fused_adapters")

CPU = torch.device("cpu")
CONTEXT = 1600
SIZES: dict[str, Any] = GROUPED | {"max_position_embeddings": CONTEXT, "head_dim": 16}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True))


def qwen2() -> PreTrainedModel:
    sizes: dict[str, Any] = SIZES | {"hidden_size": 64}
    sizes.pop("head_dim")
    return Qwen2ForCausalLM(Qwen2Config(**sizes))


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES))


def adapted(model: PreTrainedModel, targets: str | list[str]) -> PreTrainedModel:
    adapters = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    return get_peft_model(model, adapters).get_base_model()  # type: ignore[return-value]


def adapted_llama() -> PreTrainedModel:
    return adapted(llama(), "all-linear")


def partly_adapted_qwen2() -> PreTrainedModel:
    return adapted(qwen2(), ["k_proj", "v_proj", "up_proj"])


@pytest.mark.parametrize("builder", [llama, qwen2, qwen3, adapted_llama, partly_adapted_qwen2])
def test_a_step_gives_the_logits_of_the_model(builder: Callable[[], Any]) -> None:
    module = built(builder)
    assert isinstance(module, PreTrainedModel)
    assert lean_step(module, CPU) is not None


def test_a_step_that_does_not_is_found_out() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    step = LeanStep(module)
    module.model.layers[1].input_layernorm.forward = lambda hidden: hidden
    assert not is_exact(step, module, CPU)


def test_a_step_follows_weights_that_change() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    step = LeanStep(module)
    with torch.no_grad():
        module.model.layers[0].mlp.up_proj.weight.mul_(2)
        module.model.layers[1].self_attn.k_proj.bias.add_(1)
    assert not is_exact(step, module, CPU)
    step.renew()
    assert is_exact(step, module, CPU)


@pytest.mark.slow
def test_a_step_follows_adapters_that_learn_or_are_switched_off() -> None:
    module = built(adapted_llama)
    assert isinstance(module, PreTrainedModel)
    step = LeanStep(module)
    layer: Any = module.model.layers[1].mlp.down_proj
    with torch.no_grad():
        layer.lora_B["default"].weight.mul_(3)
    assert not is_exact(step, module, CPU)
    step.renew()
    assert is_exact(step, module, CPU)
    layer.enable_adapters(False)
    assert is_exact(step, module, CPU)


def test_models_of_another_shape_have_no_step() -> None:
    sizes: dict[str, Any] = SIZES | WINDOW
    windowed = MistralForCausalLM(MistralConfig(**sizes))
    other = LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))
    sizes = SIZES | {"head_dim": 8}
    narrow = LlamaForCausalLM(LlamaConfig(**sizes))
    assert all(lean_step(model, CPU) is None for model in (windowed, other, narrow))


@pytest.mark.slow
def test_replies_after_a_trunk_are_those_of_the_model() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    engine = sampler(module, slots=3, context=CONTEXT, graphs=True)
    engine._decoder = GraphDecoder(module, engine._reader, lambda: LeanStep(module))
    rng = Random(0)
    opening = some_ids(rng, LEAST, LEAST)
    prompts = [opening + some_ids(rng, 9, 9), opening + some_ids(rng, 4, 4), some_ids(rng, 9, 9)]
    engine.submit(request(name, ids, max_new_tokens=4) for name, ids in enumerate(prompts))
    done = finish(engine, len(prompts))
    assert all(is_greedy(module, ids, done[name].ids) for name, ids in enumerate(prompts))


@pytest.mark.slow
def test_turns_are_read_and_answered_with_fused_kernels_as_the_model_does() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    engine = sampler(module, slots=3, graphs=True)
    engine._decoder = GraphDecoder(module, engine._reader, lambda: LeanStep(module))
    rng = Random(1)
    spoken = [some_ids(rng, 3, 7) for _ in range(3)]
    added = spoken
    for _ in range(2):
        engine.submit(request(name, ids, max_new_tokens=2) for name, ids in enumerate(added))
        done = finish(engine, len(spoken))
        assert all(is_greedy(module, ids, done[name].ids) for name, ids in enumerate(spoken))
        added = [some_ids(rng, 2, 5) for _ in spoken]
        pairs = zip(spoken, added, strict=True)
        spoken = [[*ids, *done[name].ids, *more] for name, (ids, more) in enumerate(pairs)]


def test_many_tokens_are_left_to_the_model() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    reader = SlotReader(module, context=2 * FEW, slots=1, device=CPU, piece=FEW)
    decoder = GraphDecoder(module, reader, lambda: LeanStep(module))
    assert not decoder.read([Chunk(0, 0, [1] * (FEW + 1))])
    without = GraphDecoder(module, reader, lambda: None)
    assert not without.read([Chunk(0, 0, [1])])


def plain_look(query_HD: Tensor, keys_JKD: Tensor, values_JKD: Tensor) -> Tensor:
    groups = len(query_HD) // len(keys_JKD)
    keys, values = (one.repeat_interleave(groups, 0) for one in (keys_JKD, values_JKD))
    scores_HK = (keys @ query_HD[..., None])[..., 0] * query_HD.shape[-1] ** -0.5
    return (scores_HK.softmax(-1)[:, None] @ values)[:, 0]


def test_rows_see_their_own_tokens_and_as_much_of_each_trunk_as_they_use() -> None:
    torch.manual_seed(0)
    query_BHD, cache = (
        torch.randn(5, 6, 16),
        (torch.randn(7, 2, 600, 16), torch.randn(7, 2, 600, 16)),
    )
    trunks = [(torch.randn(2, 1024, 16), torch.randn(2, 1024, 16)) for _ in range(2)]
    positions_B = torch.tensor([0, 599, 255, 256, 7])
    seen_SB = torch.tensor([[0, 1024, 256, 0, 0], [0, 0, 0, 768, 512]])
    looks = fused_looks.Looks(query_BHD, 2, 600, (1024, 1024))
    looks.at_rows(cache, (torch.arange(5), positions_B))
    for trunk, seen_B in zip(trunks, seen_SB, strict=True):
        looks.at_trunk(trunk, seen_B)
    found_BHD = looks.joined()
    for row, (query_HD, end) in enumerate(zip(query_BHD, positions_B + 1, strict=True)):
        keys, values = (
            torch.cat([cache[kind][row, :, :end], *(
                trunk[kind][:, :seen] for trunk, seen in zip(trunks, seen_SB[:, row], strict=True)
            )], 1) for kind in (0, 1)
        )  # fmt: skip
        torch.testing.assert_close(found_BHD[row], plain_look(query_HD, keys, values))


@pytest.mark.parametrize(
    ("rows", "length", "parts"),
    [(4, 200, 1), (4, 300, 2), pytest.param(192, 300, 1, marks=pytest.mark.slow)],
)
def test_many_or_short_rows_are_looked_at_as_a_whole(rows: int, length: int, parts: int) -> None:
    torch.manual_seed(0)
    query_BHD = torch.randn(rows, 2, 16)
    cache = torch.randn(rows, 2, length, 16), torch.randn(rows, 2, length, 16)
    ends_B = torch.ones(rows, dtype=torch.long)
    ends_B[:3] = torch.tensor([length, 64, 65])
    looks = fused_looks.Looks(query_BHD, 2, length)
    assert len(looks.lse_SBH) == parts
    looks.at_rows(cache, (torch.arange(rows), ends_B - 1))
    for row, found_HD in enumerate(looks.joined()):
        seen = (kind[row, :, : ends_B[row]] for kind in cache)
        torch.testing.assert_close(found_HD, plain_look(query_BHD[row], *seen))


def test_rows_are_cut_until_there_are_programs_enough_or_they_are_short() -> None:
    assert [fused_looks.part_of(384, length) for length in (256, 512, 768, 6144)] == [
        256,
        512,
        1024,
        1024,
    ]
    assert [fused_looks.part_of(programs, 768) for programs in (3, 128, 192, 383)] == [
        256,
        256,
        512,
        512,
    ]
    assert fused_looks.part_of(48, 6144) == 512
    assert fused_looks.part_of(288, 9728, 512, 2048) == 2048  # a trunk that 2,048 tokens look at


def parts(rows: int, length: int, *trunks: int) -> int:
    return len(fused_looks.Looks(torch.empty(rows, 3, 16), 1, length, trunks).lse_SBH)


def test_few_look_at_many_parts_and_many_at_few() -> None:
    assert parts(384, 768) == 1
    assert parts(192, 768, 1024, 1536) == 2 + 2 + 3
    assert parts(128, 768, 9728) == 3 + 19
    assert parts(2048, 768, 9728) == 1 + 5


def test_tokens_of_a_row_that_stand_together_look_at_it_together() -> None:
    """Seven tokens of row 3 in two tiles of four at most, one of row 0, and a tile of none."""
    torch.manual_seed(0)
    assert [fused_looks.tile_size(group) for group in (1, 3, 7, 8, 64, 100)] == [64, 16, 8, 8, 1, 1]
    query_BHD = torch.randn(8, 6, 16)
    cache = torch.randn(4, 2, 300, 16), torch.randn(4, 2, 300, 16)
    rows, positions_B = [3] * 7 + [0], torch.tensor([*range(252, 259), 0])
    assert tiles_of(rows, 4) == [(0, 4), (4, 3), (7, 1)]
    firsts_M, counts_M = torch.tensor([*tiles_of(rows, 4), (0, 0)]).t().contiguous()
    looks = fused_looks.Looks(query_BHD, 2, 300, (), fused_looks.Tiles(firsts_M, counts_M, 4))
    looks.at_rows(cache, (torch.tensor(rows), positions_B))
    for token, found_HD in enumerate(looks.joined()):
        seen = (kind[rows[token], :, : positions_B[token] + 1] for kind in cache)
        torch.testing.assert_close(found_HD, plain_look(query_BHD[token], *seen))


def test_norms_gates_and_turns_are_those_of_the_formulas() -> None:
    torch.manual_seed(0)
    one, other, weight = torch.randn(3, 48), torch.randn(3, 48), torch.randn(48)
    total, normed = fused.add_norm(one, other, weight, 1e-5)
    torch.testing.assert_close(total, one + other)
    torch.testing.assert_close(normed, torch.rms_norm(one + other, (48,), weight, 1e-5))
    torch.testing.assert_close(fused.gated(one, other), torch.nn.functional.silu(one) * other)
    cache = torch.zeros(4, 1, 5, 4), torch.zeros(4, 1, 5, 4)
    query, key, value = (
        torch.tensor([[[1.0, 2, 3, 4]] * 2]),
        torch.tensor([[[5.0, 6, 7, 8]]]),
        one[:1, None, :4],
    )
    angles = torch.tensor([[torch.pi / 2, 0] * 2])
    where = torch.tensor([3]), torch.tensor([2])
    turned = fused.rotate_and_store((query, key, value), (angles.cos(), angles.sin()), cache, where)
    # A quarter turn takes the first pair (1, 3) to (-3, 1); the second pair stays.
    torch.testing.assert_close(turned[0], torch.tensor([[-3.0, 2, 1, 4]] * 2))
    torch.testing.assert_close(cache[0][3, 0, 2], torch.tensor([-7.0, 6, 5, 8]))
    torch.testing.assert_close(cache[1][3, 0, 2], value[0, 0])
    assert cache[0].count_nonzero() == 4


@pytest.mark.parametrize("is_joined", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_layers_that_read_the_same_write_what_each_writes(
    is_joined: bool, kind: torch.dtype
) -> None:
    """Of 300 numbers in three parts, to 40 and 160 with an adapter of rank 4, and to 7 without."""
    torch.manual_seed(0)
    names = {"wide": 160, "bare": 7, "narrow": 40}
    plain = nn.ModuleDict({name: nn.Linear(300, width) for name, width in names.items()}).to(kind)
    adapters = LoraConfig(
        r=4, lora_alpha=6, target_modules=["wide", "narrow"], init_lora_weights=False
    )
    layers: Any = get_peft_model(plain, adapters).base_model.model
    several = Projections([layers[name] for name in names], is_joined=is_joined)
    several.renew()
    given = torch.randn(35, 300).to(kind)
    with torch.no_grad():
        for name, found in zip(names, several(given), strict=True):
            torch.testing.assert_close(found, project(layers[name], given))


@pytest.mark.parametrize(("rows", "width"), [(3, 130), (200, 2700)])
def test_adapters_are_the_two_products_of_their_ranks(rows: int, width: int) -> None:
    """One of rank 2 and one of rank 70; of the larger size a program writes several tiles."""
    torch.manual_seed(0)
    given, down = torch.randn(rows, 130), torch.randn(72, 130)
    inner = fused_adapters.lower(given, down)
    assert inner.shape == (2, rows, 72)  # 128 numbers and 2
    torch.testing.assert_close(inner.sum(0), given @ down.T, rtol=1e-4, atol=1e-4)
    up, found = torch.randn(width, 70), torch.ones(rows, width + 70)
    fused_adapters.lift(inner, 2, up, 0.5, found[:, 50:-20])
    expected = 1 + 0.5 * given @ down[2:].T @ up.T
    torch.testing.assert_close(found[:, 50:-20], expected, rtol=1e-4, atol=1e-3)
    assert (found[:, :50] == 1).all() and (found[:, -20:] == 1).all()
