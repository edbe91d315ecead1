"""Estimated activations compared with what autograd saves, and peaks of fused layers."""

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_cl.config import GRPOConfig
from grpo_cl.gpu_memory import estimate
from grpo_cl.gpu_memory.shape import shape_of
from grpo_cl.gpu_memory.training import SCORE, UPDATE, saved_activations
from grpo_cl.gpu_memory.workload import MicroBatch, Workload
from grpo_cl.policy.kernels.fused_blocks import fuse_blocks
from grpo_cl.policy.kernels.llama_block import MODEL_TYPES
from grpo_cl.policy.kernels.packing import Layout, pack
from grpo_cl.policy.kernels.prefix_groups import PrefixGroup
from grpo_cl.policy.learner.optimizer import Optimizer
from grpo_cl.policy.model.logprobs import (
    LogprobComputer,
    PaddedBatch,
    predicting_positions,
    scored_positions,
)
from grpo_cl.policy.model.weights import trainable_parameters
from live_bytes import LiveBytes
from parameters import mostly_slow
from small_models import FAMILIES, module_of


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_estimated_activations_match_what_autograd_saves(
    family: str, dtype: str, rank: int, is_checkpointed: bool
):
    # One key head per query head: CPU and GPU kernels save the same tensors.
    module, workload = build_model(
        family, dtype, rank, is_checkpointed=is_checkpointed, num_key_value_heads=4
    )
    measured = saved_bytes(module, torch.randint(0, 100, (2, 64)))
    workload = replace(workload, has_triton=False)
    assert saved_activations(workload, MicroBatch(2, 128)) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("family", mostly_slow(sorted(MODEL_TYPES & {*FAMILIES}), fast=["qwen2"]))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_estimated_activations_match_what_fused_layers_save(
    family: str, dtype: str, rank: int, is_checkpointed: bool
):
    pytest.importorskip("triton")
    module, workload = build_model(
        family, dtype, rank, is_checkpointed=is_checkpointed, num_hidden_layers=2
    )
    LogprobComputer.build(module)
    fuse_blocks(module)
    layout = packed(prefix=2, suffix=2)
    measured = saved_bytes(module, layout.ids_1N, **forward_arguments(layout))
    # The first layer does not save its input, as embeddings need no gradient.
    assert saved_activations(workload, MicroBatch(2, 6)) == pytest.approx(measured, rel=0.03)


def build_model(
    family: str, dtype: str, rank: int, *, is_checkpointed: bool, **changes: Any
) -> tuple[Any, Workload]:
    """A model, without the PEFT wrapper around its adapters, and its workload."""
    module, config = module_of(family, dtype, **changes)
    if is_checkpointed:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    if rank:
        module = get_peft_model(module, LoraConfig(r=rank, target_modules="all-linear"))
        module = module.get_base_model()
    settings = {
        "model_dtype": dtype,
        "lora": {"r": rank},
        "gradient_checkpointing": is_checkpointed,
    }
    workload = Workload(
        config=GRPOConfig.model_validate(settings),
        shape=shape_of(config, family),
        prompt_tokens=1,
        reply_tokens=63,
    )
    return module.train(), workload


def packed(*, prefix: int, suffix: int) -> Layout:
    """Two packed sequences with a shared prefix."""
    return pack(
        [[1] * prefix + [token] * suffix for token in (2, 3)], [PrefixGroup((0, 1), prefix)]
    )


def forward_arguments(layout: Layout) -> dict[str, Any]:
    """Arguments of the model's forward pass, as ``LogprobComputer`` passes them."""
    mask = layout.ids_1N[None, None]
    return {"position_ids": layout.positions_1N, "attention_mask": mask, "layout": layout}


def saved_bytes(module: Any, ids: torch.Tensor, **arguments: Any) -> int:
    own = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module.model(ids, use_cache=False, **arguments)
    assert output[0].requires_grad
    return sum(t.untyped_storage().nbytes() for pointer, t in saved.items() if pointer not in own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "is_checkpointed", "changes"),
    [
        (0, False, {}),
        (0, True, {}),
        (0, False, {"vocab_size": 2000}),
        (4, False, {"intermediate_size": 300}),
        (4, True, {"intermediate_size": 300}),
    ],
)
def test_estimated_peaks_match_passes_of_fused_layers(
    rank: int, is_checkpointed: bool, changes: dict[str, Any]
):
    pytest.importorskip("triton")
    small = {"hidden_size": 32, "head_dim": 8, "num_hidden_layers": 2, "tie_word_embeddings": True}
    module, workload = build_model(
        "llama", "bfloat16", rank, is_checkpointed=is_checkpointed, **(small | changes)
    )
    one_group = {"num_samples_per_prompt": 2, "batch_size_per_gpu": 1, "kl_coef": 0.1}
    one_group["gradient_accumulation_steps"] = 1
    config = workload.config.model_copy(update=one_group)
    workload = replace(workload, config=config, prompt_tokens=32, reply_tokens=32)
    optimizer = Optimizer(trainable_parameters(module), config)  # accumulates in float32
    measured = fused_peaks(module, packed(prefix=32, suffix=32))
    assert optimizer.updates == 0
    if rank:
        del measured[SCORE]  # the reference is the model without its adapters
    parts = {phase.name: phase.parts for phase in estimate(workload).phases}
    for name, peak in measured.items():
        expected = sum(parts[name].get(part, 0) for part in ("activations", "logits", "gradients"))
        assert expected == pytest.approx(peak, rel=0.1), name


def fused_peaks(module: Any, layout: Layout) -> dict[str, int]:
    """Peak live bytes besides the weights: forward only, and forward with backward."""
    computer, gather_index_BT = LogprobComputer.build(module), layout.gather_index_BT
    fuse_blocks(module)
    ids_BT = layout.ids_1N[0][gather_index_BT]
    rows = PaddedBatch(ids_BT, torch.ones_like(ids_BT), layout)
    is_reply_BT = (gather_index_BT[0] != gather_index_BT[1]).expand_as(gather_index_BT)
    targets = (ids_BT[:, 1:][scored_positions(rows.attention_BT, is_reply_BT)],)
    scores: Any = import_module("grpo_cl.policy.kernels.triton.logprobs")
    function = partial(scores.logprobs_and_entropy, temperature=1.0)
    before = predicting_positions(rows.attention_BT, is_reply_BT)
    work = partial(computer.map_logits, function, rows, before=before)
    with LiveBytes(*module.parameters()) as meter:
        weights = meter.now
        with torch.no_grad():
            work(inputs=targets)
        score = meter.peak - weights
        meter.reset()
        work(inputs=targets)[0].sum().backward()
    return {SCORE: score, UPDATE: meter.peak - weights}
