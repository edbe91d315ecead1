"""Small random models of every type with a memory estimate."""

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

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
    """A model, and its configuration as in ``config.json``."""
    config = AutoConfig.for_model(family, **{**SIZES, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=dtype), config.to_dict()
