"""A world that changes chunk by chunk; what is said of it and what a careful writer keeps."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from random import Random
from typing import Any, NamedTuple

from grpo_cl.memory.generator.attributes import (
    HAPPENINGS,
    RELATIONS,
    Happening,
    attributes,
)
from grpo_cl.memory.generator.knobs import Knobs
from grpo_cl.memory.generator.wording import (
    CHAT,
    CONFIRMED,
    CORRECTION,
    HYPOTHETICALS,
    REPEATS,
    RETRACTION,
    RUMOURS,
    occurrence,
    phrase,
    replacement,
    some_day_before,
    statement,
    told_day,
)

Key = tuple[str, str]
"""A person and an attribute."""


class Fact(NamedTuple):
    """What is true of a key."""

    value: str
    chunk_id: int
    """Where it was told."""
    entry_id: int
    """The entry of a careful writer's memory that holds it."""
    before: tuple[str, int] | None = None
    """What was true until then, and where that was told."""
    is_changed: bool = False


class Deed(NamedTuple):
    """What somebody did on a day."""

    day: date
    chunk_id: int
    told: str
    """How the day was put."""


class Operation(NamedTuple):
    """A call of a memory tool that a careful writer makes."""

    name: str
    arguments: Mapping[str, Any]


class Line(NamedTuple):
    """Something said, and what to do about it."""

    text: str
    operation: Operation | None = None
    stale: str | None = None
    """What a memory may say that is wrong from now on."""


class Story:
    """Grows by one chunk at a time; answers are read from here and never from the text."""

    def __init__(self, rng: Random, knobs: Knobs, people: Sequence[str]) -> None:
        self.rng = rng
        self.knobs = knobs
        self.people = people
        plain = [name for name in attributes() if name not in RELATIONS]
        self.attributes = rng.sample(plain, knobs.attributes)
        self.facts: dict[Key, Fact] = {}
        self.retracted: dict[Key, int] = {}
        self.deeds: dict[tuple[str, Happening], Deed] = {}
        self.chunk_id = 0
        self.today = date(2024, 1, 1) + timedelta(days=rng.randrange(300))
        self._next_entry = 1
        self._touched: set[Key] = set()
        self._rumours: dict[Key, str] = {}

    def tell_chunk(self) -> list[Line]:
        """What is said in the next chunk, in order."""
        self.chunk_id += 1
        self.today += timedelta(days=self.rng.randint(1, 9))
        self._touched.clear()
        # The first chunk always has something to keep, or an instance could have no question.
        is_empty = self.chunk_id > 1 and self.rng.random() < self.knobs.empty
        count = self.knobs.facts
        lines = [] if is_empty else [line for _ in range(count) if (line := self._news())]
        spare = self.knobs.noise * count
        num_noise = int(spare) + (self.rng.random() < spare % 1)
        for _ in range(max(num_noise, not lines)):
            # Between the news, which stay in order: their entries are numbered as they are told.
            lines.insert(self.rng.randint(0, len(lines)), self._noise())
        return lines

    def _news(self) -> Line | None:
        knobs = self.knobs
        kinds: dict[Callable[[], Line | None], float] = {
            self._change: knobs.update,
            self._correct: knobs.correct,
            self._retract: knobs.retract,
            self._relate: knobs.relation,
            self._do: knobs.happening,
            self._confirm: knobs.rumour * knobs.noise / 2,
        }
        rest = max(0.05, 1 - sum(kinds.values()))
        kinds[self._assert] = rest
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        return kind() or self._assert()

    def _noise(self) -> Line:
        knobs = self.knobs
        kinds = {
            self._imagine: knobs.hypothetical,
            self._rumour: knobs.rumour,
            self._repeat: knobs.repeat,
        }
        drawn = self.rng.random()
        for kind, share in kinds.items():
            drawn -= share
            if drawn < 0 and (line := kind()):
                return line
        return Line(self.rng.choice(CHAT))

    # What is true and worth keeping.

    def _assert(self) -> Line | None:
        free = [
            (person, name)
            for person in self.people
            for name in self.attributes
            if not self._is_used((person, name))
        ]
        return self._insert(self.rng.choice(free)) if free else None

    def _relate(self) -> Line | None:
        free = [
            (person, name)
            for person in self.people
            for name in RELATIONS
            if not self._is_used((person, name))
        ]
        return self._insert(self.rng.choice(free)) if free else None

    def _insert(self, key: Key) -> Line:
        value = self._another_value(key)
        self._record(key, Fact(value, self.chunk_id, self._new_entry()))
        attribute = attributes()[key[1]]
        arguments = {
            "category": attribute.category,
            "content": statement(attribute, key[0], value),
        }
        return Line(self._said(key, value), Operation("memory_insert", arguments))

    def _change(self) -> Line | None:
        key = self._live_key()
        return self._replace(key, self._another_value(key)) if key else None

    def _replace(self, key: Key, value: str) -> Line:
        old = self.facts[key]
        before = (old.value, old.chunk_id)
        self._record(key, Fact(value, self.chunk_id, old.entry_id, before, is_changed=True))
        attribute = attributes()[key[1]]
        content = replacement(attribute, key[0], value, before=old.value)
        text = phrase(attribute.change, n=key[0], v=value, o=old.value)
        return Line(
            text, self._update(old.entry_id, content), statement(attribute, key[0], old.value)
        )

    def _correct(self) -> Line | None:
        key = self._live_key()
        if key is None:
            return None
        old, value, attribute = self.facts[key], self._another_value(key), attributes()[key[1]]
        self._record(key, Fact(value, self.chunk_id, old.entry_id, is_changed=True))
        text = phrase(CORRECTION, n=key[0], noun=attribute.noun, v=value, o=old.value)
        operation = self._update(old.entry_id, statement(attribute, key[0], value))
        return Line(text, operation, statement(attribute, key[0], old.value))

    @staticmethod
    def _update(entry_id: int, content: str) -> Operation:
        return Operation("memory_update", {"memory_id": entry_id, "content": content})

    def _retract(self) -> Line | None:
        key = self._live_key()
        if key is None:
            return None
        old = self.facts.pop(key)
        self._touched.add(key)
        self.retracted[key] = self.chunk_id
        attribute = attributes()[key[1]]
        text = phrase(RETRACTION, n=key[0], noun=attribute.noun)
        operation = Operation("memory_delete", {"memory_id": old.entry_id})
        return Line(text, operation, statement(attribute, key[0], old.value))

    def _confirm(self) -> Line | None:
        known = [
            key
            for key, value in self._rumours.items()
            if key in self.facts and key not in self._touched and self.facts[key].value != value
        ]
        if not known:
            return None
        key = self.rng.choice(known)
        line = self._replace(key, self._rumours.pop(key))
        return line._replace(text=CONFIRMED.format(s=line.text))

    def _do(self) -> Line | None:
        person, happening = self.rng.choice(self.people), self.rng.choice(HAPPENINGS)
        if (person, happening) in self.deeds:
            return None
        day = some_day_before(self.today, self.rng)
        is_relative = self.rng.random() < self.knobs.relative_dates
        told = told_day(day, self.today, relative=is_relative)
        self.deeds[person, happening] = Deed(day, self.chunk_id, told)
        self._new_entry()
        arguments = {"memory_type": "episodic", "content": occurrence(person, happening, day)}
        return Line(f"{person} {happening.past} {told}.", Operation("memory_insert", arguments))

    # What is not.

    def _imagine(self) -> Line | None:
        return self._untrue(HYPOTHETICALS)

    def _rumour(self) -> Line | None:
        return self._untrue(RUMOURS, is_rumour=True)

    def _untrue(self, ways: Sequence[str], *, is_rumour: bool = False) -> Line | None:
        key = self._live_key()
        if key is None:
            return None
        value = self._another_value(key)
        if is_rumour:
            self._rumours[key] = value
        said = statement(attributes()[key[1]], key[0], value)
        return Line(self.rng.choice(ways).format(s=said))

    def _repeat(self) -> Line | None:
        key = self._live_key()
        if key is None:
            return None
        said = statement(attributes()[key[1]], key[0], self.facts[key].value)
        return Line(self.rng.choice(REPEATS).format(s=said))

    # Chance and bookkeeping.

    def _said(self, key: Key, value: str) -> str:
        says = attributes()[key[1]].says
        way = self.rng.choice(says[1:]) if self.rng.random() < self.knobs.paraphrase else says[0]
        return phrase(way, n=key[0], v=value)

    def _is_used(self, key: Key) -> bool:
        return key in self.facts or key in self.retracted

    def _live_key(self) -> Key | None:
        live = [key for key in self.facts if key not in self._touched]
        return self.rng.choice(live) if live else None

    def _another_value(self, key: Key) -> str:
        """A value that is not true and, of late, was not."""
        person, name = key
        values = attributes()[name].values or [each for each in self.people if each != person]
        fact = self.facts.get(key)
        taken = {fact.value, fact.before[0] if fact.before else ""} if fact else set[str]()
        free = [value for value in values if value not in taken]
        # Of two other people both may have been somebody's sister already.
        return self.rng.choice(
            free or [value for value in values if value != (fact and fact.value)]
        )

    def _record(self, key: Key, fact: Fact) -> None:
        self.facts[key] = fact
        self._touched.add(key)

    def _new_entry(self) -> int:
        self._next_entry += 1
        return self._next_entry - 1
