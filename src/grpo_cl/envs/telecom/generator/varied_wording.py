"""Varied texts of telecom tasks: many phrasings of each fact, and several layouts of the ticket.

Templates are over the placeholders of persons and the values of a case. What settles the matter and
what the customer refuses is told in words that the scripted user understands.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.envs.generation.persons import (
    CUSTOMER,
    FIRST,
    SECOND,
    THIRD,
    Person,
    contracted,
    in_person,
)
from grpo_cl.envs.generation.varied_texts import CONTRACTED_SHARE
from grpo_cl.envs.generation.wording import TaskTexts
from grpo_cl.envs.telecom.generator import wording
from grpo_cl.envs.telecom.generator.faults import DATA, MMS, SERVICE
from grpo_cl.envs.telecom.generator.wording import Phrase

USER: Person = {**CUSTOMER, "You": "The user", "Your": "The user's"}

COMPLAINTS: Mapping[str, Sequence[str]] = {
    SERVICE: (
        "{You} {are} having trouble with {your} phone: it cannot make or receive calls",
        "{You} {have} no phone service and cannot make or receive any calls",
        "{You} {have} problems with {your} phone service, and the status bar says 'No Service'",
        "{Your} phone shows 'No Service' in the status bar, and calls do not go through",
        "{Your} phone has stopped working for calls and {you} see no signal",
        "{You} cannot call anyone because {your} phone has no service",
        "{You} lost the signal a while ago and want{s} the phone service back",
        "{You} {are} without any signal and {have} missed several calls",
        "Since this morning {your} phone finds no network at all",
        "For the past few hours {your} phone has had no service",
        "Calls fail in both directions, and {your} phone shows no signal",
        "Nobody can reach {me}, as {your} phone has no signal",
        "Something is wrong with {your} phone service, so {you} are unable to make calls",
        "{You} noticed that {your} phone has no service and need{s} to be reachable again",
        "{You} tried to call {your} family and found out that there is no service",
        "The phone of {your} line is dead as far as the network goes: no calls, no signal",
    ),
    DATA: (
        "{You} {are} having trouble with mobile data: pages do not load or load very slowly",
        "{You} {are} unable to browse the internet on {your} phone, or it is far too slow",
        "{You} {have} problems with mobile data, and {your} phone is of no use on the internet",
        "{Your} mobile data does not work or is extremely slow",
        "{Your} phone cannot load web pages over mobile data, or takes forever to do so",
        "{Your} mobile internet is unusable, and {you} want it at full speed",
        "{You} cannot use the internet on {your} phone the way {you} used to",
        "The mobile internet of {your} phone has been bad or gone for the past few hours",
        "The internet on {your} phone is very slow or does not work at all",
        "There is no usable mobile data on {your} phone, and {you} have no Wi-Fi around",
        "Apps and pages on {your} phone load badly or not at all over mobile data",
        "Since yesterday {your} mobile data is down or too slow to work with",
        "{You} tried to look something up and {your} mobile data let {me} down: slow or nothing",
        "{You} need{s} the internet for work, but {your} mobile data is missing or slow",
        "{You} notice{s} that {your} mobile data speed is poor or that there is no connection",
    ),
    MMS: (
        "{You} {have} been unable to send picture messages with the messaging app",
        "{You} {are} unable to send MMS with {your} phone",
        "{You} {are} having trouble with MMS: messages with pictures do not go out",
        "{You} cannot send photos or group messages from the messaging app",
        "{You} tried to send a video to {your} family, but the messaging app does not send it",
        "{Your} messaging app does not send MMS messages",
        "{Your} picture messages have been failing for the past few hours",
        "{Your} phone sends texts, but MMS messages fail",
        "Every picture message (MMS) that {you} try to send fails",
        "MMS messages cannot leave {your} phone",
        "For the past few hours {you} have not been able to send MMS messages",
        "Since this morning photos do not go out from {your} messaging app",
        "The messaging app on {your} phone refuses to send MMS",
        "Sending MMS is broken on {your} phone, and {you} need to get a picture out today",
    ),
}

_RESOLVED: Mapping[str, Sequence[str]] = {
    SERVICE: (
        "For {me} the matter is settled once the status bar shows a signal",
        "{You} will consider this solved when the status bar shows that there is signal",
        "{You} will be satisfied when the status bar shows that the phone has signal again",
        "{You} {are} satisfied when the phone is connected and shows signal",
        "It is resolved for {me} when the status bar shows that the signal is back",
        "The issue counts as resolved as soon as the status bar shows a signal",
        "{You} {are} happy again once the status bar shows a signal",
    ),
    DATA: (
        "For {me} the matter is settled once a speed test says excellent, and not before",
        "{You} will consider this solved when a speed test reports an excellent connection",
        "{You} will only be satisfied when the speed test returns an excellent speed",
        "{You} {are} satisfied only when a speed test says excellent; good, fair or poor will not "
        "do",
        "It is resolved for {me} when the speed test reports excellent internet speed",
        "The issue counts as resolved when the speed test returns excellent; anything less is not "
        "enough",
        "Only when a speed test reports excellent are {your} expectations met",
    ),
    MMS: (
        "For {me} the matter is settled once the messaging app can send MMS messages",
        "{You} will consider this solved when MMS messages can be sent again",
        "{You} will be satisfied when {you} can send MMS messages",
        "{You} {are} satisfied when a check shows that MMS messages can be sent",
        "It is resolved for {me} when the phone can send MMS again",
        "The issue counts as resolved when it is possible to successfully send an MMS",
        "{You} {are} happy again once MMS messages can be sent from the phone",
    ),
}
_PAYS = (
    "{You} gave permission to pay any overdue bill",
    "{You} {have} given permission to pay the overdue bills",
    "{You} allow{s} all overdue bills to be paid",
    "{You} {are} willing to pay overdue bills if there are any",
    "{You} will pay what is overdue on the account when {you} are asked to",
    "{You} accept{s} a payment request for whatever bill is overdue",
    "If an overdue bill turns up, {you} agree to pay it",
    "If a bill is overdue, {you} are okay with paying it now",
    "Overdue bills may be paid",
)
_REFUSES_TO_PAY = (
    "{You} refuse{s} to pay any bill",
    "{You} refuse{s} to pay any bill today, whatever the reason",
    "{You} refuse{s} to pay overdue bills during this contact",
    "{You} will not settle any bill today",
    "{You} turn{s} down every payment request",
    "If a bill is overdue, {you} still refuse to pay it",
)
_REFUELS = (
    "{You} will refuel {asks_gb:.1f} GB of data if the allowance is used up",
    "{You} would refuel {asks_gb:.1f} GB of data, if that is needed",
    "{You} agree{s} to refuel {asks_gb:g} GB of data if the line has run out of data",
    "{You} {are} willing to add {asks_gb:.1f} GB of data if the data is used up",
    "{You} accept{s} the price of {asks_gb:g} GB of extra data, but only if the data is used up",
    "If the line has run out of data, {you} want exactly {asks_gb:g} GB added",
    "If the data of the plan is used up, {you} are okay with buying {asks_gb:g} GB",
    "In case the allowance is used up, {asks_gb:.1f} GB of data may be added at the plan's price",
)
_REFUELS_TOO_MUCH = (
    "If the line has run out of data, {you} ask for {asks_gb:g} GB, and take the most that is "
    "allowed if that is less",
    "If the data is used up, {you} want {asks_gb:.1f} GB added, or the permitted maximum if it is "
    "smaller",
    "{You} would refuel {asks_gb:.1f} GB of data if the allowance is used up, or as much as the "
    "rules allow if that is less",
    "{You} want{s} {asks_gb:g} GB of extra data if the line is out of data; if less is allowed, "
    "{you} take the largest amount allowed",
)
_REFUSES_DATA = (
    "{You} refuse{s} to buy extra data",
    "{You} refuse{s} to buy extra data, whatever it costs",
    "{You} refuse{s} to refuel data on the line",
    "{You} will not have data added to {your} line",
    "Even if the data is used up, {you} refuse to have any data added",
)
_KEEPS_PLAN = (
    "{You} want{s} to keep the plan {you} have",
    "{You} {do} not want to change the plan",
    "{You} {do} not want to change {your} mobile data plan",
    "{You} {do} not want a different data plan",
    "A different plan is out of the question",
    "For {me} a change of plan is out of the question",
)
_SPARE_ON_HOLD = (
    "{Your} other line, {spare_phone}, is on hold because {you} want it so; it stays on hold",
    "Another line of the account, {spare_phone}, is on hold on purpose and must stay on hold",
    "The line {spare_phone} on the same account should stay on hold, as {you} wish",
)
_SPARE_OUT_OF_DATA = (
    "{Your} other line, {spare_phone}, has used up its data too, but nothing is to be added there",
    "Another line of the account, {spare_phone}, is out of data as well; {you} want nothing added "
    "there",
    "The line {spare_phone} has no data left either, which is fine with {me}: nothing is to be "
    "added to it",
)
_SMALL_TALK: Sequence[Sequence[str]] = (
    (
        "{Your} phone: {phone_model}",
        "The model of {your} phone is {phone_model}",
        "{You} use{s} the model {phone_model}",
    ),
    ("{You} dropped the phone last week", "The phone fell down last week"),
    ("{You} bought a new case for the phone on Sunday", "The phone got a new case on Sunday"),
    ("A friend suspects the battery", "{Your} friend thinks that it is the battery"),
    ("{Your} neighbour's phone works well", "The phone of {your} neighbour has no such problem"),
    ("{You} {have} been a customer for years", "{You} {have} been with the company for long"),
    ("{You} {was} born on {birth_date}", "{Your} date of birth is {birth_date}"),
)
_TRAVELLING = (
    "{You} {have} been travelling since last week",
    "{You} left for a trip last week",
    "{You} {have} been on the road for a week",
)

VARIANTS: Mapping[Phrase, Sequence[str]] = {
    phrase: templates
    for group, templates in (
        *((wording.COMPLAINTS[intent], COMPLAINTS[intent]) for intent in (SERVICE, DATA, MMS)),
        *((wording.RESOLVED[intent], _RESOLVED[intent]) for intent in (SERVICE, DATA, MMS)),
        (wording.PAYS, _PAYS),
        (wording.REFUSES_TO_PAY, _REFUSES_TO_PAY),
        (wording.REFUELS, _REFUELS),
        (wording.REFUELS_TOO_MUCH, _REFUELS_TOO_MUCH),
        (wording.REFUSES_DATA, _REFUSES_DATA),
        (wording.KEEPS_PLAN, _KEEPS_PLAN),
        ((wording.SPARE_ON_HOLD,), _SPARE_ON_HOLD),
        ((wording.SPARE_OUT_OF_DATA,), _SPARE_OUT_OF_DATA),
        ((wording.TRAVELLING,), _TRAVELLING),
        *(((phrase,), told) for phrase, told in zip(wording.SMALL_TALK, _SMALL_TALK, strict=True)),
    )
    for phrase in group
}
"""Templates of a fact by its plain phrases."""

_BOTH = (
    "{You} {do} not want to change the mobile data plan, but {you} would refuel {asks_gb:.1f} GB "
    "of data if needed",
    "{You} {do} not want another plan, but {you} are willing to refuel {asks_gb:.1f} GB of data if "
    "the allowance is used up",
    "{You} {do} not want to change {your} plan, but {you} agree to add {asks_gb:g} GB of data if "
    "necessary",
)
"""No other plan, and an amount of data to add."""

_NAMES = (
    "{You} {are} {name} and {your} phone number is {phone_number}",
    "{You} {are} {name} with phone number {phone_number}",
    "{You} {are} {name}, and this is about the line {phone_number}",
    "{Your} name is {name} and {your} phone number is {phone_number}",
    "{Your} phone number is {phone_number} and {your} name is {name}",
)
_PLACES = (
    "{You} {are} currently {place}",
    "{You} {are} {place} at the moment",
    "{You} {are} {place} right now",
    "{Your} current location: {place}",
)
_FIELDS = (
    "Customer: {name}, phone number: {phone_number}, current location: {place}",
    "Name of the customer: {name}, phone number: {phone_number}, location: {place}",
    "Customer name: {name}. Phone number: {phone_number}. Current location: {place}",
    "Name: {name}, phone: {phone_number}, currently {place}",
    "The customer is {name} (phone number: {phone_number}), currently {place}",
)
_GREETINGS = ("Hello, this is", "Hi, my name is", "Good morning, I am", "Hi, I am")
_UNKNOWN = (
    *wording.UNKNOWN,
    "You do not know what is wrong with your phone.",
    "You have not found out why this happens.",
    "You cannot say whether it is the phone or the account.",
    "You do not know much about phone settings.",
)
_MANNERS = (
    "If the agent suggests actions that fix the issue and do not cost anything, you agree to them.",
    "You are patient and follow the instructions of the agent.",
    "You are impatient but do what you are asked.",
    "You are nervous and ask whether you did it right.",
    "You are calm and precise.",
)


class _Facts(NamedTuple):
    complaint: str
    others: list[str]


def write_varied_texts(
    phrases: Sequence[Phrase],
    *,
    opening: Phrase,
    values: Mapping[str, JsonValue],
    rng: Random,
) -> TaskTexts:
    """The texts of the same task as ``wording.write_texts`` makes, in varied words."""
    plain = wording.write_texts(phrases, opening=opening, values=values, rng=rng)
    own_rng = Random(f"{plain.ticket}{plain.task_instructions}")
    told = _draw(phrases, opening, own_rng)
    known = [own_rng.choice(_NAMES), own_rng.choice(_PLACES)]
    own_rng.shuffle(known)
    manners = [*wording.MANNERS, *([own_rng.choice(_MANNERS)] if own_rng.random() < 0.5 else [])]
    return TaskTexts(
        reason_for_call=_text([told.complaint], SECOND, values),
        known_info=_text(known, SECOND, values),
        unknown_info=own_rng.choice(_UNKNOWN),
        task_instructions=f"{_text(told.others, SECOND, values)} {' '.join(manners)}",
        ticket=_ticket(_draw(phrases, opening, own_rng), values, own_rng),
    )


def _draw(phrases: Sequence[Phrase], opening: Phrase, rng: Random) -> _Facts:
    """Templates of the complaint and, in random order, of the other facts."""
    plan = next((phrase for phrase in phrases if phrase in wording.KEEPS_PLAN), None)
    refuel = next((phrase for phrase in phrases if phrase in wording.REFUELS), None)
    joined = {plan, refuel} if plan and refuel and rng.random() < 0.4 else set[Phrase | None]()
    others = [rng.choice(VARIANTS[phrase]) for phrase in phrases if phrase not in joined]
    if joined:
        others.append(rng.choice(_BOTH))
    rng.shuffle(others)
    return _Facts(rng.choice(VARIANTS[opening]), others)


def _text(templates: Sequence[str], person: Person, values: Mapping[str, JsonValue]) -> str:
    return " ".join(in_person(template, {**person, **values}) for template in templates)


def _report(templates: Sequence[str], values: Mapping[str, JsonValue], rng: Random) -> str:
    """The sentences in the third person; the first names the customer."""
    named = rng.choice((CUSTOMER, USER))
    persons = [
        named if index == 0 or rng.random() < 0.1 else THIRD for index in range(len(templates))
    ]
    return " ".join(
        _text([template], person, values)
        for template, person in zip(templates, persons, strict=True)
    )


def _ticket(facts: _Facts, values: Mapping[str, JsonValue], rng: Random) -> str:
    layout = rng.choices(list(_LAYOUTS), list(_LAYOUTS.values()))[0]
    text = layout(facts, values, rng)
    return contracted(text) if rng.random() < CONTRACTED_SHARE else text


def _with_fields(facts: _Facts, values: Mapping[str, JsonValue], rng: Random) -> str:
    """The complaint, the customer as a list of fields, and the other facts."""
    fields = _text([rng.choice(_FIELDS)], THIRD, values)
    complaint = _report([facts.complaint], values, rng)
    others = " ".join(_text([fact], THIRD, values) for fact in facts.others)
    first, second = (fields, complaint) if rng.random() < 0.25 else (complaint, fields)
    return f"{first} {second} {others}"


def _in_prose(facts: _Facts, values: Mapping[str, JsonValue], rng: Random) -> str:
    """A report in which the customer is identified anywhere after the complaint."""
    others = list(facts.others)
    identity = [rng.choice(_NAMES), rng.choice(_PLACES)]
    for sentence in identity if rng.random() < 0.5 else reversed(identity):
        others.insert(rng.randint(0, len(others)), sentence)
    return _report([facts.complaint, *others], values, rng)


def _in_sections(facts: _Facts, values: Mapping[str, JsonValue], rng: Random) -> str:
    """The layout of the tickets that are made from a scenario."""
    identity = _report([rng.choice(_NAMES), rng.choice(_PLACES)], values, rng)
    complaint = _report([facts.complaint], values, rng)
    decides = _report(facts.others, values, rng)
    return f"{identity}\n\nRequest: {complaint}\n\nHow the customer decides: {decides}"


def _as_message(facts: _Facts, values: Mapping[str, JsonValue], rng: Random) -> str:
    """A message in the customer's own words."""
    place = rng.choice(_PLACES)
    body = _text([facts.complaint, place, *facts.others], FIRST, values)
    if rng.random() < 0.5:
        return f"{rng.choice(_GREETINGS)} {values['name']}, {values['phone_number']}. {body}"
    return f"{body} Thanks, {values['name']}, phone number {values['phone_number']}."


_LAYOUTS: Mapping[Callable[[_Facts, Mapping[str, JsonValue], Random], str], int] = {
    _with_fields: 45,
    _in_prose: 25,
    _in_sections: 15,
    _as_message: 15,
}
"""Layouts with their weights."""
