"""Assigns sequences to slots of the KV cache and copies shared prefixes between slots."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from grpo_cl.policy.inference.model_runner import Chunk
from grpo_cl.policy.kernels.kv_cache import KVCache, SlotPrefix
from grpo_cl.policy.kernels.prefix_groups import common_prefix_length
from grpo_cl.policy.kernels.prefix_view import NO_PREFIX, PrefixRef

MIN_SHARED_PREFIX = 32
"""Shortest common prefix that is copied from another slot."""


@dataclass(eq=False)
class SequenceState:
    """All token ids of a sequence, so that it can be prefilled again after it lost its slot."""

    id: int
    ids: list[int] = field(default_factory=list[int])
    is_waiting: bool = False
    """Whether it has an unfinished request."""
    slot: int | None = None
    prefix: PrefixRef = NO_PREFIX
    """The shared prefix before the slot's first token."""
    num_cached: int = 0
    """Ids whose keys and values are cached, in the shared prefix and in the slot."""
    last_used: int = 0
    num_prefilled: int = 0
    """Ids that were prefilled since the request, those of a new shared prefix included."""
    copied_from: "SequenceState | None" = None
    """The sequence whose slot held the first tokens in its own; None if they were prefilled."""
    num_copied: int = 0
    """Tokens that were copied from there."""

    @property
    def is_running(self) -> bool:
        """Whether the next decode step includes it."""
        return self.is_waiting and self.slot is not None

    @property
    def num_in_slot(self) -> int:
        """Ids whose keys and values are in the slot."""
        return self.num_cached - self.prefix.length

    @property
    def num_to_prefill(self) -> int:
        """Uncached ids but the last, which the next decode step feeds."""
        return len(self.ids) - 1 - self.num_cached

    @property
    def origin(self) -> "tuple[SequenceState, int]":
        """The sequence that was prefilled with its first tokens, and the number of these tokens."""
        return (self.copied_from, self.num_copied) if self.copied_from else (self, self.num_in_slot)

    def next_chunk(self, count: int) -> Chunk:
        """The next ``count`` uncached ids."""
        assert self.slot is not None
        ids = self.ids[self.num_cached : self.num_cached + count]
        return Chunk(self.slot, self.num_in_slot, ids, self.prefix)


class SlotScheduler:
    """The slots of a KV cache and the sequences in them."""

    def __init__(self, cache: KVCache, count: int) -> None:
        self._cache = cache
        self._slots: list[SequenceState | None] = [None] * count

    def admit(self, sequences: Iterable[SequenceState]) -> None:
        """Give free slots to waiting sequences in order; evict idle ones if none is running."""
        waiting = [state for state in sequences if state.is_waiting and state.slot is None]
        free = [slot for slot, state in enumerate(self._slots) if state is None]
        if not free and not any(state.is_running for state in self._resident()):
            free = self._evict(len(waiting))
        for slot, state in zip(free, waiting, strict=False):
            state.slot, self._slots[slot] = slot, state

    def free(self, state: SequenceState) -> None:
        """Free a sequence's slot, if it has one."""
        if state.slot is not None:
            self._slots[state.slot] = None
            state.slot, state.num_cached, state.prefix = None, 0, NO_PREFIX
            state.copied_from, state.num_copied = None, 0

    def running(self) -> list[SequenceState]:
        """The sequences of the next decode step, in the order of their slots."""
        return [state for state in self._resident() if state.is_running]

    def compact(self) -> None:
        """Move the running sequences to the first slots, where they are read without a gather."""
        running = self.running()
        first = self._slots[: len(running)]
        holes = [slot for slot, state in enumerate(first) if state is None or not state.is_running]
        moving = [
            state for state in running if state.slot is not None and state.slot >= len(running)
        ]
        copies: list[_Copy] = []
        for state, hole in zip(moving, holes, strict=True):
            copies += self._move(state, hole)
        self._copy(copies)

    def copy_shared_prefixes(self, sequences: Sequence[SequenceState]) -> None:
        """Copy to each sequence's slot the longest prefix that another slot holds.

        Fresh copies are not used as sources: their own source holds the same tokens.
        """
        sources = self._copy_sources() if sequences else {}
        matches = [
            (state, copy)
            for state in sequences
            if (copy := _longest_match(state, sources.get(_prefix_key(state), ())))
        ]
        self._copy([copy for _, copy in matches])
        for state, copy in matches:
            source = self._slots[copy.source]
            assert source is not None
            origin, length = source.origin
            state.copied_from = origin if copy.length <= length else source
            state.num_copied = copy.length
            state.num_cached = state.prefix.length + copy.length

    def _copy_sources(self) -> dict["_PrefixKey | None", list[SequenceState]]:
        """The sequences with enough tokens in their slot, by prefix key."""
        sources: dict[_PrefixKey | None, list[SequenceState]] = {}
        for state in self._resident():
            if state.num_in_slot >= MIN_SHARED_PREFIX:
                sources.setdefault(_prefix_key(state), []).append(state)
        return sources

    def _copy(self, copies: Sequence["_Copy"]) -> None:
        """All copies in one call: on a GPU a kernel launch costs more than copying a slot."""
        if copies:
            self._cache.copy(
                [copy.source for copy in copies],
                [copy.target for copy in copies],
                max(copy.length for copy in copies),
            )

    def _resident(self) -> list[SequenceState]:
        return [state for state in self._slots if state is not None]

    def _evict(self, count: int) -> list[int]:
        """Free the slots of the least recently used sequences."""
        idle = sorted(self._resident(), key=lambda state: state.last_used)[:count]
        slots = [state.slot for state in idle if state.slot is not None]
        for state in idle:
            self.free(state)
        return slots

    def _move(self, state: SequenceState, target: int) -> list["_Copy"]:
        """Swap slots with the idle sequence in ``target``, if any; the copies that this needs."""
        source, idle = state.slot, self._slots[target]
        assert source is not None
        copies = [_Copy(source, target, state.num_in_slot)]
        self._slots[source], self._slots[target] = idle, state
        state.slot = target
        if idle is not None:
            copies.append(_Copy(target, source, idle.num_in_slot))
            idle.slot = source
        return [copy for copy in copies if copy.length]


class _Copy(NamedTuple):
    """The first ``length`` tokens of one slot, copied to another."""

    source: int
    target: int
    length: int


class _PrefixKey(NamedTuple):
    """Equal for sequences of which one can copy from the slot of the other."""

    prefix: PrefixRef
    ids: tuple[int, ...]
    """The first ids in the slot."""


def slot_prefixes(sequences: Iterable[SequenceState]) -> list[SlotPrefix]:
    """For each sequence a slot with the same first tokens: one slot for all copies of a prompt."""
    first: dict[tuple[SequenceState, PrefixRef], SequenceState] = {}
    found: list[SlotPrefix] = []
    for state in sequences:
        origin, length = state.origin
        other = first.setdefault((origin, state.prefix), state)
        assert other.slot is not None
        found.append(SlotPrefix(other.slot, min(length, other.origin[1])))
    return found


def prefill_leaders(sequences: Iterable[SequenceState]) -> list[SequenceState]:
    """One sequence per shared prefix, to be prefilled first; the others copy its slot later."""
    leaders: list[SequenceState] = []
    keys: set[_PrefixKey | None] = set()
    for state in sequences:
        key = _prefix_key(state, state.num_in_slot)
        if state.num_to_prefill < MIN_SHARED_PREFIX or key not in keys:
            leaders.append(state)
            keys.add(key)
    return leaders


def _prefix_key(state: SequenceState, num_before: int = 0) -> _PrefixKey | None:
    """The first ids in the slot, ``num_before`` of them and as many as are worth a copy.

    None for a sequence that is too short to share a prefix; its last token is never copied.
    """
    prefix, ids = state.prefix, state.ids
    end = prefix.length + num_before + MIN_SHARED_PREFIX
    return _PrefixKey(prefix, tuple(ids[prefix.length : end])) if len(ids) > end else None


def _longest_match(state: SequenceState, sources: Sequence[SequenceState]) -> _Copy | None:
    """The copy from the slot with the longest common prefix; all sources have the same key."""
    start, ids = state.prefix.length, state.ids
    source, length = None, state.num_cached + MIN_SHARED_PREFIX - 1
    for other in sources:
        limit = min(other.num_cached, len(ids) - 1)
        # Comparing the first token beyond the best match rejects most candidates cheaply.
        if length < limit and ids[length] == other.ids[length]:
            common = start + common_prefix_length(ids[start:limit], other.ids[start:limit])
            if common > length:
                source, length = other, common
        if length == len(ids) - 1:
            break  # nothing longer is possible
    if source is None:
        return None
    assert source.slot is not None
    assert state.slot is not None
    return _Copy(source.slot, state.slot, length - start)
