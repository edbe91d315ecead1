"""The shape of a language model, read from its ``config.json``, and what it says about size."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import PositiveInt, ValidationError

from grpo_cl.errors import ConfigError
from grpo_cl.records import Record

TINY = "tiny"
SUFFIXES = ("-instruct", "-hf", "-it")
"""Ends of a model's name that say nothing about its shape."""


class Family(NamedTuple):
    """What all models of one type have in common."""

    has_bias: bool = False
    """Of queries, keys and values, whatever the config says."""
    has_head_norms: bool = False
    """Whether queries and keys are normalised by themselves."""
    has_float_norms: bool = False
    """Whether a norm multiplies by its weight before it goes back to the model's precision."""
    is_tied: bool = False
    """Whether the head is the embedding where the config says nothing."""
    is_lean: bool = True
    """Whether there are fused kernels for its layers."""


FAMILIES = {
    "gemma": Family(has_float_norms=True, is_tied=True, is_lean=False),
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(has_bias=True),
    "qwen3": Family(has_head_norms=True),
}


class Linear(NamedTuple):
    """A matrix of a layer."""

    name: str
    inputs: int
    outputs: int
    has_bias: bool
    source: str
    """What it reads; matrices with the same source read the same tensor."""

    @property
    def parameters(self) -> int:
        """Its weights."""
        return self.inputs * self.outputs + self.has_bias * self.outputs


class Shape(Record):
    """Everything about a model that decides how much memory it takes."""

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
        """Whether sequences are read in one row; layers that look at a window forbid it."""
        return self.sliding_window is None or not self.use_sliding_window

    @property
    def can_be_fused(self) -> bool:
        """Whether a GPU decodes it, and reads its packed rows, with fused kernels."""
        return self.family.is_lean and self.can_be_packed

    @property
    def family(self) -> Family:
        """What all models of its type have in common."""
        return FAMILIES[self.model_type]

    @property
    def query_width(self) -> int:
        """Of the queries of all heads, and of what attention returns."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Of the keys of all heads; values have the same."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The matrices of one layer."""
        width, wide, queries = self.hidden_size, self.intermediate_size, self.query_width
        bias, bias_qkv = self.attention_bias, self.attention_bias or self.family.has_bias
        return (
            Linear("q_proj", width, queries, bias_qkv, "attention"),
            Linear("k_proj", width, self.key_width, bias_qkv, "attention"),
            Linear("v_proj", width, self.key_width, bias_qkv, "attention"),
            Linear("o_proj", queries, width, bias, "attended"),
            Linear("gate_proj", width, wide, self.mlp_bias, "mlp"),
            Linear("up_proj", width, wide, self.mlp_bias, "mlp"),
            Linear("down_proj", wide, width, self.mlp_bias, "gated"),
        )

    @property
    def head(self) -> Linear:
        """What turns hidden states into logits."""
        return Linear("lm_head", self.hidden_size, self.vocab_size, has_bias=False, source="head")

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, norms included."""
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.family.has_head_norms
        return norms + sum(linear.parameters for linear in self.linears)

    @property
    def outer_parameters(self) -> int:
        """Weights of no layer: embedding, head, last norm."""
        tables = 1 if self.tie_word_embeddings else 2
        return tables * self.vocab_size * self.hidden_size + self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights; tied ones count once."""
        return self.num_hidden_layers * self.layer_parameters + self.outer_parameters

    def adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Weights of LoRA adapters of this rank on these matrices."""
        adapted = self.adapted(targets)
        one_layer = sum(linear.inputs + linear.outputs for linear in adapted)
        head = self.head.inputs + self.head.outputs if self.head.name in targets else 0
        return rank * (self.num_hidden_layers * one_layer + head)

    def adapted(self, targets: tuple[str, ...]) -> tuple[Linear, ...]:
        """The matrices of a layer that get an adapter."""
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
    """Configs of models that can be asked about by name."""
    return json.loads((files("grpo_cl.footprint") / "shapes.json").read_text())


def read_shape(name: str) -> Shape:
    """The shape of a model given by folder, config file, or a name that is known here."""
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
            f"no model config at {name!r} and no shape of that name is known; give a folder with "
            f"a config.json, tiny, or one of {', '.join(known)}"
        )
    return shape_of(known[short], short)


def shape_of(config: Mapping[str, Any], name: str) -> Shape:
    """The shape that a model's config describes."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ConfigError(
            f"{name} is of model type {kind!r}; memory is known of {', '.join(sorted(FAMILIES))}"
        )
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    given: dict[str, Any] = {
        "use_sliding_window": kind == "mistral",
        "tie_word_embeddings": FAMILIES[kind].is_tied,
        "num_key_value_heads": heads,
        "head_dim": width // heads if heads and width else None,
    }
    given |= {n: config[n] for n in Shape.model_fields if config.get(n) is not None}
    try:
        return Shape.model_validate(given)
    except ValidationError as error:
        wrong = ", ".join(str(entry["loc"][0]) for entry in error.errors())
        raise ConfigError(f"the config of {name} lacks or garbles {wrong}; mend it") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the model config {path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the model config {path} is no JSON object; give another")
    return found
