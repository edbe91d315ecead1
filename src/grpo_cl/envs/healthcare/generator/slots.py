"""Times for a visit, given explicitly or described so that the agent has to search the calendar."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import NamedTuple

from grpo_cl.envs.generation.requests import Call
from grpo_cl.envs.healthcare.database import DAY_AHEAD, HealthcareDB, Provider, calendar_key
from grpo_cl.envs.healthcare.database_builder import working_days
from grpo_cl.envs.healthcare.generator.case import HealthcareCase, day_words, read_visit
from grpo_cl.envs.healthcare.rules import upcoming

WINDOW_DAYS = 13
"""Days that a search covers after its first day; the limit of the tool."""
_NOON = "12:00"

SlotTime = tuple[str, str]
"""A date and a time of day."""
Violations = Callable[[SlotTime], set[str]]
"""The rules that a visit at that time violates."""


class Slot(NamedTuple):
    """A time in the caller's words, and the calls that find it."""

    date: str
    time: str
    words: str
    """The words after 'move it to'."""
    reads: list[Call]

    @property
    def at(self) -> str:
        """The words after 'book a visit'."""
        return f"at {self.words}" if self.words.startswith("the ") else f"on {self.words}"


def free_times(database: HealthcareDB, provider: Provider) -> list[SlotTime]:
    """The free times of the provider from tomorrow on, in order."""
    keys = {day: calendar_key(provider.provider_id, day) for day in working_days()[1:]}
    return [
        (day, time)
        for day, key in keys.items()
        if key in database.calendars
        for time in database.calendars[key].free
    ]


def choose_slot(case: HealthcareCase, provider: Provider, violations: Violations) -> Slot | None:
    """A time that violates no rule and that no other request of the call uses."""
    draw = _draw_earliest_slot if case.omits_detail() else _draw_named_slot
    return draw(case, provider, violations)


def _draw_named_slot(
    case: HealthcareCase, provider: Provider, violations: Violations
) -> Slot | None:
    busy = case.planned | {visit.start for visit in upcoming(case.database, case.patient)}
    for time in case.shuffled(free_times(case.database, provider))[:8]:
        if " ".join(time) not in busy and not violations(time):
            return name_slot(case, provider, time)
    return None


def name_slot(case: HealthcareCase, provider: Provider, time: SlotTime) -> Slot:
    """The time given explicitly, without the ISO date if the caller omits details."""
    day = day_words(time[0], is_exact=not case.omits_detail())
    return _make_slot(case, provider, time, f"{day} at {time[1]}", (time[0], time[0]))


def _draw_earliest_slot(
    case: HealthcareCase, provider: Provider, violations: Violations
) -> Slot | None:
    """The earliest free time from a day on; times that clash with another visit are skipped."""
    times = free_times(case.database, provider)
    # Times that a cancellation in the same call frees are within a day, before every search.
    first = case.rng.choice([time for time in times if time[0] > DAY_AHEAD])[0]
    half = case.rng.choice(("", " morning", " afternoon"))
    last = (date.fromisoformat(first) + timedelta(days=WINDOW_DAYS)).isoformat()
    candidates = [time for time in times if first <= time[0] <= last and _is_in_half(half, time[1])]
    visits = {visit.start: visit for visit in upcoming(case.database, case.patient)}
    clash_reads: list[Call] = []
    for time in candidates:
        start = " ".join(time)
        if start in case.planned or violations(time) - {"clash"}:
            return None
        if (visit := visits.get(start)) is None:
            day = day_words(first, is_exact=not case.omits_detail())
            slot = _make_slot(
                case,
                provider,
                time,
                f"the earliest free{half} time on or after {day}",
                (first, last),
            )
            return slot._replace(reads=[*clash_reads, *slot.reads])
        if visit.appointment_id in case.used:
            return None
        case.mark_used(visit.appointment_id)
        clash_reads.append(read_visit(visit))
    return None


def _is_in_half(half: str, time: str) -> bool:
    return not half or (time < _NOON) == (half == " morning")


def _make_slot(
    case: HealthcareCase, provider: Provider, time: SlotTime, words: str, window: tuple[str, str]
) -> Slot:
    case.planned.add(" ".join(time))
    arguments = {
        "provider_id": provider.provider_id,
        "start_date": window[0],
        "end_date": window[1],
    }
    return Slot(*time, words, [("get_available_slots", arguments)])
