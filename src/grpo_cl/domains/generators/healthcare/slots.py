"""Times for a visit: named outright, or to be found in a provider's calendar."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import NamedTuple

from grpo_cl.domains.generators.healthcare.case import Call, Case, read_visit
from grpo_cl.domains.generators.healthcare.wording import day_words
from grpo_cl.domains.healthcare.builder import working_days
from grpo_cl.domains.healthcare.database import (
    DAY_AHEAD,
    HealthcareDB,
    Provider,
    calendar_key,
)
from grpo_cl.domains.healthcare.rules import upcoming

WINDOW_DAYS = 13
"""How far beyond its first day a search looks; the tool shows no more at once."""
_NOON = "12:00"

Time = tuple[str, str]
"""A day and a time of day."""
Objections = Callable[[Time], set[str]]


class Slot(NamedTuple):
    """A time in the caller's words, and the calls that find it."""

    date: str
    time: str
    words: str
    """What follows 'move it to'."""
    reads: list[Call]

    @property
    def at(self) -> str:
        """What follows 'book a visit'."""
        return f"at {self.words}" if self.words.startswith("the ") else f"on {self.words}"


def free_times(database: HealthcareDB, provider: Provider) -> list[Time]:
    """Everything free in the provider's calendar from tomorrow on, in order."""
    keys = {day: calendar_key(provider.provider_id, day) for day in working_days()[1:]}
    return [
        (day, time)
        for day, key in keys.items()
        if key in database.calendars
        for time in database.calendars[key].free
    ]


def choose_slot(case: Case, provider: Provider, objections: Objections) -> Slot | None:
    """A time to which nothing is to be objected and which no other request of the call touches."""
    return (_found if case.hides() else _named)(case, provider, objections)


def _named(case: Case, provider: Provider, objections: Objections) -> Slot | None:
    busy = case.planned | {visit.start for visit in upcoming(case.database, case.patient)}
    for time in case.shuffled(free_times(case.database, provider))[:8]:
        if " ".join(time) not in busy and not objections(time):
            return name_slot(case, provider, time)
    return None


def name_slot(case: Case, provider: Provider, time: Time) -> Slot:
    """The time spelled out, in words alone if the caller is vague."""
    day = day_words(time[0], is_exact=not case.hides())
    return _slot(case, provider, time, f"{day} at {time[1]}", (time[0], time[0]))


def _found(case: Case, provider: Provider, objections: Objections) -> Slot | None:
    """The earliest time of a kind; one that clashes with another visit has to be passed over."""
    times = free_times(case.database, provider)
    # What a cancellation in the same call sets free begins within a day, before every search.
    first = case.rng.choice([time for time in times if time[0] > DAY_AHEAD])[0]
    half = case.rng.choice(("", " morning", " afternoon"))
    last = (date.fromisoformat(first) + timedelta(days=WINDOW_DAYS)).isoformat()
    fitting = [time for time in times if first <= time[0] <= last and _is_in(half, time[1])]
    visits = {visit.start: visit for visit in upcoming(case.database, case.patient)}
    passed: list[Call] = []
    for time in fitting:
        start = " ".join(time)
        if start in case.planned or objections(time) - {"clash"}:
            return None
        if (visit := visits.get(start)) is None:
            day = day_words(first, is_exact=not case.hides())
            slot = _slot(
                case,
                provider,
                time,
                f"the earliest free{half} time on or after {day}",
                (first, last),
            )
            return slot._replace(reads=[*passed, *slot.reads])
        if visit.appointment_id in case.used:
            return None
        case.claim(visit.appointment_id)
        passed.append(read_visit(visit))
    return None


def _is_in(half: str, time: str) -> bool:
    return not half or (time < _NOON) == (half == " morning")


def _slot(case: Case, provider: Provider, time: Time, words: str, window: tuple[str, str]) -> Slot:
    case.planned.add(" ".join(time))
    looked = {"provider_id": provider.provider_id, "start_date": window[0], "end_date": window[1]}
    return Slot(*time, words, [("get_available_slots", looked)])
