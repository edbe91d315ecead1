"""Estimates against models as they are: counted weights, caches, peaks of real updates."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from gpu_memory import CASES, Case, build, estimate_of, measure, random_group
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_cl.footprint import estimate, known_shapes, overheads
from grpo_cl.footprint import plan as plans
from grpo_cl.footprint.cache import copied_bytes, rows_bytes, trunks_bytes
from grpo_cl.footprint.overheads import GIB
from grpo_cl.footprint.shape import shape_of
from grpo_cl.policy import (
    decoding,
    graphs,
    local,
    projections,
    scoring,
    siblings,
    slots,
    trunks,
)
from grpo_cl.policy.batching import micro_batches, policy_samples
from grpo_cl.policy.engines import own_sampler
from grpo_cl.policy.sampler import Request
from grpo_cl.policy.slots import SlotCache
from live_bytes import LiveBytes
from small_models import FAMILIES, module_of

MEASURED: dict[str, dict[str, float]] = {
    "smollm2-135m float32 full, 525+256": {"sample": 5.37, "score": 2.54, "update": 17.43},
    "smollm2-135m bfloat16 full, 525+256": {"sample": 3.74, "score": 2.33, "update": 9.86},
    "smollm2-135m bfloat16 full, 4096+512": {"sample": 4.3, "score": 2.36, "update": 10.78},
    "smollm2-135m bfloat16 full, graphs, 2048+512": {
        "sample": 4.17,
        "score": 4.29,
        "update": 10.85,
    },
    "smollm2-135m bfloat16 LoRA 16, 525+256": {"sample": 2.24, "score": 0.65, "update": 8.19},
    "qwen2.5-1.5b bfloat16 full, checkpointing, 525+256": {
        "sample": 25.9,
        "score": 24.15,
        "update": 30.67,
    },
    "qwen2.5-1.5b bfloat16 full, checkpointing, 6000+512": {"sample": 24.02, "update": 28.31},
    "qwen2.5-7b bfloat16 LoRA 16, 525+256": {"sample": 18.59, "score": 15.91, "update": 47.42},
    "qwen2.5-7b bfloat16 LoRA 16, checkpointing, 6000+512": {
        "sample": 19.35,
        "score": 16.25,
        "update": 19.1,
    },
}
"""GiB of ``benchmarks/gpu_memory.py`` on one NVIDIA H200 with torch 2.11.0, on 2026-11-15."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_weights_and_adapters_are_counted_as_transformers_and_peft_make_them(
    family: str, tied: bool, bias: bool
):
    with torch.device("meta"):
        biases: dict[str, Any] = {"attention_bias": bias} | (
            {"mlp_bias": bias} if family == "llama" else {}
        )
        if family in {"qwen2", "mistral"}:
            biases = {}
        module, config = module_of(family, tie_word_embeddings=tied, **biases)
        shape = shape_of(config, family)
        assert shape.parameters == sum(weight.numel() for weight in module.parameters())
        targets: tuple[str, ...] = ("q_proj", "v_proj", "down_proj") if bias else ("all-linear",)
        wanted: Any = "all-linear" if targets == ("all-linear",) else list(targets)
        adapted: Any = get_peft_model(module, LoraConfig(r=8, target_modules=wanted))
    learning = [weight for weight in adapted.parameters() if weight.requires_grad]
    assert shape.adapter_parameters(8, targets) == sum(weight.numel() for weight in learning)


@pytest.mark.parametrize("name", sorted(known_shapes()))
def test_known_shapes_are_configs_that_transformers_takes(name: str):
    config = known_shapes()[name]
    sizes = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        settings = AutoConfig.for_model(config["model_type"], **sizes)
        built = AutoModelForCausalLM.from_config(settings, dtype="bfloat16")
    assert shape_of(config, name).parameters == sum(w.numel() for w in built.parameters())


@pytest.mark.parametrize(
    "case",
    [
        Case("dry", prompt=16, reply=96),
        Case("dry", prompt=16, reply=96, graphs=True),
        Case("dry", rank=4, prompt=160, reply=32),
        Case("dry", is_checkpointed=True, prompt=160, reply=32),
        Case("dry", rank=4, is_checkpointed=True, prompt=16, reply=96),
        Case("dry", dtype="float32", prompt=160, reply=32),
        Case("dry", dtype="float32", rank=4, is_checkpointed=True, prompt=160, reply=32),
    ],
    ids=lambda case: case.name,
)
def test_peaks_of_real_updates_are_foretold(case: Case):
    case = case._replace(micro_batch_tokens=512, tasks=3, group=4, slots=12)
    with LiveBytes() as meter:
        found = measure(case, torch.device("cpu"), meter)
    plan = replace(case.plan, has_kernels=False)  # a CPU does without
    expected = {
        phase.name: phase.peak - phase.parts["workspace"] for phase in estimate(plan).phases
    }
    assert set(found) == set(expected)
    assert expected == pytest.approx(found, rel=0.1)


def test_peaks_that_an_h200_measured_are_foretold():
    assert {case.name for case in CASES} == set(MEASURED)
    for case in CASES:
        expected = {phase.name: phase.peak / GIB for phase in estimate_of(case).phases}
        assert expected == pytest.approx(MEASURED[case.name], rel=0.1), case.name


def test_nothing_is_said_about_memory_where_nobody_counts():
    case = Case("dry", prompt=40, reply=24, tasks=1, group=2, kl_coef=0.0)
    assert measure(case, torch.device("cpu")) == {}


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize(
    ("prompt", "shared", "tasks", "group", "slots"),
    [
        (100, 0, 3, 4, 64),  # too short for a trunk
        (100, 0, 2, 8, 12),  # some wait for a row
        (1100, 0, 3, 2, 64),  # a trunk for each group
        (1100, 1060, 3, 2, 64),  # one trunk for all
        (1100, 900, 3, 2, 64),  # too little in common to use the first's, too much for more
        (1600, 1100, 2, 2, 64),  # one trunk, of which the second group uses most
        # Trunks for eight, the ninth goes on from what it shares.
        pytest.param(2400, 1100, 9, 2, 64, marks=pytest.mark.slow),
        (1100, 0, 9, 2, 64),  # trunks for eight, the ninth's row holds it all
        (1025, 0, 1, 2, 64),  # the shortest
    ],
)
def test_the_cache_has_the_bytes_of_the_samplers_own(
    prompt: int, shared: int, tasks: int, group: int, slots: int, graphs: bool
):
    case = Case("dry", prompt=prompt, reply=8, tasks=tasks, group=group, slots=slots, graphs=graphs)
    writer = own_sampler(build(case, torch.device("cpu")), case.config)
    writer.submit(
        Request(number, number, ids, case.reply, 1.0, 1.0, (), 0)
        for number, ids in enumerate(prompts_of(case, shared))
    )
    waiting = tasks * group
    while waiting:
        waiting -= len(writer.poll())
    plan = replace(case.plan, shared_tokens=shared)
    assert rows_bytes(plan) == held_bytes(writer._reader.cache)
    assert trunks_bytes(plan) == held_bytes(writer._reader.trunks)


def prompts_of(case: Case, shared: int) -> list[list[int]]:
    """Each group's, once for each of its episodes; the first tokens are those of all groups."""
    start, rest = [1] * shared, case.prompt - shared
    return [[*start, *[2 + task] * rest] for task in range(case.tasks) for _ in range(case.group)]


def held_bytes(cache: SlotCache) -> int:
    return sum(buffer.nbytes for layer in cache.layers for buffer in layer.buffers)


@pytest.mark.parametrize(
    ("prompt", "reply", "tasks", "group"),
    [(40, 24, 5, 4), (10, 30, 3, 4), (100, 60, 2, 8), (300, 10, 2, 3)],
)
def test_passes_are_those_of_the_learner(prompt: int, reply: int, tasks: int, group: int):
    case = Case("dry", prompt=prompt, reply=reply, tasks=tasks, group=group, micro_batch_tokens=256)
    groups = [random_group(case, Random(n)) for n in range(tasks)]
    samples = policy_samples(groups, [[1.0] * group] * tasks, case.config)
    made = micro_batches(samples, 256)
    assert sorted(map(len, made)) == sorted(one.rows for one in case.plan.passes)


def test_what_is_copied_to_decode_are_adapters_and_a_small_models_matrices_that_read_the_same():
    # Before attention 576 x (576 + 2 x 192), before the gate 576 x 2 x 1536; 30 layers in bf16.
    copied = 2 * 30 * 576 * (576 + 2 * 192 + 2 * 1536)
    assert copied_bytes(Case("smollm2-135m", graphs=True).plan) == copied
    assert copied_bytes(Case("smollm2-135m").plan) == 0
    adapted = Case("smollm2-135m", graphs=True, rank=16).plan
    assert copied_bytes(adapted) == copied + 2 * adapted.trained
    assert copied_bytes(Case("qwen2.5-1.5b", graphs=True).plan) == 0  # 2.9 GiB


def test_constants_are_those_of_the_code_they_describe():
    ours: Sequence[int] = (
        overheads.MAX_LOGITS,
        overheads.PREFILL_TOKENS,
        overheads.DECODED,
        overheads.GRAPH_LENGTH,
        overheads.MIN_CAPACITY,
        overheads.RESERVED,
        overheads.PAGE,
        overheads.LEAST_TRUNK,
        overheads.MOST_TRUNKS,
        overheads.JOINED_MODEL,
        plans.SHORTEST_BEGINNING,
    )
    theirs = (
        scoring.MAX_LOGITS,
        local.GPU_PREFILL_TOKENS,
        graphs.STEPS,
        decoding.LENGTHS[-1],
        slots.MIN_CAPACITY,
        decoding.RESERVED,
        trunks.PAGE,
        trunks.LEAST,
        trunks.COUNT,
        projections.WORTHWHILE,
        siblings.SHORTEST,
    )
    assert tuple(ours) == theirs
