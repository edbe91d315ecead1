"""GGUF files: corrects the tokenizer that transformers builds from them."""

import importlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.utils.import_utils import is_gguf_available

from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.chat_template import FALLBACK_TEMPLATE

SUFFIX = ".gguf"


def require_gguf(path: Path) -> None:
    """Raise if the package that reads GGUF is not installed."""
    if not is_gguf_available():
        raise ConfigError(
            f"{path} is a GGUF file and the package that reads it is missing; "
            "install it with `pip install gguf`, or use a model in safetensors"
        )


def fix_gguf_tokenizer(tokenizer: PreTrainedTokenizerFast, path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that the file describes; transformers derives it from the architecture only.

    Its tokenizer splits spaces before digits differently from SmolLM2's training data, adds a
    token without an embedding to vocabularies without ``<|endoftext|>``, and does not add the BOS
    token without which Gemma repeats itself.
    """
    reader = importlib.import_module("gguf").GGUFReader(path)
    settings: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    size = len(reader.get_field("tokenizer.ggml.tokens").data)
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["id"] < size]
    backend = Tokenizer.from_str(json.dumps(settings))
    field = reader.get_field("tokenizer.ggml.pre")
    pre_tokenizer = None if field is None else _pre_tokenizer(field.contents())
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    bos, template = tokenizer.bos_token, tokenizer.chat_template
    if isinstance(bos, str) and _adds_bos(reader):
        special = (bos, tokenizer.bos_token_id)
        backend.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[special])
        template = template or "{{ bos_token }}" + FALLBACK_TEMPLATE
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template,
        **tokenizer.special_tokens_map,
    )


def _adds_bos(reader: Any) -> bool:
    """Whether texts begin with BOS; llama.cpp's default for SentencePiece models."""
    field, kind = (
        reader.get_field(f"tokenizer.ggml.{name}") for name in ("add_bos_token", "model")
    )
    if field is not None:
        return bool(field.contents())
    return kind is not None and kind.contents() == "llama"


def _pre_tokenizer(name: str) -> PreTokenizer | None:
    if name == "smollm":
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return None
