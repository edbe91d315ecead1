import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.estimate import estimate_memory, plan_settings
from grpo_cl.cli.options import read_config
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.gpu_memory import (
    Lengths,
    Workload,
    estimate,
    fewest_gpus_of_full_training,
    find_fit,
    full_training,
    plan_servers,
    read_shape,
    read_workload,
    suggest_changes,
)
from grpo_cl.gpu_memory.activations import layer_saved_bytes, materializes_attention
from grpo_cl.gpu_memory.constants import GIB
from grpo_cl.gpu_memory.estimate import changed
from grpo_cl.gpu_memory.kv_cache import (
    PrefixUse,
    prefix_cache_bytes,
    prefix_uses,
    slot_tokens,
    uses_cuda_graphs,
)
from grpo_cl.gpu_memory.phase import resident_phase
from grpo_cl.gpu_memory.sampling import sample_phase
from grpo_cl.gpu_memory.workload import TICKET_TOKENS, MicroBatch
from paths import ROOT

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def workload(
    *,
    prompt: int = 6000,
    reply: int = 500,
    shared: int | None = None,
    gpus: int = 1,
    **settings: Any,
) -> Workload:
    config = GRPOConfig.model_validate({"model_name_or_path": "qwen2.5-7b", **settings})
    return read_workload(config, Lengths(prompt, reply, shared_tokens=shared), gpus=gpus)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
    ],
)
def test_known_shapes_have_the_published_number_of_parameters(name: str, published: int):
    assert read_shape(name).parameters == published


def test_shape_is_read_from_a_folder_a_file_or_the_embedded_policy(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    folder, file = read_shape(str(tmp_path)), read_shape(str(tmp_path / "config.json"))
    assert folder == file
    assert (folder.num_key_value_heads, folder.head_dim) == (4, 16), "Llama's defaults"
    assert read_shape("tiny").parameters == 3_049_920


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model_type": "mamba"}', "model type 'mamba'; supported: gemma"),
        ('{"model_type": "llama", "hidden_size": 64}', "missing or invalid fields .* vocab_size"),
        ("[]", "not a JSON object"),
        ("{", "cannot read the model config"),
    ],
)
def test_invalid_model_config_is_refused(tmp_path: Path, content: str, message: str):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_shape(str(tmp_path))


def test_unknown_model_name_lists_the_known_names():
    with pytest.raises(ConfigError, match=r"'gpt-7'.*smollm2-135m"):
        read_shape("gpt-7")


def test_adapter_parameters_are_counted_for_their_target_layers():
    shape = read_shape("smollm2-135m")
    assert shape.lora_parameters(8, ("q_proj",)) == 30 * 8 * (576 + 576)
    assert shape.lora_parameters(8, ("v_proj", "lm_head")) == 8 * (30 * (576 + 192) + 576 + 49152)
    with pytest.raises(ConfigError, match=r"lora.targets names query.*q_proj"):
        shape.lora_linears(("query",))


def test_resident_memory_has_weights_optimizer_state_and_reference():
    parts = resident_phase(workload(), "update").parts
    weights = 7_615_616_512
    assert parts["weights"] == parts["reference"] == 2 * weights
    assert parts["float32 weights"] == 4 * weights
    assert parts["moments"] == 8 * weights
    float32 = resident_phase(workload(model_dtype="float32", kl_coef=0.0), "update").parts
    assert (float32["weights"], float32["float32 weights"], float32["reference"]) == (
        4 * weights,
        0,
        0,
    )


def test_lora_needs_neither_float32_copies_nor_a_reference_model():
    adapted = workload(lora={"r": 16})
    parts = resident_phase(adapted, "update").parts
    assert parts["weights"] == 2 * 7_615_616_512 + 4 * adapted.trainable_parameters
    assert parts["moments"] == 8 * adapted.trainable_parameters
    assert parts["float32 weights"] == parts["reference"] == 0


def test_weights_optimizer_state_and_reference_are_sharded():
    whole, shard = (
        resident_phase(workload(), "x").parts,
        resident_phase(workload(gpus=4, sharding="fsdp"), "x").parts,
    )
    for part in ("weights", "float32 weights", "moments", "reference"):
        assert shard[part] == whole[part] // 4


def test_sharded_weights_are_gathered_only_where_the_training_process_samples():
    shards: dict[str, Any] = {"gpus": 4, "sharding": "fsdp", "kl_coef": 0.0}
    server = {"engine": "server", "servers": ["http://127.0.0.1:8000"]}
    local, remote = (
        sample_phase(workload(**shards, sampling=engine)).parts["weights"]
        for engine in ({}, server)
    )
    weights = 2 * 7_615_616_512
    assert (local, remote) == (weights // 4 + weights, weights // 4)


def test_a_group_computes_its_prompt_once_and_groups_share_a_micro_batch():
    batched = workload(prompt=1000, reply=100, num_samples_per_prompt=8, batch_size_per_gpu=10)
    assert batched.largest_micro_batch == MicroBatch(rows=72, tokens=9 * 1800)
    assert [batch.rows for batch in batched.micro_batches] == [72, 72, 16]


def test_a_group_over_the_token_budget_is_split_but_an_episode_is_not():
    batched = workload(prompt=6000, reply=2000, num_samples_per_prompt=8)
    assert [batch.rows for batch in batched.micro_batches] == [5] * 8 + [3] * 8
    single = workload(prompt=20_000, reply=1000)
    assert single.largest_micro_batch == MicroBatch(1, 21_000)


def test_short_or_different_prompts_are_computed_for_every_episode():
    apart = replace(workload(prompt=1000, reply=24), has_shared_prompt=False)
    assert apart.largest_micro_batch == workload(prompt=1000, reply=24)._padded(16)
    assert workload(prompt=31, reply=97).largest_micro_batch.tokens == 16 * 128


def test_half_the_batch_with_twice_the_accumulation_needs_less_memory_for_the_same_update():
    episodes: dict[str, Any] = {"prompt": 500, "reply": 100, "lora": {"r": 8}}
    whole, halved = (
        workload(**episodes, batch_size_per_gpu=size, gradient_accumulation_steps=steps)
        for size, steps in ((8, 1), (4, 2))
    )
    assert whole.episodes == halved.episodes == 32
    assert [batch.rows for batch in halved.micro_batches] == [16, 16]
    before, after = (estimate(load).phases[-1].parts["activations"] for load in (whole, halved))
    assert after == pytest.approx(before / 2, rel=0.05)
    (change,) = (
        change
        for change in suggest_changes(estimate(whole))
        if change.setting == "--batch_size_per_gpu 4 --gradient_accumulation_steps 2"
    )
    assert change.keeps_results
    assert change.after.workload.episodes == 32


def test_a_rank_has_the_same_episodes_for_any_number_of_gpus():
    assert workload(gpus=4).episodes == workload().episodes == 4 * 2 * 4


def test_a_sliding_window_model_is_padded_instead_of_packed():
    packed = workload(prompt=1000, reply=100)
    windowed = packed.shape.model_copy(update={"sliding_window": 4096, "use_sliding_window": True})
    batch = replace(packed, shape=windowed).largest_micro_batch
    assert batch.tokens == batch.rows * 1100


def test_a_window_of_the_whole_context_changes_nothing(tmp_path: Path):
    sizes = LLAMA | {"model_type": "mistral"}
    peaks: list[int] = []
    for window, context in ((None, 300), (300, 300), (299, 300)):
        path = tmp_path / f"{window}.json"
        path.write_text(json.dumps(sizes | {"sliding_window": window}))
        load = workload(
            prompt=200, reply=50, model_name_or_path=str(path), sampling={"max_context": context}
        )
        peaks.append(estimate(load).peak)
    assert peaks[0] == peaks[1] != peaks[2]


def test_gradient_checkpointing_reduces_activations_only():
    plain, checkpointed = (
        workload(lora={"r": 8}),
        workload(lora={"r": 8}, gradient_checkpointing=True),
    )
    before, after = (estimate(load).phases[-1] for load in (plain, checkpointed))
    assert before.parts["activations"] > 3 * after.parts["activations"]
    assert sample_phase(plain).parts == sample_phase(checkpointed).parts


def test_float32_grouped_query_attention_saves_the_attention_matrix_of_padded_rows():
    packed = workload(model_name_or_path="smollm2-135m", model_dtype="float32")
    windows = {"sliding_window": 4096, "use_sliding_window": True}
    shared = replace(packed, shape=packed.shape.model_copy(update=windows))
    assert not materializes_attention(packed)
    alone = shared.shape.model_copy(update={"num_key_value_heads": 9})
    more = estimate(shared).peak - estimate(replace(shared, shape=alone)).peak
    assert more > 30 * 4 * 9 * shared.largest_micro_batch.tokens * shared.length / 2


def test_fused_layers_save_their_inputs_and_others_float32_copies_too():
    fused = workload(model_name_or_path="smollm2-135m", model_dtype="bfloat16")
    # Hidden states of 576, keys of 192, an MLP of 1536, a float for each of 9 heads.
    attention = 2 * 2 * (576 + 192) + 4 * 9
    assert layer_saved_bytes(fused, MicroBatch(1, 1)) == 2 * (4 * 576 + 3 * 1536) + attention
    windows = {"sliding_window": 4096, "use_sliding_window": True}
    plain = 2 * (4 * 576 + 2 * 576 + 4) + 2 * 2 * 576 + 2 * 4 * 1536 + attention
    for other in (
        replace(fused, shape=fused.shape.model_copy(update=windows)),
        replace(fused, has_triton=False),
    ):
        assert layer_saved_bytes(other, MicroBatch(1, 1)) == plain


def test_kv_cache_of_cuda_graphs_stays_allocated_during_the_update():
    plain, graphs = (workload(prompt=1000, sampling={"cuda_graphs": has}) for has in (False, True))
    retained, freed = (estimate(load).phases[-1].parts["sampler"] for load in (graphs, plain))
    # 65 slots of 1507 tokens, rounded up to a power of two; merged QKV weights and biases.
    kv_cache, merged = 2 * 28 * 2 * 65 * 2048 * 512, 2 * 28 * (3584 + 1) * (3584 + 2 * 512)
    assert (retained, freed) == (kv_cache + merged, 0)
    buffer = 2 * 32 * 2048 * 512
    assert sample_phase(plain).parts["sampler"] == 2 * 28 * buffer + buffer // 2


def test_cuda_graphs_are_the_default_unless_vllm_samples_or_weights_are_sharded():
    assert uses_cuda_graphs(workload())
    assert not uses_cuda_graphs(workload(sampling={"cuda_graphs": False}))
    assert not uses_cuda_graphs(workload(sampling={"engine": "vllm"}))
    assert not uses_cuda_graphs(workload(gpus=2, sharding="fsdp"))
    assert "--sampling.cuda_graphs false" in {
        change.setting for change in suggest_changes(estimate(workload()))
    }


def test_a_prefix_shared_by_all_tasks_is_cached_once():
    own, shared = (
        workload(batch_size_per_gpu=10, gradient_accumulation_steps=1, shared=tokens)
        for tokens in (0, 5800)
    )
    assert prefix_uses(own) == [PrefixUse(1, 5888)] * 8 + [PrefixUse(2, 0)]
    assert prefix_uses(shared) == [PrefixUse(1, 5888), PrefixUse(9, 5632)]
    assert (slot_tokens(own), slot_tokens(shared)) == (6500, 868)
    # The probe allocates two slots before the first prefix; capacity is a power of two.
    assert prefix_cache_bytes(shared) == 2 * 28 * 2 * 2 * 8192 * 512
    assert prefix_cache_bytes(own) == 4 * prefix_cache_bytes(shared)


def test_prompts_share_all_but_a_ticket_by_default():
    assert workload(prompt=6000).shared_tokens == 6000 - TICKET_TOKENS
    assert workload(prompt=100).shared_tokens == 0
    with pytest.raises(ConfigError, match=r"6000 tokens cannot share 6001; give --shared_tokens 0"):
        workload(shared=6001)


def test_a_sliding_window_model_has_no_cached_prefix():
    packed = workload()
    windowed = packed.shape.model_copy(update={"sliding_window": 4096, "use_sliding_window": True})
    assert prefix_uses(replace(packed, shape=windowed)) == [PrefixUse(packed.distinct_prompts, 0)]


def test_vllm_reserves_its_share_of_the_gpu():
    share = 0.3 * 80 * GIB
    parts = sample_phase(workload(sampling={"engine": "vllm"})).parts
    assert parts["sampler"] == round(share)
    update = [
        estimate(workload(sampling={"engine": "vllm", "release_cache": release})).phases[-1].parts
        for release in (False, True)
    ]
    assert [parts["sampler"] for parts in update] == [round(share), 0]
    with pytest.raises(ConfigError, match=r"sampling.gpu_share=0.1 .* raise it above 0.18"):
        estimate(workload(sampling={"engine": "vllm", "gpu_share": 0.1}))
    server = {"engine": "server", "servers": ["http://127.0.0.1:8000"]}
    assert sample_phase(workload(sampling=server)).parts["sampler"] == 0


def test_advice_lists_the_savings_of_each_change_and_a_combination_that_fits():
    before = estimate(workload())
    suggested = suggest_changes(before)
    assert "--gradient_checkpointing" in {change.setting for change in suggested}
    assert [change.keeps_results for change in suggested] == sorted(
        (change.keeps_results for change in suggested), reverse=True
    )
    for change in suggested:
        assert before.needed - change.after.needed == change.saves > 0
    steps = find_fit(before)
    assert steps[-1].after.fits
    assert not before.fits
    assert find_fit(steps[-1].after) == []


def test_sharding_is_suggested_with_several_gpus():
    settings = [change.setting for change in suggest_changes(estimate(workload(gpus=8)))]
    assert "--sharding fsdp" in settings


@pytest.mark.parametrize(
    ("model", "degree", "servers", "fewest"), [("qwen2.5-32b", 2, 2, 16), ("qwen2.5-72b", 4, 1, 64)]
)
def test_large_models_are_planned_with_servers_on_half_of_eight_gpus(
    model: str, degree: int, servers: int, fewest: int
):
    given = workload(prompt=6000, reply=2048, gpus=8, model_name_or_path=model)
    plan = plan_servers(estimate(given))
    assert plan is not None
    assert (plan.tensor_parallel, plan.servers, plan.workload.gpus) == (degree, servers, 4)
    assert plan.training.fits
    assert plan.cached_episodes > plan.workload.gpus
    # A step has the same tasks on half of the GPUs.
    assert plan.workload.config.tasks_per_step(world_size=4) == given.config.tasks_per_step(
        world_size=8
    )
    # The weights of 72B in bfloat16, on four GPUs of a server.
    assert plan.weights == 2 * given.shape.parameters // degree
    # What is printed are settings of a run, which fits by itself.
    words = ["--model_name_or_path", model, *shlex.split(plan_settings(plan))]
    config = read_config(words)
    assert estimate(read_workload(config, Lengths(6000, 2048), gpus=4)).fits
    # All weights need more GPUs: half as many are too few.
    assert fewest_gpus_of_full_training(given) == fewest
    assert full_training(given, fewest).fits
    assert not full_training(given, fewest // 2).fits


def test_a_plan_has_only_changes_that_are_needed():
    plan = plan_servers(estimate(workload(prompt=6000, gpus=8, model_name_or_path="qwen2.5-72b")))
    assert plan is not None
    for name in ("gradient_checkpointing", "lora.r"):
        without = {key: value for key, value in plan.settings.items() if key != name}
        base = replace(workload(model_name_or_path="qwen2.5-72b"), gpus=4)
        assert not estimate(changed(base, without)).fits, name


def test_no_servers_are_planned_for_one_gpu_or_a_run_that_fits(
    capsys: pytest.CaptureFixture[str],
):
    for model in ("qwen2.5-32b", "qwen2.5-72b"):  # training 32B with LoRA alone fits one GPU
        assert plan_servers(estimate(workload(model_name_or_path=model))) is None
    assert main(["estimate-memory", "--prompt-tokens", "6000", "--reply-tokens", "500"]) == 0
    assert "vllm serve" not in capsys.readouterr().out


def test_documentation_has_the_printed_plan(capsys: pytest.CaptureFixture[str]):
    text = (ROOT / "docs" / "memory-use.md").read_text()
    command = next(line for line in text.splitlines() if "qwen2.5-72b --gpus 8" in line)
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    assert printed[printed.index("With rollout servers") :].strip() in text


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--gpu_memory", "80"], "The run fits in"),
        (
            ["--lora.r", "16", "--gradient_checkpointing"],
            "With 80.0 GiB the run fits",
        ),
        (["--model_name_or_path", "qwen2.5-72b"], "No setting makes the run fit"),
    ],
)
def test_command_prints_whether_a_run_fits(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
):
    assert (
        main(["estimate-memory", "--prompt-tokens", "6000", "--reply-tokens", "500", *words]) == 0
    )
    printed = capsys.readouterr().out
    assert shown in printed
    assert "Prompts share their first 5744 tokens" in printed
    assert "peak" in printed


def test_command_accepts_a_run_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "run.yaml"
    config.write_text("model_name_or_path: tiny\nlora: {r: 4}\n")
    assert main(["estimate-memory", "--config", str(config), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["fits"] is True
    assert printed["trained"] == read_shape("tiny").lora_parameters(4, ("all-linear",))
    assert set(printed["phases"]) == {"sample", "update"}, "no score phase without kl_coef"
    for phase in printed["phases"].values():
        peak = phase.pop("peak")
        assert sum(phase.values()) == peak


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": ["--model_name_or_path", "tiny"], "prompt_tokens": 4000}, "no room"),
        ({"settings": ["--model_name_or_path", "gpt-7"]}, "not a known shape"),
        ({"settings": ["--sharding", "fsdp"]}, "several GPUs"),
        ({"settings": ["--lora_rank", "4"]}, "unknown setting 'lora_rank'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str):
    defaults: dict[str, Any] = {
        "prompt_tokens": None,
        "reply_tokens": None,
        "turn_tokens": None,
        "shared_tokens": None,
        "gpus": 1,
        "gpu_memory": 80.0,
        "json": False,
        "settings": [],
    }
    with pytest.raises(ConfigError, match=message):
        estimate_memory(argparse.Namespace(**{**defaults, **options}))
