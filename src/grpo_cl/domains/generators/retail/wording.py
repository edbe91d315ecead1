"""Sentences of retail customers, told to them in the second person and of them in the third."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

SECOND_PERSON = {"You": "You", "you": "you", "your": "your"}
THIRD_PERSON = {"You": "They", "you": "they", "your": "their"}
_PRONOUNS_KEPT = {word: f"{{{word}}}" for word in SECOND_PERSON}

FIRST_OPENINGS = (
    "{You} want to",
    "{You} would like to",
    "{You} wish to",
    "{You} need to",
    "{You} have decided to",
)
NEXT_OPENINGS = (
    "{You} also want to",
    "In addition, {you} want to",
    "{You} would also like to",
    "Besides that, {you} need to",
    "Another thing {you} want is to",
)
LAST_RESORTS = (
    "if that is not possible, {you} want it left exactly as it is",
    "if it cannot be done, {you} want nothing else done instead",
    "if the rules do not allow it, {you} accept that and want no alternative",
)
QUESTIONS = (
    "and {you} want to be told {amount}",
    "and {you} want to know {amount}",
    "and {you} ask for {amount}",
)
CONFIRMATIONS = (
    "When the agent lists details that match your request, you say yes.",
    "You confirm every action that is exactly what you asked for.",
    "If the agent asks for confirmation and the details are right, you agree.",
    "You say yes to details that fit your request and correct those that do not.",
)
PERSONAS = (
    "You are polite and patient.",
    "You are in a hurry and keep your answers short.",
    "You are friendly and a little forgetful.",
    "You are precise and dislike small talk.",
    "You are suspicious of companies but stay civil.",
    "You are cheerful and easily side-tracked.",
    "You are tired and answer only what you are asked.",
    "You are formal and write in whole sentences.",
)
DISTRACTIONS = (
    "You mention that your cousin recommended this shop to you.",
    "You complain once that the parcel service always rings at the wrong door.",
    "You talk about the weather before you come to the point.",
    "You say that you are planning a party for next month, which has no bearing on your request.",
    "You mention that you saw an advertisement for the shop on a bus.",
    "You say that your dog is barking in the background.",
    "You mention that you once worked in a shop yourself.",
    "You tell the agent that your internet connection is slow today.",
)
TICKET_OPENINGS = (
    "{name} ({identity}) has written in and confirms every change described here.",
    "Request from {name}, {identity}; all details below are already confirmed.",
    "The customer is {name}, {identity}, and has agreed to each action below.",
    "{name} contacted the shop, gave {identity}, and confirmed what follows.",
)


class Wording(NamedTuple):
    """What is wanted, in two phrasings; pronouns are still open."""

    asked: str
    """For the customer's own instructions."""
    filed: str
    """For the ticket."""


def word(rng: Random, templates: Sequence[str], **facts: str) -> Wording:
    """One phrasing for the customer and one for the ticket, drawn apart, with all facts filled."""
    asked, filed = (
        rng.choice(templates).format(**facts, **_PRONOUNS_KEPT) for _ in Wording._fields
    )
    return Wording(asked, filed)


def speak(text: str, person: Mapping[str, str]) -> str:
    """``text`` with its pronouns settled."""
    return text.format(**person)


def listing(parts: Sequence[str]) -> str:
    """The parts as an English list."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
