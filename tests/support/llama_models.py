"""Small models of Llama's architecture, with and without LoRA."""

from typing import Any

from peft import LoraConfig, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from architectures import GROUPED

CONTEXT = 1600


SIZES: dict[str, Any] = GROUPED | {"max_position_embeddings": CONTEXT, "head_dim": 16}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True))


def qwen2() -> PreTrainedModel:
    sizes: dict[str, Any] = SIZES | {"hidden_size": 64}
    sizes.pop("head_dim")
    return Qwen2ForCausalLM(Qwen2Config(**sizes))


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES))


def phi3() -> PreTrainedModel:
    sizes: dict[str, Any] = SIZES | {"hidden_size": 64}
    sizes.pop("head_dim")
    return Phi3ForCausalLM(Phi3Config(**sizes))


def adapted(model: PreTrainedModel, targets: str | list[str]) -> PreTrainedModel:
    adapters = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    return get_peft_model(model, adapters).get_base_model()  # type: ignore[return-value]


def adapted_llama() -> PreTrainedModel:
    return adapted(llama(), "all-linear")


def adapted_phi3() -> PreTrainedModel:
    return adapted(phi3(), "all-linear")


def partly_adapted_qwen2() -> PreTrainedModel:
    return adapted(qwen2(), ["k_proj", "v_proj", "up_proj"])
