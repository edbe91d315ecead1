"""Estimates against models as they are: counted weights, saved tensors, peaks of real updates."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from gpu_memory import Case, build, estimate_of, measure, random_group
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_cl.config import GRPOConfig
from grpo_cl.footprint import known_shapes, overheads
from grpo_cl.footprint import plan as plans
from grpo_cl.footprint.cache import cache_bytes
from grpo_cl.footprint.overheads import WORKSPACE
from grpo_cl.footprint.plan import Pass, Plan
from grpo_cl.footprint.shape import shape_of
from grpo_cl.footprint.training import kept_activations
from grpo_cl.policy import decoding, sampler, scoring, siblings, slots
from grpo_cl.policy.batching import micro_batches, policy_samples
from grpo_cl.policy.engines import own_sampler
from grpo_cl.policy.sampler import Request
from live_bytes import LiveBytes

FAMILIES = ("gemma", "llama", "mistral", "qwen2", "qwen3")
SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 80,
    "intermediate_size": 212,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "sliding_window": None,
}


def module_of(family: str, dtype: str = "float32", **changes: Any) -> tuple[Any, dict[str, Any]]:
    config = AutoConfig.for_model(family, **{**SIZES, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=dtype), config.to_dict()


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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("again", [True, False])
def test_activations_are_those_that_autograd_keeps(family: str, dtype: str, rank: int, again: bool):
    # One key head per query head, for which a CPU and a GPU take kernels that keep the same.
    module, config = module_of(family, dtype, num_key_value_heads=4)
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
    found = saved_bytes(module.train())
    assert kept_activations(plan, Pass(2, 128)) == pytest.approx(found, rel=0.1)


def saved_bytes(module: Any) -> int:
    own = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module.model(torch.randint(0, 100, (2, 64)), use_cache=False)
    assert output[0].requires_grad
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)


@pytest.mark.parametrize(
    ("dtype", "again", "rank", "prompt", "reply"),
    [
        ("bfloat16", False, 0, 16, 96),
        ("bfloat16", False, 4, 160, 32),
        ("bfloat16", True, 0, 160, 32),
        ("bfloat16", True, 4, 16, 96),
        ("float32", False, 0, 160, 32),
        ("float32", True, 4, 160, 32),
    ],
)
def test_peaks_of_real_updates_are_foretold(
    dtype: str, again: bool, rank: int, prompt: int, reply: int
):
    case = Case(
        "dry",
        dtype=dtype,
        rank=rank,
        is_checkpointed=again,
        prompt=prompt,
        reply=reply,
        micro_batch_tokens=512,
        tasks=3,
        group=4,
        slots=12,
    )
    with LiveBytes() as meter:
        found = measure(case, torch.device("cpu"), meter)
    expected = {phase.name: phase.peak - WORKSPACE for phase in estimate_of(case).phases}
    assert set(found) == set(expected)
    assert expected == pytest.approx(found, rel=0.1)


def test_nothing_is_said_about_memory_where_nobody_counts():
    case = Case("dry", prompt=40, reply=24, tasks=1, group=2, kl_coef=0.0)
    assert measure(case, torch.device("cpu")) == {}


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize(("tasks", "group", "slots"), [(3, 4, 64), (2, 8, 12)])
def test_the_cache_has_the_bytes_of_the_samplers_own(
    tasks: int, group: int, slots: int, graphs: bool
):
    case = Case("dry", prompt=100, reply=20, tasks=tasks, group=group, slots=slots, graphs=graphs)
    policy = build(case, torch.device("cpu"))
    writer = own_sampler(policy, case.config)
    for number in range(tasks * group):
        writer.submit([Request(number, number, [1 + number] * 112, 8, 1.0, 1.0, (), 0)])
    writer.poll()
    held = sum(buffer.nbytes for layer in writer._reader.cache.layers for buffer in layer.buffers)
    assert cache_bytes(case.plan) == held


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


def test_constants_are_those_of_the_code_they_describe():
    ours: Sequence[int] = (
        overheads.MAX_LOGITS,
        overheads.PREFILL_TOKENS,
        overheads.DECODED,
        overheads.GRAPH_LENGTH,
        overheads.MIN_CAPACITY,
        plans.SHORTEST_BEGINNING,
    )
    theirs = (
        scoring.MAX_LOGITS,
        sampler.GPU_PREFILL_TOKENS,
        decoding.STEPS,
        decoding.LENGTHS[-1],
        slots.MIN_CAPACITY,
        siblings.SHORTEST,
    )
    assert tuple(ours) == theirs
