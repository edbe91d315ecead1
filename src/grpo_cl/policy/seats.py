"""Which conversation sits in which row of the cache."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from grpo_cl.policy.reader import Chunk
from grpo_cl.policy.siblings import common_beginning
from grpo_cl.policy.slots import SlotCache
from grpo_cl.policy.trunks import NOWHERE, Place

SHARED_PREFIX = 32
"""Shortest common beginning worth copying from another row."""


@dataclass(eq=False)
class Conversation:
    """Everything a sequence has read and written, so that a row it lost can be made again."""

    id: int
    ids: list[int] = field(default_factory=list[int])
    is_waiting: bool = False
    """Whether a reply is wanted."""
    row: int | None = None
    place: Place = NOWHERE
    """The part of a trunk that the row goes on from."""
    cached: int = 0
    """How many of the ids have keys and values, in the trunk and in the row."""
    last_used: int = 0

    @property
    def is_running(self) -> bool:
        """Whether the next step writes for it."""
        return self.is_waiting and self.row is not None

    @property
    def held(self) -> int:
        """How many of the ids have keys and values in the row."""
        return self.cached - self.place.length

    @property
    def behind(self) -> int:
        """Tokens to read before the last one, which the next step feeds."""
        return len(self.ids) - 1 - self.cached

    def chunk(self, count: int) -> Chunk:
        """The next ``count`` ids to read."""
        assert self.row is not None
        ids = self.ids[self.cached : self.cached + count]
        return Chunk(self.row, self.held, ids, self.place)


class Seats:
    """The rows of a cache and who holds them."""

    def __init__(self, cache: SlotCache, count: int) -> None:
        self._cache = cache
        self._rows: list[Conversation | None] = [None] * count

    def admit(self, conversations: Iterable[Conversation]) -> None:
        """Give rows to those who wait without one, in the order they came."""
        waiting = [one for one in conversations if one.is_waiting and one.row is None]
        free = [row for row, holder in enumerate(self._rows) if holder is None]
        if not free and not any(one.is_running for one in self._holders()):
            free = self._evict(len(waiting))
        for row, one in zip(free, waiting, strict=False):
            one.row, self._rows[row] = row, one

    def leave(self, conversation: Conversation) -> None:
        """Take a conversation's row, if it has one."""
        if conversation.row is not None:
            self._rows[conversation.row] = None
            conversation.row, conversation.cached, conversation.place = None, 0, NOWHERE

    def compact(self) -> list[Conversation]:
        """Move the running ones to the first rows, where they are read without a copy."""
        running = [one for one in self._holders() if one.is_running]
        first = self._rows[: len(running)]
        holes = [row for row, one in enumerate(first) if one is None or not one.is_running]
        for one in running:
            if one.row is not None and one.row >= len(running):
                self._move(one, holes.pop(0))
        return [one for one in self._holders() if one.is_running]

    def borrow(self, conversation: Conversation) -> None:
        """Copy the longest beginning that another row already holds."""
        start = conversation.place.length
        donor, length = None, start + SHARED_PREFIX - 1
        for other in self._holders():
            common = _common(conversation, other)
            if common > length:
                donor, length = other, common
        if donor is not None:
            assert donor.row is not None
            assert conversation.row is not None
            self._cache.copy(donor.row, conversation.row, length - start)
            conversation.cached = length

    def _holders(self) -> list[Conversation]:
        return [one for one in self._rows if one is not None]

    def _evict(self, count: int) -> list[int]:
        """The rows of those who rested longest, now free."""
        resting = sorted(self._holders(), key=lambda one: one.last_used)[:count]
        rows = [one.row for one in resting if one.row is not None]
        for one in resting:
            self.leave(one)
        return rows

    def _move(self, conversation: Conversation, target: int) -> None:
        source, resting = conversation.row, self._rows[target]
        assert source is not None
        if resting is not None and resting.held:
            self._cache.swap(source, target, max(conversation.held, resting.held))
        elif conversation.held:
            self._cache.copy(source, target, conversation.held)
        self._rows[source], self._rows[target] = resting, conversation
        conversation.row = target
        if resting is not None:
            resting.row = source


def begin_alike(one: Conversation, others: Sequence[Conversation]) -> bool:
    """Whether one of ``others`` is about to read a beginning that ``one`` can copy."""
    return one.behind >= SHARED_PREFIX and any(_start_alike(one, other) for other in others)


def _start_alike(one: Conversation, other: Conversation) -> bool:
    start, end = one.place.length, one.place.length + SHARED_PREFIX
    are_long = min(len(one.ids), len(other.ids)) > end
    return one.place == other.place and are_long and one.ids[start:end] == other.ids[start:end]


def _common(one: Conversation, other: Conversation) -> int:
    """Length of a beginning that ``other`` has cached; 0 where it is short."""
    if not _start_alike(one, other):
        return 0
    start, limit = one.place.length, min(other.cached, len(one.ids) - 1)
    return start + common_beginning(one.ids[start:limit], other.ids[start:limit])
