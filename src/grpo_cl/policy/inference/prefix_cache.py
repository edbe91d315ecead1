"""Prefix cache: long shared prompt prefixes, prefilled once and attended to by many sequences.

The episodes of a domain start with the same policy text and tool descriptions, thousands of tokens.
A sequence's own slot of the KV cache then holds only the tokens after the shared prefix. Prefixes
are shared in whole pages.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from grpo_cl.gpu_memory.constants import MAX_PREFIXES, MIN_PREFIX, PAGE_SIZE
from grpo_cl.policy.kernels.prefix_groups import common_prefix_length
from grpo_cl.policy.kernels.prefix_view import (
    NO_PREFIX,
    PrefixRef,
)


class PrefixRunner(Protocol):
    """The model runner that prefills shared prefixes."""

    def supports_prefix_cache(self) -> bool:
        """Whether the model's attention can read a prefix from a separate cache (probed)."""
        ...

    def prefill_prefix(self, slot: int, ids: Sequence[int]) -> None:
        """Write the keys and values of ``ids`` to a slot of the prefix KV cache."""
        ...


class PrefixCache:
    """Token ids of the cached prefixes, by their slot in the prefix KV cache."""

    def __init__(self, runner: PrefixRunner) -> None:
        self._runner = runner
        self._prefixes: list[list[int]] = []
        self._is_supported: bool | None = None
        self.num_prefilled = 0
        """Tokens that were prefilled as prefixes."""

    def clear(self) -> None:
        """Drop all prefixes."""
        self._prefixes = []

    def find_or_prefill(self, ids: Sequence[int], in_use: Collection[int]) -> PrefixRef:
        """The cached prefix of a sequence that starts with ``ids``.

        If less than half of the ids is cached, they are prefilled as a new prefix, which may
        replace one whose slot is not ``in_use``.
        """
        cacheable = (len(ids) - 1) // PAGE_SIZE * PAGE_SIZE  # decoding feeds the last token
        if cacheable < MIN_PREFIX:
            return NO_PREFIX
        if self._is_supported is None:
            self._is_supported = self._runner.supports_prefix_cache()
        return self._find_or_prefill(ids[:cacheable], in_use) if self._is_supported else NO_PREFIX

    def _find_or_prefill(self, ids: Sequence[int], in_use: Collection[int]) -> PrefixRef:
        matches = [
            PrefixRef(slot, common_prefix_length(ids, cached) // PAGE_SIZE * PAGE_SIZE)
            for slot, cached in enumerate(self._prefixes)
        ]
        best = max(matches, key=lambda match: match.length, default=NO_PREFIX)
        if 2 * best.length < len(ids):
            free = self._free_slot(in_use)
            if free is not None:
                self._runner.prefill_prefix(free, list(ids))
                self.num_prefilled += len(ids)
                self._prefixes[free : free + 1] = [list(ids)]
                return PrefixRef(free, len(ids))
        return best if best.length >= MIN_PREFIX else NO_PREFIX

    def _free_slot(self, in_use: Collection[int]) -> int | None:
        if len(self._prefixes) < MAX_PREFIXES:
            return len(self._prefixes)
        return next((slot for slot in range(MAX_PREFIXES) if slot not in in_use), None)
