import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.estimate import estimate_memory
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.footprint import Lengths, Plan, changes, estimate, read_plan, read_shape, recipe
from grpo_cl.footprint.activations import is_plain, saved_by_layer
from grpo_cl.footprint.cache import has_graphs, trunks_bytes
from grpo_cl.footprint.overheads import GIB
from grpo_cl.footprint.plan import TICKET_TOKENS, Pass
from grpo_cl.footprint.sampling import sample_phase
from grpo_cl.footprint.training import resident
from grpo_cl.footprint.trunks import Root, roots, row_tokens

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def plan(
    *,
    prompt: int = 6000,
    reply: int = 500,
    shared: int | None = None,
    gpus: int = 1,
    **settings: Any,
) -> Plan:
    config = GRPOConfig.model_validate({"model_name_or_path": "qwen2.5-7b", **settings})
    return read_plan(config, Lengths(prompt, reply, shared_tokens=shared), gpus=gpus)


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
def test_known_shapes_have_the_weights_that_were_published(name: str, published: int):
    assert read_shape(name).parameters == published


def test_a_folder_a_file_and_the_embedded_policy_are_read(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    folder, file = read_shape(str(tmp_path)), read_shape(str(tmp_path / "config.json"))
    assert folder == file
    assert (folder.num_key_value_heads, folder.head_dim) == (4, 16), "as Llama's own defaults"
    assert read_shape("tiny").parameters == 1_967_808


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"model_type": "mamba"}', "of model type 'mamba'; memory is known of gemma"),
        ('{"model_type": "llama", "hidden_size": 64}', "lacks or garbles vocab_size"),
        ("[]", "no JSON object"),
        ("{", "cannot read the model config"),
    ],
)
def test_a_config_that_says_too_little_is_refused(tmp_path: Path, content: str, complaint: str):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        read_shape(str(tmp_path))


def test_an_unknown_name_is_answered_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"'gpt-7'.*smollm2-135m"):
        read_shape("gpt-7")


def test_adapters_are_counted_for_the_matrices_they_are_on():
    shape = read_shape("smollm2-135m")
    assert shape.adapter_parameters(8, ("q_proj",)) == 30 * 8 * (576 + 576)
    assert shape.adapter_parameters(8, ("v_proj", "lm_head")) == 8 * (
        30 * (576 + 192) + 576 + 49152
    )
    with pytest.raises(ConfigError, match=r"lora.targets names query.*q_proj"):
        shape.adapted(("query",))


def test_what_stays_in_memory_is_what_the_optimizer_keeps():
    parts = resident(plan(), "update").parts
    weights = 7_615_616_512
    assert parts["weights"] == parts["reference"] == 2 * weights
    assert parts["float32 weights"] == 4 * weights
    assert parts["moments"] == 8 * weights
    exact = resident(plan(model_dtype="float32", kl_coef=0.0), "update").parts
    assert (exact["weights"], exact["float32 weights"], exact["reference"]) == (4 * weights, 0, 0)


def test_adapters_need_neither_copies_nor_a_second_model():
    adapted = plan(lora={"r": 16})
    parts = resident(adapted, "update").parts
    assert parts["weights"] == 2 * 7_615_616_512 + 4 * adapted.trained
    assert parts["moments"] == 8 * adapted.trained
    assert parts["float32 weights"] == parts["reference"] == 0


def test_shards_hold_a_part_of_everything_but_the_reference():
    whole, shard = resident(plan(), "x").parts, resident(plan(gpus=4, sharding="fsdp"), "x").parts
    for part in ("weights", "float32 weights", "moments"):
        assert shard[part] == whole[part] // 4
    assert shard["reference"] == whole["reference"]


def test_a_group_computes_its_prompt_once_and_groups_share_a_pass():
    found = plan(prompt=1000, reply=100, num_samples_per_prompt=8, batch_size_per_gpu=10)
    assert found.widest_pass == Pass(rows=72, tokens=9 * 1800)
    assert [one.rows for one in found.passes] == [72, 72, 16]


def test_a_group_that_is_too_long_is_cut_and_one_episode_is_never():
    found = plan(prompt=6000, reply=2000, num_samples_per_prompt=8)
    assert [one.rows for one in found.passes] == [5] * 8 + [3] * 8
    single = plan(prompt=20_000, reply=1000)
    assert single.widest_pass == Pass(1, 21_000)


def test_short_or_different_prompts_are_computed_in_every_episode():
    apart = replace(plan(prompt=1000, reply=24), has_shared_prompt=False)
    assert apart.widest_pass == plan(prompt=1000, reply=24)._padded(16)
    assert plan(prompt=31, reply=97).widest_pass.tokens == 32 * 128


def test_a_model_with_windows_is_read_in_rows():
    packed = plan(prompt=1000, reply=100)
    windowed = packed.shape.model_copy(update={"sliding_window": 4096, "use_sliding_window": True})
    found = replace(packed, shape=windowed).widest_pass
    assert found.tokens == found.rows * 1100


def test_checkpointing_saves_activations_and_nothing_else():
    plain, again = plan(lora={"r": 8}), plan(lora={"r": 8}, gradient_checkpointing=True)
    before, after = (estimate(one).phases[-1] for one in (plain, again))
    assert before.parts["activations"] > 3 * after.parts["activations"]
    assert sample_phase(plain).parts == sample_phase(again).parts


def test_float32_with_shared_key_heads_keeps_all_attention_weights_of_unpacked_rows():
    packed = plan(model_name_or_path="smollm2-135m", model_dtype="float32")
    windows = {"sliding_window": 4096, "use_sliding_window": True}
    shared = replace(packed, shape=packed.shape.model_copy(update=windows))
    assert not is_plain(packed)
    alone = shared.shape.model_copy(update={"num_key_value_heads": 9})
    more = estimate(shared).peak - estimate(replace(shared, shape=alone)).peak
    assert more > 30 * 4 * 9 * shared.widest_pass.tokens * shared.length / 2


def test_fused_layers_keep_what_they_read_and_others_floats_besides():
    fused = plan(model_name_or_path="smollm2-135m", model_dtype="bfloat16")
    # Hidden states of 576, keys of 192, an MLP of 1536, a float for each of 9 heads.
    attention = 2 * 2 * (576 + 192) + 4 * 9
    assert saved_by_layer(fused, Pass(1, 1)) == 2 * (4 * 576 + 3 * 1536) + attention
    windows = {"sliding_window": 4096, "use_sliding_window": True}
    plain = 2 * (4 * 576 + 2 * 576 + 4) + 2 * 2 * 576 + 2 * 4 * 1536 + attention
    for other in (
        replace(fused, shape=fused.shape.model_copy(update=windows)),
        replace(fused, has_kernels=False),
    ):
        assert saved_by_layer(other, Pass(1, 1)) == plain


def test_a_cache_with_graphs_over_it_stays_while_the_policy_learns():
    plain, graphs = (plan(prompt=1000, sampling={"cuda_graphs": has}) for has in (False, True))
    stays, goes = (estimate(one).phases[-1].parts["sampler"] for one in (graphs, plain))
    # 65 rows of 1507 tokens, rounded up to a power of two.
    assert (stays, goes) == (2 * 28 * 2 * 65 * 2048 * 512, 0)
    buffer = 2 * 32 * 2048 * 512
    assert sample_phase(plain).parts["sampler"] == 2 * 28 * buffer + buffer // 2


def test_graphs_are_what_a_run_gets_that_says_nothing_unless_others_write_or_weights_are_spread():
    assert has_graphs(plan())
    assert not has_graphs(plan(sampling={"cuda_graphs": False}))
    assert not has_graphs(plan(sampling={"engine": "vllm"}))
    assert not has_graphs(plan(gpus=2, sharding="fsdp"))
    assert "--sampling.cuda_graphs false" in {one.setting for one in changes(estimate(plan()))}


def test_a_beginning_that_all_tasks_share_is_kept_once():
    own, shared = (
        plan(batch_size_per_gpu=10, gradient_accumulation_steps=1, shared=tokens)
        for tokens in (0, 5800)
    )
    assert roots(own) == [Root(1, 5888)] * 8 + [Root(2, 0)]
    assert roots(shared) == [Root(1, 5888), Root(9, 5632)]
    assert (row_tokens(own), row_tokens(shared)) == (6500, 868)
    # Two rows are tried before the first trunk is read, which has room for a power of two.
    assert trunks_bytes(shared) == 2 * 28 * 2 * 2 * 8192 * 512
    assert trunks_bytes(own) == 4 * trunks_bytes(shared)


def test_prompts_share_all_but_a_ticket_where_nothing_is_said():
    assert plan(prompt=6000).shared_tokens == 6000 - TICKET_TOKENS
    assert plan(prompt=100).shared_tokens == 0
    with pytest.raises(ConfigError, match=r"6000 tokens cannot share 6001; give --shared_tokens 0"):
        plan(shared=6001)


def test_a_model_with_windows_keeps_no_beginning_apart():
    packed = plan()
    windowed = packed.shape.model_copy(update={"sliding_window": 4096, "use_sliding_window": True})
    assert roots(replace(packed, shape=windowed)) == [Root(packed.beginnings, 0)]


def test_vllm_takes_its_share_of_the_gpu():
    share = 0.3 * 80 * GIB
    parts = sample_phase(plan(sampling={"engine": "vllm"})).parts
    assert parts["sampler"] == round(share)
    update = [
        estimate(plan(sampling={"engine": "vllm", "release_cache": release})).phases[-1].parts
        for release in (False, True)
    ]
    assert [parts["sampler"] for parts in update] == [round(share), 0]
    with pytest.raises(ConfigError, match=r"sampling.gpu_share=0.1 .* raise it above 0.18"):
        estimate(plan(sampling={"engine": "vllm", "gpu_share": 0.1}))
    server = {"engine": "server", "servers": ["http://127.0.0.1:8000"]}
    assert sample_phase(plan(sampling=server)).parts["sampler"] == 0


def test_advice_names_what_each_change_saves_and_a_way_that_fits():
    found = estimate(plan())
    helping = changes(found)
    assert "--gradient_checkpointing" in {one.setting for one in helping}
    assert [one.keeps_results for one in helping] == sorted(
        (one.keeps_results for one in helping), reverse=True
    )
    for one in helping:
        assert found.needed - one.after.needed == one.saves > 0
    steps = recipe(found)
    assert steps[-1].after.fits
    assert not found.fits
    assert recipe(steps[-1].after) == []


def test_sharding_is_proposed_where_there_are_gpus():
    settings = [one.setting for one in changes(estimate(plan(gpus=8)))]
    assert "--sharding fsdp" in settings


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--gpu_memory", "80"], "It fits in"),
        (
            ["--lora.r", "16", "--gradient_checkpointing"],
            "of 80.0 GiB it fits",
        ),
        (["--model_name_or_path", "qwen2.5-72b"], "No setting lets it fit"),
    ],
)
def test_the_command_says_whether_a_run_fits(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
):
    assert (
        main(["estimate-memory", "--prompt-tokens", "6000", "--reply-tokens", "500", *words]) == 0
    )
    printed = capsys.readouterr().out
    assert shown in printed
    assert "Prompts begin with 5744 tokens alike" in printed
    assert "peak" in printed


def test_the_command_takes_the_config_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "run.yaml"
    config.write_text("model_name_or_path: tiny\nlora: {r: 4}\n")
    assert main(["estimate-memory", "--config", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is True
    assert found["trained"] == read_shape("tiny").adapter_parameters(4, ("all-linear",))
    assert set(found["phases"]) == {"sample", "update"}, "without kl_coef nothing is scored"
    for phase in found["phases"].values():
        peak = phase.pop("peak")
        assert sum(phase.values()) == peak


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"prompt_tokens": 0}, "1 or more"),
        ({"gpus": 0}, "--gpus is 1 or more"),
        ({"shared_tokens": -1}, "--shared_tokens are 0 or more"),
        ({"settings": ["--model_name_or_path", "tiny"], "prompt_tokens": 4000}, "no room"),
        ({"settings": ["--sharding", "fsdp"]}, "several GPUs"),
        ({"settings": ["--lora_rank", "4"]}, "unknown setting 'lora_rank'"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], complaint: str):
    asked: dict[str, Any] = {
        "prompt_tokens": None,
        "reply_tokens": None,
        "turn_tokens": 128,
        "shared_tokens": None,
        "gpus": 1,
        "gpu_memory": 80.0,
        "json": False,
        "settings": [],
    }
    with pytest.raises(ConfigError, match=complaint):
        estimate_memory(argparse.Namespace(**{**asked, **given}))
