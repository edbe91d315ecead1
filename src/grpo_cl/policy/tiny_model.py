"""The embedded policy before it has learned anything: a small Llama with its own tokenizer."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_cl.errors import ConfigError
from grpo_cl.policy.compact import END, PAD, texts_of, train_tokenizer
from grpo_cl.policy.sft import Example

VOCABULARY = 2048
CONTEXT = 2048
HEAD = 32
"""Width of one attention head."""
KEY_VALUE_HEADS = 2
TAUGHT = 6000
"""Examples whose words the tokenizer is made of."""


class Size(NamedTuple):
    """How large a tiny policy is."""

    width: int = 192
    layers: int = 6


DEFAULT = Size()


def new_tiny(examples: Sequence[Example], folder: Path, *, seed: int, size: Size = DEFAULT) -> None:
    """Write a policy with random weights and a tokenizer made for ``examples``."""
    if size.width % (HEAD * KEY_VALUE_HEADS):
        raise ConfigError(
            f"--width {size.width} cannot be cut into heads; give a multiple of "
            f"{HEAD * KEY_VALUE_HEADS}"
        )
    every = max(1, len(examples) // TAUGHT)
    texts = chain.from_iterable(texts_of(each.scene, each.messages) for each in examples[::every])
    tokenizer = train_tokenizer(texts, size=VOCABULARY)
    special = tokenizer.get_vocab()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.width * 8 // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // HEAD,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=special[PAD],
        bos_token_id=None,
        eos_token_id=special[END],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
