"""Creates the untrained embedded policy: a small Llama with its own tokenizer."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.compact import END, PAD, tokenizer_texts, train_tokenizer
from grpo_cl.rollout.demonstrations import Example

VOCABULARY = 2048
CONTEXT = 4096
HEAD = 32
"""Width of one attention head."""
TOKENIZER_EXAMPLES = 6000
"""Examples that the tokenizer is trained on, at most."""


MAX_WIDTH, MAX_LAYERS = 2048, 64
"""Of a tiny policy; about 3 billion weights."""


class Size(NamedTuple):
    """The size of a tiny policy: by default 3.05 million weights, 6.1 MB in bfloat16."""

    width: int = 192
    layers: int = 6

    def check(self) -> None:
        """Raise for a size that is not tiny, or a width that attention heads do not divide."""
        if self.width > MAX_WIDTH or self.layers > MAX_LAYERS:
            raise ConfigError(
                f"--width {self.width} and --layers {self.layers} are no tiny policy; give at most "
                f"{MAX_WIDTH} and {MAX_LAYERS}, or name a larger model with --model_name_or_path"
            )
        if self.width % HEAD:
            raise ConfigError(
                f"--width {self.width} cannot be split into attention heads; give a multiple of "
                f"{HEAD}"
            )


DEFAULT = Size()


def create_tiny_model(
    examples: Sequence[Example], folder: Path, *, seed: int, size: Size = DEFAULT
) -> None:
    """Write a policy with random weights and a tokenizer trained on ``examples``."""
    size.check()
    every = max(1, len(examples) // TOKENIZER_EXAMPLES)
    texts = chain.from_iterable(
        tokenizer_texts(example.scene, example.messages) for example in examples[::every]
    )
    tokenizer = train_tokenizer(texts, size=VOCABULARY)
    special = tokenizer.get_vocab()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.width * 8 // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // HEAD,
        num_key_value_heads=size.width // HEAD,
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
