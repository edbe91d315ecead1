"""The shape of a language model, read from its ``config.json``, and its parameter counts."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import PositiveInt, ValidationError

from grpo_cl.errors import ConfigError
from grpo_cl.types import Record

TINY = "tiny"
SUFFIXES = ("-instruct", "-hf", "-it")
"""Suffixes of model names that do not change the shape."""


class Architecture(NamedTuple):
    """Properties shared by all models of one ``model_type``."""

    has_qkv_bias: bool = False
    """Whether query, key and value projections have a bias regardless of the config."""
    has_qk_norm: bool = False
    """Whether queries and keys are normalized per head."""
    has_float32_norms: bool = False
    """Whether a norm multiplies by its weight before the cast to the model's dtype."""
    ties_embeddings: bool = False
    """Default of ``tie_word_embeddings``."""
    has_fused_blocks: bool = True
    """Whether there are fused kernels for its layers."""


ARCHITECTURES = {
    "gemma": Architecture(has_float32_norms=True, ties_embeddings=True, has_fused_blocks=False),
    "llama": Architecture(),
    "mistral": Architecture(),
    "qwen2": Architecture(has_qkv_bias=True),
    "qwen3": Architecture(has_qk_norm=True),
}


class Linear(NamedTuple):
    """A linear layer."""

    name: str
    inputs: int
    outputs: int
    has_bias: bool
    source: str
    """Name of its input; linear layers with the same source have the same input tensor."""

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.inputs * self.outputs + self.has_bias * self.outputs


class ModelShape(Record):
    """The fields of a model config that determine its memory."""

    model_type: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: PositiveInt | None = None
    use_sliding_window: bool = True

    @property
    def can_be_packed(self) -> bool:
        """Whether all sequences are packed into one row; those longer than a window are not."""
        return self.sliding_window is None or not self.use_sliding_window

    @property
    def can_be_fused(self) -> bool:
        """Whether packed sequences and decoding use fused kernels on a GPU."""
        return self.architecture.has_fused_blocks and self.can_be_packed

    @property
    def architecture(self) -> Architecture:
        """Properties of its ``model_type``."""
        return ARCHITECTURES[self.model_type]

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads, and of the attention output."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of the keys of all heads, and of the values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The linear layers of one transformer layer."""
        hidden, intermediate = self.hidden_size, self.intermediate_size
        queries, bias = self.query_width, self.attention_bias
        qkv_bias = bias or self.architecture.has_qkv_bias
        return (
            Linear("q_proj", hidden, queries, qkv_bias, "attention"),
            Linear("k_proj", hidden, self.key_width, qkv_bias, "attention"),
            Linear("v_proj", hidden, self.key_width, qkv_bias, "attention"),
            Linear("o_proj", queries, hidden, bias, "attended"),
            Linear("gate_proj", hidden, intermediate, self.mlp_bias, "mlp"),
            Linear("up_proj", hidden, intermediate, self.mlp_bias, "mlp"),
            Linear("down_proj", intermediate, hidden, self.mlp_bias, "gated"),
        )

    @property
    def head(self) -> Linear:
        """The linear layer that computes logits."""
        return Linear("lm_head", self.hidden_size, self.vocab_size, has_bias=False, source="head")

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, norms included."""
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.architecture.has_qk_norm
        return norms + sum(linear.parameters for linear in self.linears)

    @property
    def non_layer_parameters(self) -> int:
        """Weights outside of layers: embedding, head, final norm."""
        tables = 1 if self.tie_word_embeddings else 2
        return tables * self.vocab_size * self.hidden_size + self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights; tied ones count once."""
        return self.num_hidden_layers * self.layer_parameters + self.non_layer_parameters

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Weights of LoRA adapters of this rank on these linear layers."""
        linears = self.lora_linears(targets)
        per_layer = sum(linear.inputs + linear.outputs for linear in linears)
        head = self.head.inputs + self.head.outputs if self.head.name in targets else 0
        return rank * (self.num_hidden_layers * per_layer + head)

    def lora_linears(self, targets: tuple[str, ...]) -> tuple[Linear, ...]:
        """The linear layers of a transformer layer that have an adapter."""
        if targets == ("all-linear",):
            return self.linears
        known = {linear.name for linear in (*self.linears, self.head)}
        unknown = sorted(set(targets) - known)
        if unknown:
            raise ConfigError(
                f"lora.targets names {', '.join(unknown)} and {self.model_type} has "
                f"{', '.join(sorted(known))}; name some of these, or all-linear"
            )
        return tuple(linear for linear in self.linears if linear.name in targets)


def known_shapes() -> dict[str, dict[str, Any]]:
    """Model configs that are available by name."""
    return json.loads((files("grpo_cl.gpu_memory") / "shapes.json").read_text())


def read_shape(name: str) -> ModelShape:
    """The shape of a model: a folder, a config file, or a name in ``shapes.json``."""
    path = Path(name).expanduser()
    if name == TINY:
        text = (files("grpo_cl") / "policy" / "tiny" / "config.json").read_text()
        return shape_of(json.loads(text), name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return shape_of(_read(path), str(path))
    short = name.rpartition("/")[2].lower()
    for suffix in SUFFIXES:
        short = short.removesuffix(suffix)
    known = known_shapes()
    short = short.removeprefix("meta-")
    if short not in known:
        raise ConfigError(
            f"no model config at {name!r}, and the name is not a known shape; give a folder with "
            f"a config.json, tiny, or one of {', '.join(known)}"
        )
    return shape_of(known[short], short)


def shape_of(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape described by a model's config."""
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        raise ConfigError(
            f"{name} has model type {model_type!r}; supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    fields: dict[str, Any] = {
        "use_sliding_window": model_type == "mistral",
        "tie_word_embeddings": ARCHITECTURES[model_type].ties_embeddings,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads if heads and hidden else None,
    }
    fields |= {
        field: config[field] for field in ModelShape.model_fields if config.get(field) is not None
    }
    try:
        return ModelShape.model_validate(fields)
    except ValidationError as error:
        invalid = ", ".join(str(entry["loc"][0]) for entry in error.errors())
        raise ConfigError(
            f"missing or invalid fields in the config of {name}: {invalid}"
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the model config {path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"the model config {path} is not a JSON object")
    return config
