"""Loading GGUF files that are original here from models with tokens weights."""

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
    """A Llama weight with the name and layout of llama.cpp."""
    heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
    if heads:  # llama.cpp interleaves the two halves of each RoPE pair
        weight = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name, weight.detach().contiguous().numpy()


def write_gguf(path: Path, model_dir: Path, *, adds_bos: bool = False) -> None:
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
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    unused = [f"<unused{number}>" for number in range(299 - len(tokens))]
    writer.add_token_list([*tokens, "ĠĠ", *unused])
    writer.add_token_types([1] * 256 + [3, 3, 1] + [3] * len(unused))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(adds_bos)
    for name, weight in model.state_dict().items():
        writer.add_tensor(*gguf_tensor(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
@needs_gguf
def test_weights_of_a_gguf_file_are_those_of_the_original_model(tmp_path: Path):
    original = load(save_model(tmp_path / "model"))
    write_gguf(tmp_path / "model.gguf", tmp_path / "model")
    policy = load(tmp_path / "model.gguf")
    expected = dict(original.trainable())
    assert all(torch.equal(weight, expected[name]) for name, weight in policy.trainable())
    assert policy.context == 64
    left = policy.logprobs(*batch()).logprobs_BT
    assert torch.allclose(left, original.logprobs(*batch()).logprobs_BT, atol=1e-5)


@needs_gguf
def test_policy_from_gguf_can_be_trained_and_saved(tmp_path: Path):
    write_gguf(tmp_path / "model.gguf", save_model(tmp_path / "model"))
    policy = load(tmp_path / "model.gguf")
    policy.logprobs(*batch()).logprobs_BT.sum().backward()
    assert all(weight.grad is not None for _, weight in policy.trainable())
    policy.save(tmp_path / "saved")
    assert load(tmp_path / "saved").fingerprint() == policy.fingerprint()


@needs_gguf
def test_pre_tokenizer_is_the_one_named_in_the_file(tmp_path: Path):
    write_gguf(tmp_path / "model.gguf", save_model(tmp_path / "model"))
    tokenizer = load(tmp_path / "model.gguf").tokenizer
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  15")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠ", "1", "5"]


@needs_gguf
def test_every_token_has_an_embedding(tmp_path: Path):
    write_gguf(tmp_path / "model.gguf", save_model(tmp_path / "model"))
    tokenizer = load(tmp_path / "model.gguf").tokenizer
    assert len(tokenizer) == 300
    assert tokenizer.decode(tokenizer("x<|endoftext|>").input_ids) == "x<|endoftext|>"
    assert max(tokenizer("x<|endoftext|>").input_ids) < 300
    assert tokenizer("<|start|>x<|end|>").input_ids[::2] == [256, 257]


@pytest.mark.slow
@needs_gguf
def test_texts_begin_with_bos_if_the_file_says_so(tmp_path: Path):
    model_dir = save_model(tmp_path / "model")
    for adds_bos in (False, True):
        write_gguf(tmp_path / "model.gguf", model_dir, adds_bos=adds_bos)
        tokenizer = load(tmp_path / "model.gguf").tokenizer
        ids = tokenizer("xy").input_ids
        assert (
            ids == ([256] if adds_bos else []) + tokenizer("xy", add_special_tokens=False).input_ids
        )
        # The file has no chat template, and a conversation begins with BOS too.
        opening = (
            tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
            if adds_bos
            else ""
        )
        assert str(opening).startswith(str(tokenizer.bos_token)) == adds_bos


@pytest.mark.skipif(is_gguf_available(), reason="the package gguf is installed")
def test_missing_gguf_package_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="pip install gguf"):
        load(tmp_path / "model.gguf")


@needs_gguf
@pytest.mark.parametrize("content", [b"", b"something else entirely", b"GGUF, or so it says"])
def test_damaged_gguf_file_is_an_error(tmp_path: Path, content: bytes):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot load the tokenizer of"):
        load(tmp_path / "model.gguf")


def test_file_without_gguf_suffix_is_an_error(tmp_path: Path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a file but not a GGUF"):
        load(tmp_path / "model.bin")
