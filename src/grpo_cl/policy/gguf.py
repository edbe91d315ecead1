"""GGUF files: read through transformers, with what its reader leaves out put right."""

import importlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence
from transformers import PreTrainedTokenizerFast
from transformers.utils.import_utils import is_gguf_available

from grpo_cl.errors import ConfigError

SUFFIX = ".gguf"


def require_gguf(path: Path) -> None:
    """Refuse early where the package that reads GGUF is missing."""
    if not is_gguf_available():
        raise ConfigError(
            f"{path} is a GGUF file and the package that reads it is missing; "
            "install it with `pip install gguf`, or use a model in safetensors"
        )


def mended(tokenizer: PreTrainedTokenizerFast, path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer as the file describes it; transformers goes by the architecture alone.

    It would give SmolLM2 other tokens for spaces before a number than the model was taught, and
    add a token that has no embedding to vocabularies without ``<|endoftext|>``.
    """
    reader = importlib.import_module("gguf").GGUFReader(path)
    described: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    size = len(reader.get_field("tokenizer.ggml.tokens").data)
    described["added_tokens"] = [token for token in described["added_tokens"] if token["id"] < size]
    backend = Tokenizer.from_str(json.dumps(described))
    field = reader.get_field("tokenizer.ggml.pre")
    splitter = None if field is None else _splitter(field.contents())
    if splitter is not None:
        backend.pre_tokenizer = splitter
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=tokenizer.chat_template,
        **tokenizer.special_tokens_map,
    )


def _splitter(name: str) -> PreTokenizer | None:
    if name == "smollm":
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return None
