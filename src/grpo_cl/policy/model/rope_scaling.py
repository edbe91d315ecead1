"""NTK-aware RoPE scaling: extends the context length of a model.

RoPE rotates pair ``i`` of a head's ``d`` dimensions by ``position · θ^(-2i/d)``. The scaled base
``θ' = θ · s^(d/(d-2))`` makes the lowest frequency ``s`` times lower and keeps the highest: distant
positions use angles known from training, and nearby ones keep their resolution.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grpo_cl.config import GRPOConfig, LoraConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.policy_model import PolicyModel

_TYPE, _THETA, _PARTIAL = "rope_type", "rope_theta", "partial_rotary_factor"


def extend_context(config: GRPOConfig, folder: Path, *, tokens: int) -> None:
    """Write the model of ``config`` with a context length of ``tokens`` into ``folder``.

    Its weights are unchanged; it adapts to the new positions when it is trained.
    """
    if config.lora.r:
        raise ConfigError(
            f"--context changes the base model, and lora.r={config.lora.r} trains only an adapter; "
            "set lora.r=0, or extend the model first with --steps 0"
        )
    base_config = config.model_copy(update={"kl_coef": 0.0, "lora": LoraConfig()})
    policy = PolicyModel.load(base_config, device=torch.device("cpu"))
    settings: Any = policy.module.config.get_text_config()
    settings.rope_parameters = _scaled_rope(settings.to_dict(), config.model_name_or_path, tokens)
    settings.max_position_embeddings = tokens
    policy.tokenizer.model_max_length = max(policy.tokenizer.model_max_length, tokens)
    policy.save(folder)


def scaled_rope_theta(theta: float, *, width: int, factor: float) -> float:
    """The base whose longest wavelength is ``factor`` times that of ``theta``."""
    return theta * factor ** (width / (width - 2))


def _scaled_rope(settings: Mapping[str, Any], name: str, tokens: int) -> dict[str, Any]:
    rope: Mapping[str, Any] = settings.get("rope_parameters") or {}
    own = settings.get("max_position_embeddings")
    if rope.get(_TYPE) != "default" or _THETA not in rope or own is None:
        raise ConfigError(
            f"--context scales plain RoPE and {name} has {_describe(rope)}; give another model, "
            "or leave --context out"
        )
    if tokens <= own:
        raise ConfigError(
            f"{name} already has a context of {own} tokens and --context is {tokens}; leave it "
            "out, or set sampling.max_context to use fewer"
        )
    head = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    width = int(head * rope.get(_PARTIAL, 1.0))
    theta = scaled_rope_theta(float(rope[_THETA]), width=width, factor=tokens / own)
    return {**rope, _THETA: theta}


def _describe(rope: Mapping[str, Any]) -> str:
    if _TYPE in rope:
        return f"RoPE of type {rope[_TYPE]!r}"
    return "RoPE that differs by layer" if rope else "no RoPE"
