"""Varied phrasings of airline requests, by the kind of the request."""

import re
from random import Random

from grpo_cl.envs.generation.varied_texts import Background, Phrasings

_REASONS = (
    "cancel {trip} because {reason}",
    "cancel {trip}, as {reason}",
    "cancel {trip} since {reason}",
    "cancel {trip} | the reason is that {reason}",
    "cancel {trip} | {you} cannot make the trip because {reason}",
    "get {trip} cancelled because {reason}",
    "have {trip} cancelled, because {reason}",
    "call off {trip} because {reason}",
)
_REFUNDS = (
    "cancel {trip} and get a refund because {reason}",
    "cancel {trip} with a full refund | the reason is that {reason}",
    "cancel {trip} and get the money back, since {reason}",
    "have {trip} cancelled and refunded because {reason}",
    "get a refund for {trip} and cancel it, as {reason}",
    "cancel {trip} and be refunded | {you} say that {reason}",
)

PHRASINGS: Phrasings = {
    "cancel": _REASONS,
    "cancellation without grounds": _REFUNDS,
    "cancellation after take-off": _REFUNDS,
    "compensation": (
        "be compensated because the airline cancelled a flight of {trip}",
        "get compensation for a cancelled flight of {trip}",
        "complain that a flight of {trip} was cancelled by the airline, and be compensated",
        "know what the airline offers for a cancelled flight of {trip}, and be compensated",
        "receive compensation | the airline cancelled a flight of {trip}",
        "get something for the trouble, as the airline cancelled a flight of {trip}",
    ),
    "cancel and compensation": (
        "cancel {trip} because one of its flights was {status}, and then get compensation",
        "cancel {trip}, as a flight of it was {status} | after that {you} want compensation for "
        "the inconvenience",
        "complain that a flight of {trip} was {status}, have the reservation cancelled and then "
        "be compensated",
        "have {trip} cancelled and refunded because a flight was {status} | when that is done, "
        "{you} want to be compensated for the trouble",
        "first cancel {trip}, since one of its flights was {status}, and after that receive "
        "compensation",
    ),
    "cabin": (
        "change {trip} to {cabin} for everyone | the flights stay the same | the difference {way} "
        "{your} {payment}",
        "have all passengers of {trip} fly in {cabin} on the same flights | the difference {way} "
        "{your} {payment}",
        "switch the cabin of {trip} to {cabin} for all passengers and keep the flights | the "
        "difference {way} {your} {payment}",
        "move all of {trip} to {cabin} without changing the flights | any difference {way} {your} "
        "{payment}",
        "change the class of {trip} to {cabin} for everyone, on the same flights | any difference "
        "{way} {your} {payment}",
        "fly in {cabin} on {trip}, with everyone in the booking and on the same flights | the "
        "difference {way} {your} {payment}",
    ),
    "cabin and bags": (
        "upgrade {trip} to {cabin} on the same flights, and then add {bags} | both are settled "
        "with {your} {payment}",
        "upgrade {trip} to {cabin} and keep the flights | after that {you} want to add {bags} | "
        "for both {you} want to use {your} {payment}",
        "move {trip} up to {cabin} first, without other flights, and add {bags} after that | "
        "{you} pay for both with {your} {payment}",
        "change the cabin of {trip} to {cabin} with the same flights | once it is upgraded, {you} "
        "want {bags} added | {your} {payment} pays for both",
    ),
    "bags": (
        "add {bags} to {trip} | any fee goes on {your} {payment}",
        "add {bags} to {trip} | if there is a fee, {you} want to pay it with {your} {payment}",
        "take {bags} more than planned on {trip} | for any fee {you} use {your} {payment}",
        "have {bags} added to {trip}, with any fee on {your} {payment}",
        "bring {bags} on {trip} in addition to what is booked | {your} {payment} pays any fee",
        "have {bags} more on {trip}, which makes {total} in all | {you} would pay with {your} "
        "{payment}",
        "travel with more luggage on {trip}: {bags} more than booked, {total} in total | any fee "
        "goes on {your} {payment}",
    ),
    "rename": (
        "correct a name on {trip}: {before} should be {after} | nothing else on the passenger list "
        "changes, nor does its order",
        "change the last name of {before} on {trip} to {last_name} | the other passengers and "
        "their order stay the same",
        "have the last name of passenger {before} changed to {last_name} on {trip} | everything "
        "else about the passengers stays",
        "fix a spelling on {trip}, where {before} should read {after} | the rest of the passenger "
        "list stays as it is, in the same order",
    ),
    "birthday": (
        "change the date of birth of {before} on {trip} to {birthday} | nothing else about the "
        "passengers changes",
        "correct the birthday of {before} on {trip} | it should be {birthday} | the passenger list "
        "stays the same otherwise, in the same order",
        "have the birth date of passenger {before} on {trip} corrected to {birthday}",
    ),
    "replace": (
        "replace {before} by {after}, {born}, on {trip} | the other passengers and their order "
        "stay the same",
        "change the passenger {before} on {trip} to {after}, {born} | nothing else on the "
        "passenger list changes",
        "let {after}, {born}, travel on {trip} in place of {before} | the rest of the passenger "
        "list and its order stay as they are",
        "swap a passenger of {trip}: instead of {before} it should be {after}, {born}",
    ),
    "flights": (
        "change {subject} to {when} in the same cabin{rest} | {you} want {flight} | any "
        "difference in price is settled with {your} {payment}",
        "move {subject} to {when} and stay in the same cabin{rest} | the flight should be "
        "{flight} | {you} want to use {your} {payment} for the difference in price",
        "fly {subject} on {when} instead, in the same cabin{rest} | {you} want {flight} | "
        "for any price difference {you} use {your} {payment}",
        "push {subject} to {when}{rest} | {you} stay in the same cabin and want {flight} | "
        "the difference goes on {your} {payment}",
        "have {subject} moved to {when}, in the same cabin{rest} | {you} prefer {flight} | "
        "{your} {payment} is used for the price difference",
    ),
    "booking": (
        "book {route} in {cabin}",
        "book {route} in {cabin} class",
        "make a new booking: {route} in {cabin}",
        "get {route} in {cabin}",
        "travel and book {route} in {cabin}",
        "reserve {route} in {cabin}",
    ),
    "basic economy change": (
        "change {trip} so that it leaves on {when}, in the cabin it is in",
        "move the first flight of {trip} to {when} without changing the cabin",
        "leave on {when} with {trip} instead | {you} do not want to change the cabin",
        "push {trip} to {when} | the cabin should stay as it is",
    ),
    "other destination": (
        "change the destination of {trip} from {before} to {place}",
        "fly to {place} instead of {before} on {trip}",
        "have {trip} go to {place} | {you} no longer want to go to {before}",
        "modify {trip} so that it ends in {place} and not in {before}",
    ),
    "cabin of one flight": (
        "upgrade only flight {number} of {trip} to business | the other flights stay in their "
        "cabin",
        "have business class on flight {number} of {trip} and leave the other flights as they are",
        "fly business on {number}, a flight of {trip} | {you} do not want to pay for business on "
        "the other flights",
    ),
    "certificate for a change": (
        "upgrade {trip} to business on the same flights | {you} only want it if {your} "
        "{certificate} pays for it",
        "move {trip} to business class and pay with {your} {certificate} | no other payment is "
        "okay with {me}",
        "have {trip} upgraded to business with the same flights, but only by using {your} "
        "{certificate}",
    ),
    "fewer bags": (
        "remove one checked bag from {trip}",
        "take one checked bag off {trip} | {you} no longer need all of them",
        "check one bag less on {trip}",
        "have one checked bag removed from {trip} and get the money for it back",
    ),
    "added passenger": (
        "add {person}, to {trip}",
        "add a passenger to {trip} | it is {person}",
        "have {person}, travel along on {trip}",
    ),
    "removed passenger": (
        "take {leaver} off {trip} while the others still fly",
        "remove the passenger {leaver} from {trip} | the others still want to fly",
        "have {leaver} removed from {trip} and keep the other passengers",
    ),
    "late insurance": (
        "add travel insurance to {trip}",
        "buy travel insurance for {trip} now, which {you} forgot when booking",
        "have insurance added to {trip} | {you} forgot it when {you} booked",
        "insure {trip} | {you} would pay for the travel insurance now",
    ),
    "ineligible for compensation": (
        "get compensation because a flight of {trip} was cancelled",
        "complain about a cancelled flight of {trip} and receive compensation",
        "receive a certificate because the airline cancelled a flight of {trip}",
        "be compensated for the inconvenience of a cancelled flight of {trip}",
    ),
    "unfounded compensation": (
        "get compensation because flight {number} of {trip} was cancelled",
        "complain that flight {number} of {trip} was cancelled, and receive compensation",
        "receive a certificate for {trip} | {you} claim that flight {number} was cancelled",
        "be compensated for flight {number} of {trip}, which was cancelled as {you} say",
    ),
}

DETAILS: Phrasings = {
    "the refund goes back the way it was paid": (
        "the refund goes back the way it was paid",
        "the refund should go to the original payment method",
        "{you} want the money back on the original form of payment",
        "{you} want a refund the way it was paid",
    ),
    "a travel certificate is welcome and the reservation itself stays as it is": (
        "a travel certificate is welcome and the reservation itself stays as it is",
        "{you} accept a certificate, and nothing about the reservation changes",
        "{you} do not want to cancel or change the reservation, and a certificate is fine",
    ),
    "the refund goes back the way it was paid and a certificate is welcome": (
        "the refund goes back the way it was paid and a certificate is welcome",
        "for the refund {you} want the original payment method, and a certificate is fine for the "
        "compensation",
        "{you} accept a certificate, and the refund should go back the way it was paid",
    ),
    "$you claim$s gold status, but the profile counts": (
        "{you} claim gold status, but the profile counts",
        "{you} say that {you} are a gold member, though only the profile counts",
        "{you} believe {you} have gold status, but {your} profile decides",
    ),
    "travel insurance is wanted": (
        "travel insurance is wanted",
        "{you} want travel insurance",
        "{you} would like to buy the insurance too",
    ),
    "travel insurance is not wanted": (
        "travel insurance is not wanted",
        "{you} do not want travel insurance",
        "{you} do not need insurance",
    ),
    "$you need$s no checked bags": (
        "{you} need no checked bags",
        "{you} do not have any checked bags",
        "{you} do not need to check bags",
    ),
}
"""Phrasings of a detail by its plain text."""

BACKGROUND = Background(
    openings=(
        "{Your} plans have changed over the last days",
        "{You} booked this some time ago",
        "{You} had trouble with the website of the airline",
        "{You} {are} sitting at home with {your} calendar",
        "{You} {are} planning {your} travels for the rest of May",
        "{You} {are} travelling a lot this month",
        "{You} {are} a bit stressed because of an upcoming trip",
        "{You} looked at {your} reservations this morning",
        "{You} {are} organizing a family visit",
        "{You} {are} a frequent flyer and know{s} the app well",
        "{You} had a call with {your} boss about travelling",
        "{You} {have} to sort out {your} flights",
        "{You} {have} been on hold for a while",
        "{You} {are} upset about the last flight {you} took",
        "{Your} travel agent could not help {me}",
    ),
    asides=(
        "{You} once flew with this airline when a whole school class sang on board",
        "{You} {have} a dog that does not travel this time",
        "{You} prefer{s} aisle seats but know{s} that seats are not part of this",
        "{You} {are} writing from a noisy café",
        "{You} will move to another town next year",
        "{You} recently read that the airline bought new aircraft",
        "{You} think{s} about learning to fly",
        "{You} had to wait for a long time the last time {you} called",
        "{You} collect{s} boarding passes",
        "{You} {have} a cousin who works for another airline",
        "{You} {do} not like the food on board",
        "{You} {are} afraid of turbulence",
    ),
)

_TOLD = re.compile(r"^\$you want\$s to be told (.+)$")
_TRIP = re.compile(r"^the (one-way|round) trip (from .+ to .+) that starts on (.+)$")
_CHEAPEST = re.compile(r"the (\S+ \w+ of that day) with the lowest price")
_FLIGHT = re.compile(r"^\$you want\$s (.+)$")


def asked_amount(detail: str) -> str:
    """What the customer wants to be told, if the detail asks for it."""
    match = _TOLD.match(detail)
    return match[1] if match else ""


def name_trip(words: str, rng: Random) -> str:
    """A reservation in other words, with the same id or the same route and date."""
    if match := _TRIP.match(words):
        kind, route, day = match.groups()
        return rng.choice(
            (
                words,
                f"{{your}} {kind} trip {route} that starts on {day}",
                f"{{your}} {kind} trip {route} on {day}",
                f"{{your}} upcoming {kind} trip {route} on {day}",
                f"the {kind} trip {route} departing on {day}",
                f"{{your}} trip {route} on {day}",
                f"{{your}} upcoming flights {route} on {day}",
            )
        )
    number = words.removeprefix("reservation ")
    return rng.choice(
        (
            words,
            words,
            f"{{your}} reservation {number}",
            f"reservation id {number}",
            f"{{your}} booking {number}",
            f"{{your}} flights in reservation {number}",
            f"the trip under reservation {number}",
            f"the reservation with the id {number}",
            f"{{your}} upcoming trip (reservation {number})",
        )
    )


def name_flight(words: str, rng: Random) -> str:
    """A flight in other words that fit the same flight."""
    if rng.random() < 0.5:
        words = words.replace("direct flight", "nonstop flight")
    if rng.random() < 0.5:
        words = _CHEAPEST.sub(r"the cheapest \1", words)
    return words


def phrase_detail(detail: str, rng: Random) -> str:
    """A detail in one of its phrasings, over the placeholders of persons."""
    if detail in DETAILS:
        return rng.choice(DETAILS[detail])
    if flight := _FLIGHT.match(detail):
        frames = ("{you} want %s", "{you} prefer %s", "the flight should be %s", "{you} choose %s")
        return rng.choice(frames) % name_flight(with_placeholders(flight[1]), rng)
    return with_placeholders(detail)


def with_placeholders(text: str) -> str:
    """A plain airline text over the placeholders of persons, with verbs in the plural."""
    for plain, placeholder in _PLACEHOLDERS.items():
        text = text.replace(plain, placeholder)
    return text


_PLACEHOLDERS = {
    "$your": "{your}", "$you": "{you}", "$are": "are", "$have": "have", "$s": "",
}  # fmt: skip
