"""Synthetic conversation generator: facts that change, the lines about them, gold operations."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from random import Random
from typing import Any, NamedTuple

from grpo_cl.envs.memory.generator.attributes import EVENT_TYPES, RELATIONS, EventType, attributes
from grpo_cl.envs.memory.generator.parameters import GeneratorParams
from grpo_cl.envs.memory.generator.templates import (
    CHAT,
    CONFIRMED,
    CORRECTION,
    HYPOTHETICALS,
    REPEATS,
    RETRACTION,
    RUMOURS,
    date_phrase,
    event_statement,
    phrase,
    recent_day,
    statement,
    statement_with_previous,
)

Key = tuple[str, str]
"""A person and an attribute."""


class Fact(NamedTuple):
    """The current value of a key."""

    value: str
    chunk_id: int
    """The chunk that states it."""
    entry_id: int
    """Its entry in the gold memory."""
    before: tuple[str, int] | None = None
    """The previous value and the chunk that stated it."""
    is_changed: bool = False


class Event(NamedTuple):
    """A dated event of a person."""

    day: date
    chunk_id: int
    date_text: str
    """The date as the line states it."""


class Operation(NamedTuple):
    """A call of a memory tool."""

    name: str
    arguments: Mapping[str, Any]


class Line(NamedTuple):
    """A line of the conversation with its gold operation; None for noise."""

    text: str
    operation: Operation | None = None
    stale: str | None = None
    """The statement that this line invalidates."""


class ConversationGenerator:
    """Generates chunks one by one and tracks the facts, from which gold answers are taken."""

    def __init__(self, rng: Random, params: GeneratorParams, people: Sequence[str]) -> None:
        self.rng = rng
        self.params = params
        self.people = people
        plain = [name for name in attributes() if name not in RELATIONS]
        self.attributes = rng.sample(plain, params.attributes)
        self.facts: dict[Key, Fact] = {}
        self.retracted: dict[Key, int] = {}
        self.events: dict[tuple[str, EventType], Event] = {}
        self.chunk_id = 0
        self.today = date(2024, 1, 1) + timedelta(days=rng.randrange(300))
        self._next_entry_id = 1
        self._changed_keys: set[Key] = set()
        """Keys of facts in the current chunk."""
        self._rumours: dict[Key, str] = {}
        self.changes: set[str] = set()
        """Kinds of change to earlier facts so far."""

    def next_chunk(self) -> list[Line]:
        """The lines of the next chunk, in order."""
        self.chunk_id += 1
        self.today += timedelta(days=self.rng.randint(1, 9))
        self._changed_keys.clear()
        # The first chunk always has facts, so that every instance has questions.
        is_empty = self.chunk_id > 1 and self.rng.random() < self.params.empty
        count = self.params.facts
        lines = [] if is_empty else [line for _ in range(count) if (line := self._fact_line())]
        expected_noise = self.params.noise * count
        num_noise = int(expected_noise) + (self.rng.random() < expected_noise % 1)
        for _ in range(max(num_noise, not lines)):
            # Fact lines stay in order, since entry ids are assigned in this order.
            lines.insert(self.rng.randint(0, len(lines)), self._noise_line())
        return lines

    def _fact_line(self) -> Line | None:
        params = self.params
        weights: dict[Callable[[], Line | None], float] = {
            self._update: params.update,
            self._correct: params.correct,
            self._retract: params.retract,
            self._new_relation: params.relation,
            self._new_event: params.happening,
            self._confirm_rumour: params.rumour * params.noise / 2,
        }
        weights[self._new_fact] = max(0.05, 1 - sum(weights.values()))
        make_line = self.rng.choices(list(weights), list(weights.values()))[0]
        return make_line() or self._new_fact()

    def _noise_line(self) -> Line:
        params = self.params
        fractions = {
            self._hypothetical: params.hypothetical,
            self._rumour: params.rumour,
            self._repeat: params.repeat,
        }
        drawn = self.rng.random()
        for make_line, fraction in fractions.items():
            drawn -= fraction
            if drawn < 0 and (line := make_line()):
                return line
        return Line(self.rng.choice(CHAT))

    # Lines with facts.

    def _new_fact(self) -> Line | None:
        free = [
            (person, name)
            for person in self.people
            for name in self.attributes
            if not self._is_used((person, name))
        ]
        return self._insert(self.rng.choice(free)) if free else None

    def _new_relation(self) -> Line | None:
        free = [
            (person, name)
            for person in self.people
            for name in RELATIONS
            if not self._is_used((person, name))
        ]
        return self._insert(self.rng.choice(free)) if free else None

    def _insert(self, key: Key) -> Line:
        value = self._new_value(key)
        self._record(key, Fact(value, self.chunk_id, self._new_entry_id()))
        attribute = attributes()[key[1]]
        arguments = {
            "category": attribute.category,
            "content": statement(attribute, key[0], value),
        }
        return Line(self._statement(key, value), Operation("memory_insert", arguments))

    def _update(self) -> Line | None:
        key = self._random_key()
        return self._replace(key, self._new_value(key)) if key else None

    def _replace(self, key: Key, value: str) -> Line:
        old = self.facts[key]
        before = (old.value, old.chunk_id)
        self._record(key, Fact(value, self.chunk_id, old.entry_id, before, is_changed=True))
        self.changes.add("update")
        attribute = attributes()[key[1]]
        content = statement_with_previous(attribute, key[0], value, before=old.value)
        text = phrase(attribute.change, n=key[0], v=value, o=old.value)
        operation = self._update_operation(old.entry_id, content)
        return Line(text, operation, statement(attribute, key[0], old.value))

    def _correct(self) -> Line | None:
        key = self._random_key()
        if key is None:
            return None
        old, value, attribute = self.facts[key], self._new_value(key), attributes()[key[1]]
        self._record(key, Fact(value, self.chunk_id, old.entry_id, is_changed=True))
        self.changes.add("correction")
        text = phrase(CORRECTION, n=key[0], noun=attribute.noun, v=value, o=old.value)
        operation = self._update_operation(old.entry_id, statement(attribute, key[0], value))
        return Line(text, operation, statement(attribute, key[0], old.value))

    @staticmethod
    def _update_operation(entry_id: int, content: str) -> Operation:
        return Operation("memory_update", {"memory_id": entry_id, "content": content})

    def _retract(self) -> Line | None:
        key = self._random_key()
        if key is None:
            return None
        old = self.facts.pop(key)
        self._changed_keys.add(key)
        self.changes.add("retraction")
        self.retracted[key] = self.chunk_id
        attribute = attributes()[key[1]]
        text = phrase(RETRACTION, n=key[0], noun=attribute.noun)
        operation = Operation("memory_delete", {"memory_id": old.entry_id})
        return Line(text, operation, statement(attribute, key[0], old.value))

    def _confirm_rumour(self) -> Line | None:
        open_rumours = [
            key
            for key, value in self._rumours.items()
            if key in self.facts
            and key not in self._changed_keys
            and self.facts[key].value != value
        ]
        if not open_rumours:
            return None
        key = self.rng.choice(open_rumours)
        line = self._replace(key, self._rumours.pop(key))
        self.changes.add("confirmed rumour")
        return line._replace(text=CONFIRMED.format(s=line.text))

    def _new_event(self) -> Line | None:
        person, event_type = self.rng.choice(self.people), self.rng.choice(EVENT_TYPES)
        if (person, event_type) in self.events:
            return None
        day = recent_day(self.today, self.rng)
        is_relative = self.rng.random() < self.params.relative_dates
        date_text = date_phrase(day, self.today, relative=is_relative)
        self.events[person, event_type] = Event(day, self.chunk_id, date_text)
        self._new_entry_id()
        content = event_statement(person, event_type, day)
        operation = Operation("memory_insert", {"memory_type": "episodic", "content": content})
        return Line(f"{person} {event_type.past} {date_text}.", operation)

    # Noise lines.

    def _hypothetical(self) -> Line | None:
        return self._untrue_statement(HYPOTHETICALS)

    def _rumour(self) -> Line | None:
        return self._untrue_statement(RUMOURS, is_rumour=True)

    def _untrue_statement(
        self, templates: Sequence[str], *, is_rumour: bool = False
    ) -> Line | None:
        key = self._random_key()
        if key is None:
            return None
        value = self._new_value(key)
        if is_rumour:
            self._rumours[key] = value
        text = statement(attributes()[key[1]], key[0], value)
        return Line(self.rng.choice(templates).format(s=text))

    def _repeat(self) -> Line | None:
        key = self._random_key()
        if key is None:
            return None
        text = statement(attributes()[key[1]], key[0], self.facts[key].value)
        return Line(self.rng.choice(REPEATS).format(s=text))

    # Sampling and state.

    def _statement(self, key: Key, value: str) -> str:
        templates = attributes()[key[1]].statements
        is_paraphrased = self.rng.random() < self.params.paraphrase
        template = self.rng.choice(templates[1:]) if is_paraphrased else templates[0]
        return phrase(template, n=key[0], v=value)

    def _is_used(self, key: Key) -> bool:
        return key in self.facts or key in self.retracted

    def _random_key(self) -> Key | None:
        """The key of a fact that this chunk has not changed; None if there is none."""
        unchanged = [key for key in self.facts if key not in self._changed_keys]
        return self.rng.choice(unchanged) if unchanged else None

    def _new_value(self, key: Key) -> str:
        """A value other than the current and the previous one."""
        person, name = key
        values = attributes()[name].values or [other for other in self.people if other != person]
        fact = self.facts.get(key)
        used = {fact.value, fact.before[0] if fact.before else ""} if fact else set[str]()
        free = [value for value in values if value not in used]
        # With few persons no value of a relation may be free; then the previous one is allowed.
        return self.rng.choice(
            free or [value for value in values if value != (fact and fact.value)]
        )

    def _record(self, key: Key, fact: Fact) -> None:
        self.facts[key] = fact
        self._changed_keys.add(key)

    def _new_entry_id(self) -> int:
        self._next_entry_id += 1
        return self._next_entry_id - 1
