"""How far a model reads, and how it is made to read farther.

Rotary positions turn pair ``i`` of a head's ``d`` numbers by ``position · θ^(-2i/d)``. Another base
``θ' = θ · s^(d/(d-2))`` makes the slowest pair ``s`` times slower and leaves the fastest as it is:
farther positions are told apart by what the model knows, and near ones look as they did.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grpo_cl.config import GRPOConfig, LoraConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.model import PolicyModel

_KIND, _BASE, _PART = "rope_type", "rope_theta", "partial_rotary_factor"


def stretch(config: GRPOConfig, folder: Path, *, tokens: int) -> None:
    """Write the model of ``config`` as one that reads ``tokens`` tokens into ``folder``.

    Nothing was learned yet: it gets used to the new positions as it is trained.
    """
    if config.lora.r:
        raise ConfigError(
            f"--context changes the model itself, and lora.r={config.lora.r} learns beside it; "
            "set lora.r=0, or stretch the model first with --steps 0"
        )
    plain = config.model_copy(update={"kl_coef": 0.0, "lora": LoraConfig()})
    policy = PolicyModel.load(plain, device=torch.device("cpu"))
    settings: Any = policy.module.config.get_text_config()
    found = settings.to_dict()
    settings.rope_parameters = _stretched(found, config.model_name_or_path, tokens)
    settings.max_position_embeddings = tokens
    policy.tokenizer.model_max_length = max(policy.tokenizer.model_max_length, tokens)
    policy.save(folder)


def stretched_base(base: float, *, width: int, factor: float) -> float:
    """The base whose slowest wavelength is ``factor`` times that of ``base``."""
    return base * factor ** (width / (width - 2))


def _stretched(found: Mapping[str, Any], name: str, tokens: int) -> dict[str, Any]:
    rotary: Mapping[str, Any] = found.get("rope_parameters") or {}
    own = found.get("max_position_embeddings")
    if rotary.get(_KIND) != "default" or _BASE not in rotary or own is None:
        raise ConfigError(
            f"--context stretches plain rotary positions and {name} has {_described(rotary)}; give "
            "another model, or leave --context out"
        )
    if tokens <= own:
        raise ConfigError(
            f"{name} already reads {own} tokens and --context is {tokens}; leave it out, or set "
            "sampling.max_context to read fewer"
        )
    head = found.get("head_dim") or found["hidden_size"] // found["num_attention_heads"]
    width = int(head * rotary.get(_PART, 1.0))
    base = stretched_base(float(rotary[_BASE]), width=width, factor=tokens / own)
    return {**rotary, _BASE: base}


def _described(rotary: Mapping[str, Any]) -> str:
    if _KIND in rotary:
        return f"rotary positions of kind {rotary[_KIND]!r}"
    return "rotary positions that differ by layer" if rotary else "no rotary positions"
