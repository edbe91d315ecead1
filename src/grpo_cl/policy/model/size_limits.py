"""Limits of a model's config.json, checked before memory is allocated for what it describes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_cl.errors import ConfigError

LIMITS = {
    "num_hidden_layers": 1024,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "vocab_size": 1 << 22,
    "num_attention_heads": 1 << 12,
    "max_position_embeddings": 1 << 30,
}
"""Several times the largest values of published models."""

BYTES_PER_WEIGHT = 0.125
"""Of the smallest quantized weights; each layer has at least a square matrix of the hidden size."""

_WEIGHTS = (".safetensors", ".gguf")


def require_plausible_size(directory: Path, name: str) -> None:
    """Raise ``ConfigError`` if config.json describes a model that the weights cannot be."""
    try:
        described = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return  # transformers explains what is wrong with the file
    if not isinstance(described, Mapping):
        return
    for part in (described, described.get("text_config")):
        if isinstance(part, Mapping):
            _check_bounds(part, name)
            _check_weights(part, name, directory)


def _check_bounds(config: Mapping[str, Any], name: str) -> None:
    for key, most in LIMITS.items():
        value = config.get(key)
        if isinstance(value, int) and not 1 <= value <= most:
            raise ConfigError(
                f"config.json of {name} has {key}={value}, which is not between 1 and {most}; the "
                "file is damaged, so fetch the model again or give another one"
            )


def _check_weights(config: Mapping[str, Any], name: str, directory: Path) -> None:
    layers, width, words = (
        config.get(key) for key in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    files = [path for path in directory.iterdir() if path.suffix in _WEIGHTS and path.is_file()]
    if not (isinstance(layers, int) and isinstance(width, int) and isinstance(words, int)):
        return
    least = int((words + layers * width) * width * BYTES_PER_WEIGHT)
    size = sum(path.stat().st_size for path in files)
    if files and least > size:
        raise ConfigError(
            f"config.json of {name} describes {layers} layers of width {width} and {words} tokens, "
            f"at least {least} bytes of weights, but its weights have {size}; they do not belong "
            "together, so fetch the model again or give another one"
        )
