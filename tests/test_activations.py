"""What autograd keeps of models as they are, and what passes of fused layers hold at most."""

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_cl.config import GRPOConfig
from grpo_cl.footprint import estimate
from grpo_cl.footprint.plan import Pass, Plan
from grpo_cl.footprint.shape import shape_of
from grpo_cl.footprint.training import SCORE, UPDATE, kept_activations
from grpo_cl.policy.layers import SHAPES, FusedLayers
from grpo_cl.policy.optimizer import Optimizer
from grpo_cl.policy.packing import Layout, pack
from grpo_cl.policy.reference import trainable
from grpo_cl.policy.scoring import Rows, Scorer, places_before, scored_positions
from grpo_cl.policy.siblings import Family
from live_bytes import LiveBytes
from small_models import FAMILIES, module_of


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("again", [True, False])
def test_activations_are_those_that_autograd_keeps(family: str, dtype: str, rank: int, again: bool):
    # One key head per query head, for which a CPU and a GPU take kernels that keep the same.
    module, plan = learning(family, dtype, rank, again=again, num_key_value_heads=4)
    found = saved_bytes(module, torch.randint(0, 100, (2, 64)))
    plan = replace(plan, has_kernels=False)
    assert kept_activations(plan, Pass(2, 128)) == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("family", sorted(SHAPES))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("again", [True, False])
def test_fused_layers_keep_what_is_foretold(family: str, dtype: str, rank: int, again: bool):
    pytest.importorskip("triton")
    module, plan = learning(family, dtype, rank, again=again, num_hidden_layers=2)
    Scorer(module)
    FusedLayers(module)
    layout = packed(beginning=2, rest=2)
    found = saved_bytes(module, layout.ids_1N, **options_of(layout))
    # Without a gradient for embeddings the first layer need not keep what it reads.
    assert kept_activations(plan, Pass(2, 6)) == pytest.approx(found, rel=0.03)


def learning(
    family: str, dtype: str, rank: int, *, again: bool, **changes: Any
) -> tuple[Any, Plan]:
    """A model, without what is around its adapters, and what is to be foretold of it."""
    module, config = module_of(family, dtype, **changes)
    if again:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    if rank:
        module = get_peft_model(module, LoraConfig(r=rank, target_modules="all-linear"))
        module = module.get_base_model()
    settings = {"model_dtype": dtype, "lora": {"r": rank}, "gradient_checkpointing": again}
    plan = Plan(
        config=GRPOConfig.model_validate(settings),
        shape=shape_of(config, family),
        prompt_tokens=1,
        reply_tokens=63,
    )
    return module.train(), plan


def packed(*, beginning: int, rest: int) -> Layout:
    """Two sequences that begin alike, in one row."""
    return pack([[1] * beginning + [last] * rest for last in (2, 3)], [Family((0, 1), beginning)])


def options_of(layout: Layout) -> dict[str, Any]:
    """What a model is given with a row, as the scorer gives it."""
    mask = layout.ids_1N[None, None]
    return {"position_ids": layout.positions_1N, "attention_mask": mask, "layout": layout}


def saved_bytes(module: Any, ids: torch.Tensor, **options: Any) -> int:
    own = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module.model(ids, use_cache=False, **options)
    assert output[0].requires_grad
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "again", "changes"),
    [
        (0, False, {}),
        (0, True, {}),
        (0, False, {"vocab_size": 2000}),
        (4, False, {"intermediate_size": 300}),
        (4, True, {"intermediate_size": 300}),
    ],
)
def test_peaks_of_fused_passes_are_foretold(rank: int, again: bool, changes: dict[str, Any]):
    pytest.importorskip("triton")
    narrow = {"hidden_size": 32, "head_dim": 8, "num_hidden_layers": 2, "tie_word_embeddings": True}
    module, plan = learning("llama", "bfloat16", rank, again=again, **(narrow | changes))
    one_group = {"num_samples_per_prompt": 2, "batch_size_per_gpu": 1, "kl_coef": 0.1}
    one_group["gradient_accumulation_steps"] = 1
    config = plan.config.model_copy(update=one_group)
    plan = replace(plan, config=config, prompt_tokens=32, reply_tokens=32)
    optimizer = Optimizer(trainable(module), config)  # which adds gradients up in float32
    found = fused_peaks(module, packed(beginning=32, rest=32))
    assert optimizer.updates == 0
    if rank:
        del found[SCORE]  # a reference is the model without its adapters
    parts = {phase.name: phase.parts for phase in estimate(plan).phases}
    for name, peak in found.items():
        passing = sum(parts[name].get(part, 0) for part in ("activations", "logits", "gradients"))
        assert passing == pytest.approx(peak, rel=0.1), name


def fused_peaks(module: Any, layout: Layout) -> dict[str, int]:
    """Live bytes besides the weights: of a pass, and of one with its way back."""
    scorer, places_BT = Scorer(module), layout.places_BT
    FusedLayers(module)
    ids_BT = layout.ids_1N[0][places_BT]
    rows = Rows(ids_BT, torch.ones_like(ids_BT), layout)
    is_reply_BT = (places_BT[0] != places_BT[1]).expand_as(places_BT)
    given = (ids_BT[:, 1:][scored_positions(rows.attention_BT, is_reply_BT)],)
    scores: Any = import_module("grpo_cl.policy.fused_scores")
    function = partial(scores.scored, temperature=1.0)
    before = places_before(rows.attention_BT, is_reply_BT)
    work = partial(scorer.map_rows, function, rows, before=before)
    with LiveBytes(*module.parameters()) as meter:
        held = meter.now
        with torch.no_grad():
            work(given=given)
        score = meter.peak - held
        meter.reset()
        work(given=given)[0].sum().backward()
    return {SCORE: score, UPDATE: meter.peak - held}
