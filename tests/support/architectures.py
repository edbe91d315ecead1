"""Small models of several architectures with random weights."""

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 50
CONTEXT = 256
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.4,  # so that random weights give distinct logits
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GROUPED: dict[str, Any] = SIZES | {"num_key_value_heads": 2}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
WINDOW: dict[str, Any] = {"sliding_window": 12}
PARTIAL_ROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
}


def llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**GROUPED))


def eager_llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**GROUPED | EAGER))


def qwen2() -> torch.nn.Module:
    return Qwen2ForCausalLM(Qwen2Config(**GROUPED))


def qwen2_with_sliding_layers() -> torch.nn.Module:
    config = Qwen2Config(**GROUPED | WINDOW, use_sliding_window=True, max_window_layers=1)
    return Qwen2ForCausalLM(config)


def qwen3() -> torch.nn.Module:
    return Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=16))


def sliding_mistral() -> torch.nn.Module:
    return MistralForCausalLM(MistralConfig(**GROUPED | WINDOW))


def gemma2() -> torch.nn.Module:
    return Gemma2ForCausalLM(Gemma2Config(**GROUPED | WINDOW | EAGER, head_dim=16))


def gpt_neox() -> torch.nn.Module:
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES))


def gpt2() -> torch.nn.Module:
    special: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
    config = GPT2Config(vocab_size=VOCABULARY, initializer_range=0.4, **sizes | special)
    return GPT2LMHeadModel(config)


def llama_with_adapter() -> torch.nn.Module:
    adapter = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(LlamaForCausalLM(LlamaConfig(**GROUPED)), adapter)


BUILDERS: list[Callable[[], torch.nn.Module]] = [
    llama,
    eager_llama,
    qwen2,
    qwen2_with_sliding_layers,
    qwen3,
    sliding_mistral,
    gemma2,
    gpt_neox,
    gpt2,
    llama_with_adapter,
]


def built(builder: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return builder().eval()
