"""Estimates compared with real models: weights, KV caches, peaks of real updates."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from gpu_memory import CASES, Case, build, estimate_of, measure, random_group
from grpo_cl.gpu_memory import estimate, known_shapes
from grpo_cl.gpu_memory.constants import GIB
from grpo_cl.gpu_memory.kv_cache import decoder_copy_bytes, prefix_cache_bytes, slot_cache_bytes
from grpo_cl.gpu_memory.shape import shape_of
from grpo_cl.policy.inference.backends import transformers_sampler_for
from grpo_cl.policy.inference.sampler import GenerationRequest
from grpo_cl.policy.kernels.kv_cache import KVCache
from grpo_cl.policy.learner.batching import plan_micro_batches, policy_samples
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
"""GiB by ``benchmarks/gpu_memory.py`` on one NVIDIA H200 with torch 2.11.0, on 2026-11-15."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_parameter_counts_equal_those_of_transformers_and_peft(family: str, tied: bool, bias: bool):
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
        target_modules: Any = "all-linear" if targets == ("all-linear",) else list(targets)
        adapted: Any = get_peft_model(module, LoraConfig(r=8, target_modules=target_modules))
    trainable = [weight for weight in adapted.parameters() if weight.requires_grad]
    assert shape.lora_parameters(8, targets) == sum(weight.numel() for weight in trainable)


@pytest.mark.parametrize("name", sorted(known_shapes()))
def test_known_shapes_are_valid_transformers_configs(name: str):
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
        pytest.param(Case("dry", rank=4, prompt=160, reply=32), marks=pytest.mark.slow),
        pytest.param(
            Case("dry", is_checkpointed=True, prompt=160, reply=32), marks=pytest.mark.slow
        ),
        Case("dry", rank=4, is_checkpointed=True, prompt=16, reply=96),
        pytest.param(Case("dry", dtype="float32", prompt=160, reply=32), marks=pytest.mark.slow),
        pytest.param(
            Case("dry", dtype="float32", rank=4, is_checkpointed=True, prompt=160, reply=32),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda case: case.name,
)
def test_estimated_peaks_match_real_updates_on_a_cpu(case: Case):
    case = case._replace(micro_batch_tokens=512, tasks=3, group=4, slots=12)
    with LiveBytes() as meter:
        measured = measure(case, torch.device("cpu"), meter)
    workload = replace(case.workload, has_triton=False)
    expected = {
        phase.name: phase.peak - phase.parts["workspace"] for phase in estimate(workload).phases
    }
    assert set(measured) == set(expected)
    assert expected == pytest.approx(measured, rel=0.1)


def test_accumulation_divides_the_activations_of_a_real_update():
    case = Case("dry", prompt=16, reply=96, tasks=4, group=4, slots=16, micro_batch_tokens=4096)
    peaks: list[int] = []
    for accumulation in (1, 4):
        divided = case._replace(accumulation=accumulation)
        with LiveBytes() as meter:
            peaks.append(measure(divided, torch.device("cpu"), meter)["update"])
        (*_, update) = estimate(replace(divided.workload, has_triton=False)).phases
        assert update.peak - update.parts["workspace"] == pytest.approx(peaks[-1], rel=0.1)
    assert peaks[1] < peaks[0] / 2


def test_estimated_peaks_match_those_measured_on_an_h200():
    assert {case.name for case in CASES} == set(MEASURED)
    for case in CASES:
        expected = {phase.name: phase.peak / GIB for phase in estimate_of(case).phases}
        assert expected == pytest.approx(MEASURED[case.name], rel=0.1), case.name


def test_no_memory_is_reported_without_a_meter():
    case = Case("dry", prompt=40, reply=24, tasks=1, group=2, kl_coef=0.0)
    assert measure(case, torch.device("cpu")) == {}


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize(
    ("prompt", "shared", "tasks", "group", "slots"),
    [
        (100, 0, 3, 4, 64),  # too short for a shared prefix
        (100, 0, 2, 8, 12),  # some episodes wait for a slot
        (1100, 0, 3, 2, 64),  # one prefix per group
        (1100, 1060, 3, 2, 64),  # one prefix for all groups
        (1100, 900, 3, 2, 64),  # more than half of the prefix in common, but less than MIN_PREFIX
        (1600, 1100, 2, 2, 64),  # one prefix, of which the second group uses most
        # Prefixes for eight groups; the ninth uses the common part of one.
        pytest.param(2400, 1100, 9, 2, 64, marks=pytest.mark.slow),
        (1100, 0, 9, 2, 64),  # prefixes for eight groups; the ninth's slot holds the whole prompt
        (1025, 0, 1, 2, 64),  # the shortest prefix
    ],
)
def test_estimated_kv_caches_have_the_size_of_the_samplers_caches(
    prompt: int, shared: int, tasks: int, group: int, slots: int, graphs: bool
):
    case = Case("dry", prompt=prompt, reply=8, tasks=tasks, group=group, slots=slots, graphs=graphs)
    sampler = transformers_sampler_for(build(case, torch.device("cpu")), case.config)
    sampler.submit(
        GenerationRequest(number, number, ids, case.reply, 1.0, 1.0, (), 0)
        for number, ids in enumerate(prompts_of(case, shared))
    )
    unfinished = tasks * group
    while unfinished:
        unfinished -= len(sampler.poll())
    workload = replace(case.workload, shared_tokens=shared)
    assert slot_cache_bytes(workload) == cache_bytes(sampler._runner.cache)
    assert prefix_cache_bytes(workload) == cache_bytes(sampler._runner.prefix_kv)


def prompts_of(case: Case, shared: int) -> list[list[int]]:
    """One prompt per episode; all groups share the first ``shared`` tokens."""
    start, rest = [1] * shared, case.prompt - shared
    return [[*start, *[2 + task] * rest] for task in range(case.tasks) for _ in range(case.group)]


def cache_bytes(cache: KVCache) -> int:
    return sum(buffer.nbytes for layer in cache.layers for buffer in layer.buffers)


@pytest.mark.parametrize(
    ("prompt", "reply", "tasks", "group"),
    [(40, 24, 5, 4), (10, 30, 3, 4), (100, 60, 2, 8), (300, 10, 2, 3), (40, 4, 6, 2)],
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_micro_batches_are_those_of_the_learner(
    prompt: int, reply: int, tasks: int, group: int, accumulation: int
):
    case = Case("dry", prompt=prompt, reply=reply, group=group, micro_batch_tokens=256)
    case = case._replace(tasks=tasks * accumulation, accumulation=accumulation)
    groups = [random_group(case, Random(n)) for n in range(case.tasks)]
    samples = policy_samples(groups, [[1.0] * group] * case.tasks, case.config)
    (actual,) = plan_micro_batches(samples, case.config, 1)
    assert sorted(map(len, actual)) == sorted(batch.rows for batch in case.workload.micro_batches)


def test_decoding_copies_adapters_and_merged_linear_layers():
    # QKV 576 x (576 + 2 x 192), gate and up 576 x 2 x 1536; 30 layers in bfloat16.
    copied = 2 * 30 * 576 * (576 + 2 * 192 + 2 * 1536)
    assert decoder_copy_bytes(Case("smollm2-135m", graphs=True).workload) == copied
    assert decoder_copy_bytes(Case("smollm2-135m").workload) == 0
    adapted = Case("smollm2-135m", graphs=True, rank=16).workload
    assert decoder_copy_bytes(adapted) == copied + 2 * adapted.trainable_parameters
    # 2.9 GiB of weights: only QKV, 1536 x (1536 + 2 x 256) and a bias per output; 28 layers.
    copied = 2 * 28 * (1536 + 1) * (1536 + 2 * 256)
    assert decoder_copy_bytes(Case("qwen2.5-1.5b", graphs=True).workload) == copied
    # QKV of 32 billion weights are 4.4 GiB.
    assert decoder_copy_bytes(Case("qwen2.5-32b", graphs=True).workload) == 0
