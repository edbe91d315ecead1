"""Reading GGUF, on files written here from models whose weights are known."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.import_utils import is_gguf_available

from grpo_cl.errors import ConfigError
from tiny_policies import batch, load, save_model

needs_gguf = pytest.mark.skipif(not is_gguf_available(), reason="the package gguf is not installed")

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
}


def gguf_tensor(name: str, weight: torch.Tensor) -> tuple[str, Any]:
    """A Llama weight as llama.cpp names and orders it."""
    heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
    if heads:  # llama.cpp keeps the two halves of each rotary pair side by side
        weight = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name, weight.detach().contiguous().numpy()


def write_gguf(path: Path, model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    writer = importlib.import_module("gguf").GGUFWriter(path, "llama")
    writer.add_name("written by a test")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(300)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    known = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    spare = [f"<unused{number}>" for number in range(299 - len(known))]
    writer.add_token_list([*known, "ĠĠ", *spare])
    writer.add_token_types([1] * 256 + [3, 3, 1] + [3] * len(spare))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)
    for name, weight in model.state_dict().items():
        writer.add_tensor(*gguf_tensor(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@needs_gguf
def test_a_gguf_file_has_the_weights_it_was_written_from(tmp_path: Path):
    written = load(save_model(tmp_path / "model"))
    write_gguf(tmp_path / "model.gguf", tmp_path / "model")
    policy = load(tmp_path / "model.gguf")
    expected = dict(written.trainable())
    assert all(torch.equal(weight, expected[name]) for name, weight in policy.trainable())
    assert policy.context == 64
    left = policy.logprobs(*batch()).logprobs_BT
    assert torch.allclose(left, written.logprobs(*batch()).logprobs_BT, atol=1e-5)


@needs_gguf
def test_a_policy_from_gguf_learns_and_is_saved_like_any_other(tmp_path: Path):
    write_gguf(tmp_path / "model.gguf", save_model(tmp_path / "model"))
    policy = load(tmp_path / "model.gguf")
    policy.logprobs(*batch()).logprobs_BT.sum().backward()
    assert all(weight.grad is not None for _, weight in policy.trainable())
    policy.save(tmp_path / "saved")
    assert load(tmp_path / "saved").fingerprint() == policy.fingerprint()


@needs_gguf
def test_text_is_split_as_the_file_says(tmp_path: Path):
    write_gguf(tmp_path / "model.gguf", save_model(tmp_path / "model"))
    tokenizer = load(tmp_path / "model.gguf").tokenizer
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  15")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠ", "1", "5"]


@needs_gguf
def test_no_token_is_without_an_embedding(tmp_path: Path):
    write_gguf(tmp_path / "model.gguf", save_model(tmp_path / "model"))
    tokenizer = load(tmp_path / "model.gguf").tokenizer
    assert len(tokenizer) == 300
    assert tokenizer.decode(tokenizer("x<|endoftext|>").input_ids) == "x<|endoftext|>"
    assert max(tokenizer("x<|endoftext|>").input_ids) < 300
    assert tokenizer("<|start|>x<|end|>").input_ids[::2] == [256, 257]


@pytest.mark.skipif(is_gguf_available(), reason="the package gguf is installed")
def test_without_the_package_the_sentence_says_how_to_have_it(tmp_path: Path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="pip install gguf"):
        load(tmp_path / "model.gguf")


@needs_gguf
@pytest.mark.parametrize("content", [b"", b"something else entirely", b"GGUF, or so it says"])
def test_a_file_that_is_no_gguf_is_one_sentence(tmp_path: Path, content: bytes):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot load the tokenizer of"):
        load(tmp_path / "model.gguf")


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a file but not a GGUF"):
        load(tmp_path / "model.bin")
