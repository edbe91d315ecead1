"""Which conversation sits in which row of the cache."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
        moving = [one for one in running if one.row is not None and one.row >= len(running)]
        copies: list[_Copy] = []
        for one, hole in zip(moving, holes, strict=True):
            copies += self._move(one, hole)
        self._copy(copies)
        return [one for one in self._holders() if one.is_running]

    def borrow(self, conversations: Iterable[Conversation]) -> None:
        """Copy the longest beginning that another row holds to each row that holds nothing.

        Those who get something give nothing: what they could give, the row it came from can.
        """
        newcomers = [one for one in conversations if not one.held]
        donors = self._donors() if newcomers else {}
        copies: list[_Copy] = []
        for one in newcomers:
            found = _longest(one, donors.get(_opening(one), ()))
            if found is not None:
                copies.append(found)
                one.cached += found.length
        self._copy(copies)

    def _donors(self) -> dict["_Opening | None", list[Conversation]]:
        """The rows that hold an opening, by it."""
        donors: dict[_Opening | None, list[Conversation]] = {}
        for one in self._holders():
            if one.held >= SHARED_PREFIX:
                donors.setdefault(_opening(one), []).append(one)
        return donors

    def _copy(self, copies: Sequence["_Copy"]) -> None:
        """All in one go: on a GPU each launch costs more than a row."""
        if copies:
            self._cache.copy(
                [one.source for one in copies],
                [one.target for one in copies],
                max(one.length for one in copies),
            )

    def _holders(self) -> list[Conversation]:
        return [one for one in self._rows if one is not None]

    def _evict(self, count: int) -> list[int]:
        """The rows of those who rested longest, now free."""
        resting = sorted(self._holders(), key=lambda one: one.last_used)[:count]
        rows = [one.row for one in resting if one.row is not None]
        for one in resting:
            self.leave(one)
        return rows

    def _move(self, conversation: Conversation, target: int) -> list["_Copy"]:
        """Exchange rows with whoever rests in ``target``; what has to be copied for it."""
        source, resting = conversation.row, self._rows[target]
        assert source is not None
        copies = [_Copy(source, target, conversation.held)]
        self._rows[source], self._rows[target] = resting, conversation
        conversation.row = target
        if resting is not None:
            copies.append(_Copy(target, source, resting.held))
            resting.row = source
        return [copy for copy in copies if copy.length]


class _Copy(NamedTuple):
    """Tokens that one row gets from another."""

    source: int
    target: int
    length: int


class _Opening(NamedTuple):
    """What two conversations have in common if one can use a row of the other."""

    place: Place
    ids: tuple[int, ...]
    """The first that a row holds."""


def first_readers(conversations: Iterable[Conversation]) -> list[Conversation]:
    """Those who read first; the others begin like one of them, whose row they can copy then."""
    found: list[Conversation] = []
    openings: set[_Opening | None] = set()
    for one in conversations:
        opening = _opening(one)
        if one.held or one.behind < SHARED_PREFIX or opening not in openings:
            found.append(one)
            openings.add(opening)
    return found


def _opening(conversation: Conversation) -> _Opening | None:
    """None of a conversation that is too short to share one; its last token is never copied."""
    place, ids = conversation.place, conversation.ids
    end = place.length + SHARED_PREFIX
    return _Opening(place, tuple(ids[place.length : end])) if len(ids) > end else None


def _longest(conversation: Conversation, donors: Sequence[Conversation]) -> _Copy | None:
    """The longest beginning that one of ``donors``, who open alike, holds."""
    start, ids = conversation.place.length, conversation.ids
    donor, length = None, start + SHARED_PREFIX - 1
    for other in donors:
        limit = min(other.cached, len(ids) - 1)
        # The first token beyond the best so far tells, most often, that this one is no better.
        if length < limit and ids[length] == other.ids[length]:
            common = start + common_beginning(ids[start:limit], other.ids[start:limit])
            if common > length:
                donor, length = other, common
        if length == len(ids) - 1:
            break  # everything
    if donor is None:
        return None
    assert donor.row is not None
    assert conversation.row is not None
    return _Copy(donor.row, conversation.row, length - start)
