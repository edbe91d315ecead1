"""Policies of a few thousand random weights, with a byte-level tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.model.policy_model import PolicyModel

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
    "initializer_range": 0.2,
}
ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(vocab_size=300, tie_word_embeddings=False, **SIZES),
    "qwen2": lambda: Qwen2Config(vocab_size=300, tie_word_embeddings=True, **SIZES),
    "gemma2": lambda: Gemma2Config(
        vocab_size=300, head_dim=8, final_logit_softcapping=2.0, **SIZES
    ),
    "granite": lambda: GraniteConfig(vocab_size=300, logits_scaling=3.0, **SIZES),
    "cohere": lambda: CohereConfig(vocab_size=300, logit_scale=0.5, **SIZES),
    "gpt2": lambda: GPT2Config(
        vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0
    ),
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and two special tokens around a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: id for id, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|end|>"
    )
    fast.chat_template = TEMPLATE
    return fast


def save_model(path: Path, architecture: str = "llama") -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(ARCHITECTURES[architecture]())
    model.save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def config(model: Path | str, **settings: Any) -> GRPOConfig:
    chosen: dict[str, Any] = {"model_dtype": "float32", **settings}
    return GRPOConfig(model_name_or_path=str(model), **chosen)


def load(model: Path | str, **settings: Any) -> PolicyModel:
    return PolicyModel.load(config(model, **settings), device=torch.device("cpu"))


def batch() -> tuple[Tensor, Tensor]:
    """Three rows of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(1)
    ids_BT = torch.randint(0, 256, (3, 12), generator=generator)
    lengths_B = torch.tensor([12, 9, 5])
    return ids_BT, (torch.arange(12) < lengths_B[:, None]).long()


def full_logprobs(
    policy: PolicyModel, ids_BT: Tensor, attention_BT: Tensor, temperature: float
) -> Tensor:
    """Log-probs from the full logits tensor."""
    logits_BTV = policy.module(ids_BT, attention_mask=attention_BT).logits.float() / temperature
    logprobs_BTV = logits_BTV[:, :-1].log_softmax(-1)
    chosen_BT = logprobs_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0] * attention_BT[:, 1:]
    return torch.nn.functional.pad(chosen_BT, (1, 0))


def gradients(policy: PolicyModel, loss: Tensor) -> dict[str, Tensor]:
    policy.module.zero_grad()
    loss.backward()
    grads = {name: weight.grad for name, weight in policy.trainable()}
    return {name: grad.clone() for name, grad in grads.items() if grad is not None}


def perturb(policy: PolicyModel) -> None:
    """Perturb every trainable weight."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, weight in policy.trainable():
            weight += 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def close(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.allclose(left[name], right[name], atol=1e-5, rtol=1e-5) for name in left
    )
