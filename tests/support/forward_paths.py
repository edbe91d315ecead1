"""Small models of every architecture that the docs name, and which of our forward passes they use.

``python forward_paths.py`` prints the table of docs/training.md.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from architectures import CONTEXT, EAGER, GROUPED, PARTIAL_ROPE, WINDOW, built, gpt2, gpt_neox
from grpo_cl.gpu_memory.constants import PAGE_SIZE
from grpo_cl.policy.inference.fused_decode import HEAD_DIMS, FusedDecoder, make_fused_decoder
from grpo_cl.policy.kernels import attention_dispatch as attention
from grpo_cl.policy.kernels.fused_blocks import fuse_blocks, fused_blocks_are_exact
from grpo_cl.policy.kernels.llama_block import MODEL_TYPES, supports_fused_blocks
from grpo_cl.policy.model.logprobs import (
    DROPOUT_SETTINGS,
    LogprobComputer,
    plain_causal_length,
)

SIZES: dict[str, Any] = GROUPED | {"head_dim": 16}  # the smallest that decoding is fused for
WIDER: dict[str, Any] = GROUPED | {"hidden_size": 64}  # for configurations without head_dim
HEADS_OF_96: dict[str, Any] = GROUPED | {"hidden_size": 384, "initializer_range": 0.1}
WIDE_WINDOW: dict[str, Any] = {"sliding_window": 2 * PAGE_SIZE}
LONG_ROPE: dict[str, Any] = WIDER | {
    "max_position_embeddings": 4 * CONTEXT,
    "original_max_position_embeddings": CONTEXT,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.1] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": CONTEXT,
    },
}
GEMMA3: dict[str, Any] = {"query_pre_attn_scalar": 16}  # the head dimension, as in gemma-3-270m

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "Llama, eager attention": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, **EAGER)),
    "Mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "Mistral, sliding window": lambda: MistralForCausalLM(MistralConfig(**SIZES, **WINDOW)),
    "Mistral, window of the context": lambda: MistralForCausalLM(
        MistralConfig(**SIZES, **WIDE_WINDOW)
    ),
    "Qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**WIDER)),
    "Qwen2, some layers sliding": lambda: Qwen2ForCausalLM(
        Qwen2Config(**WIDER, **WINDOW, use_sliding_window=True, max_window_layers=1)
    ),
    "Qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "Gemma": lambda: GemmaForCausalLM(GemmaConfig(**SIZES)),
    "Gemma 2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, **WINDOW, **EAGER)),
    "Gemma 3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES, **WINDOW, layer_types=["sliding_attention", "full_attention"], **GEMMA3
        )
    ),
    "Phi-3": lambda: Phi3ForCausalLM(Phi3Config(**WIDER)),
    "Phi-3, head dimension 96": lambda: Phi3ForCausalLM(Phi3Config(**HEADS_OF_96)),
    "Phi-3, sliding window": lambda: Phi3ForCausalLM(Phi3Config(**WIDER, **WINDOW)),
    "Phi-3, LongRoPE": lambda: Phi3ForCausalLM(Phi3Config(**LONG_ROPE)),
    "Phi-3, partial RoPE": lambda: Phi3ForCausalLM(
        Phi3Config(**WIDER, rope_parameters=PARTIAL_ROPE)
    ),
    "GPT-NeoX": gpt_neox,
    "GPT-2": gpt2,
}


class Paths(NamedTuple):
    """Which forward passes a model uses on a GPU; the others are the model's own."""

    packed_training: bool
    fused_training: bool
    fused_sampling: bool
    """Prefill and decode."""
    has_windows: bool
    """Whether training batches are packed only if no sequence is longer than a window."""
    fallback_reasons: str
    """Why a pass is the model's own."""


class PreparedModel(NamedTuple):
    """A model as on a GPU, with the kernels in Triton's interpreter."""

    module: PreTrainedModel
    computer: LogprobComputer
    decoder: FusedDecoder | None
    paths: Paths


def make_model(name: str, *, has_adapter: bool) -> PreTrainedModel:
    """The model of an architecture, with random weights and, if wanted, a random LoRA adapter."""

    def build() -> torch.nn.Module:
        model = ARCHITECTURES[name]()
        if not has_adapter:
            return model
        adapter = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        return get_peft_model(model, adapter).get_base_model()

    module = built(build)
    assert isinstance(module, PreTrainedModel)
    return module


def prepare(module: PreTrainedModel) -> PreparedModel:
    """The passes that the model uses on a GPU; each is chosen by comparing it with the model's."""
    decoder = make_fused_decoder(module, torch.device("cpu"), context=CONTEXT)
    computer = LogprobComputer.build(module)
    is_fused = computer._can_pack and supports_fused_blocks(module)
    if is_fused:
        fuse_blocks(module)
        is_fused = fused_blocks_are_exact(module)
    reasons = ", ".join(fallback_reasons(module))
    assert bool(reasons) != (is_fused and decoder is not None)
    has_windows = 0 < plain_causal_length(module.config) < CONTEXT
    paths = Paths(computer._can_pack, is_fused, decoder is not None, has_windows, reasons)
    return PreparedModel(module, computer, decoder, paths)


def fallback_reasons(module: PreTrainedModel) -> Iterator[str]:
    """The conditions of the fused passes that a model does not meet."""
    config, base = cast(Any, module.config), cast(Any, module.base_model)
    settings = config.get_text_config().to_dict()
    if config._attn_implementation != attention.NAME:
        yield f"{config._attn_implementation} attention"
    if any(settings.get(name) for name in DROPOUT_SETTINGS):
        yield "attention dropout"
    if 0 < plain_causal_length(config) < CONTEXT:
        yield "sliding windows"
    if config.model_type not in MODEL_TYPES:
        yield "other blocks than Llama's"
    elif not supports_fused_blocks(module):
        yield "partial RoPE"
    elif (width := base.layers[0].self_attn.head_dim) not in HEAD_DIMS:
        yield f"head dimension {width}"


def table_row(name: str, paths: Paths) -> str:
    """A line of the table in docs/training.md."""
    within = " within the window" if paths.has_windows else ""
    return (
        f"| {name} | {f'packed{within}' if paths.packed_training else 'padded'} "
        f"| {f'fused{within}' if paths.fused_training else 'of the model'} "
        f"| {'fused' if paths.fused_sampling else 'of the model'} | {paths.fallback_reasons} |"
    )


if __name__ == "__main__":
    for name in ARCHITECTURES:
        paths = prepare(make_model(name, has_adapter=False)).paths
        sys.stdout.write(f"{table_row(name, paths)}\n")
