"""Which shared prefixes the rows of a forward pass attend to (types for cascade attention).

A shared prefix is the start of many prompts: policy text and tool descriptions of a domain. Its
keys and values are stored once, in a slot of a KV cache of their own; ``inference/prefix_cache.py``
decides which prefixes are stored. Shapes: B rows of the pass.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.kernels.kv_cache import KVCache


class PrefixRef(NamedTuple):
    """The part of a cached prefix that precedes a sequence's own tokens."""

    slot: int = -1
    """Slot of the prefix in the prefix KV cache; -1 for no prefix."""
    length: int = 0
    """Tokens, a multiple of ``PAGE_SIZE``."""


NO_PREFIX = PrefixRef()
"""Of a sequence whose tokens are all in its own slot."""


class PrefixView(NamedTuple):
    """The shared prefixes that the rows of one forward pass attend to."""

    cache: KVCache
    prefixes: tuple[PrefixRef, ...]
    """Every prefix that any row uses, with the longest length that any row may use of it."""
    slots_B: Tensor
    lengths_B: Tensor
    """Each row's prefix; in a prefill of several tokens per row, the same for all rows."""

    def visible_lengths(self, slot: int) -> Tensor:
        """How many tokens of the prefix in ``slot`` each row attends to."""
        return torch.where(self.slots_B == slot, self.lengths_B, 0)
