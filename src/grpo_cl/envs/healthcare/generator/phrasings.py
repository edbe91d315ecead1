"""Varied phrasings of healthcare requests, by the first plain template of each statement."""

from grpo_cl.envs.generation.varied_texts import Background, Phrasings

PHRASINGS: Phrasings = {
    "book {visit}{whom} with {provider} {slot}, {paid}": (
        "book {visit}{whom} with {provider} {slot}, {paid}",
        "book {visit}{whom} with {provider} {slot} | it is {paid}",
        "schedule {visit}{whom} with {provider} {slot}, {paid}",
        "have {visit}{whom} with {provider} {slot}, {paid}",
        "make an appointment{whom}: {visit} with {provider} {slot}, {paid}",
        "get {visit}{whom} with {provider} {slot} | {you} want to have it {paid}",
        "arrange {visit}{whom} with {provider}, {slot} and {paid}",
        "see {provider}{whom} for {visit} {slot}, {paid}",
        "set up {visit}{whom} {slot} with {provider}, {paid}",
    ),
    "cancel {visit} because {why}": (
        "cancel {visit} because {why}",
        "cancel {visit}, as {why}",
        "cancel {visit} since {why}",
        "cancel {visit} | the reason is that {why}",
        "call off {visit} because {why}",
        "have {visit} cancelled, because {why}",
        "give up {visit} because {why}",
        "let the clinic know that {visit} has to be cancelled because {why}",
    ),
    "move {visit} to {slot}": (
        "move {visit} to {slot}",
        "reschedule {visit} to {slot}",
        "change {visit} to {slot}",
        "have {visit} moved | the new time should be {slot}",
        "set a new time for {visit}, namely {slot}",
        "switch the time of {visit} to {slot}",
        "find another time for {visit} | {you} want {slot}",
        "shift {visit} to {slot}",
    ),
    "get a refill of {medicine}": (
        "get a refill of {medicine}",
        "have {medicine} refilled",
        "request a refill of {medicine}",
        "refill {medicine}, as {you} are running low",
        "ask for more of {medicine}",
        "order a refill of {medicine}",
        "have the prescription for {medicine} refilled",
    ),
    "change the {field} in {whose} record to {value}": (
        "change the {field} in {whose} record to {value}",
        "have {value} recorded as {whose} new {field}",
        "update {whose} {field} to {value}",
        "update {whose} record | the new {field} is {value}",
        "correct {whose} {field}: it is {value} now",
        "give the clinic {whose} new {field}, which is {value}",
    ),
    "cancel appointment {visit} of {who}, {name}, who is ill": (
        "cancel appointment {visit} of {who}, {name}, who is ill",
        "call off appointment {visit} for {who}, {name}, because of illness",
        "cancel appointment {visit} | it belongs to {who}, {name}, who is ill",
        "have appointment {visit} cancelled, which is that of {who}, {name}, who fell ill",
    ),
    ", with the late fee if there is one": (
        ", with the late fee if there is one",
        ", and {you} accept a late fee if there is one",
        ", whatever the fee is",
        ", and a late fee is okay",
    ),
    ", and {you} do not want to pay for the visit out of pocket": (
        ", and {you} do not want to pay for the visit out of pocket",
        ", but {you} do not want to pay for it out of pocket",
        ", and paying out of pocket is not an option",
    ),
    "; if that cannot be done, {you} want to ": (
        "; if that cannot be done, {you} want to ",
        "; if that is not possible, {you} would rather ",
        "; if the agent says that this is not possible, {you} want to ",
        "; otherwise {you} would like to ",
    ),
}

UNKNOWN = {
    "patient id": (
        "{You} {do} not remember {your} patient id",
        "{You} {do} not have {your} patient id at hand",
        "{You} {do} not know {your} patient id",
    ),
    "appointment": (
        "{You} {do} not remember the number of an appointment that {you} describe",
        "{You} {do} not know all numbers of the appointments",
        "{You} {do} not have every appointment id at hand",
    ),
}
"""What the caller may not know, by a word of the plain sentence."""

BACKGROUND = Background(
    openings=(
        "{You} {are} looking at the calendar for the next weeks",
        "{You} {have} been a patient here for some time",
        "{You} {are} calling during the lunch break",
        "{You} {are} a bit worried and want{s} to get this sorted out",
        "{You} could not reach the clinic yesterday",
        "{You} just got home from work",
        "{You} had a busy week and forgot to call earlier",
        "{You} {are} planning the next month",
        "{You} tried the website first, but it did not work",
        "{You} {are} going on a trip soon",
        "{You} got a reminder from the clinic",
        "{You} talked to {your} family about this",
    ),
    asides=(
        "The parking lot of the clinic is always full",
        "The waiting room has new chairs",
        "{You} {are} calling from a train",
        "The receptionist was very kind last time",
        "{You} take{s} the bus to the clinic",
        "{Your} sister works in a hospital",
        "{You} {do} not like needles",
        "{You} started to go for a walk every day",
        "{You} read an article about sleep",
        "{Your} phone is almost out of battery",
    ),
)
