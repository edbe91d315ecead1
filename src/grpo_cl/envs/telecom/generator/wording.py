"""Texts of telecom tasks: instructions in the second person, tickets in the third.

Texts are templates over the values of a case. Every text states what the customer agrees to, needed
or not, so that it does not reveal the fault.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol

from pydantic import JsonValue

from grpo_cl.envs.generation.wording import TaskTexts
from grpo_cl.envs.telecom.generator.faults import DATA, MMS, SERVICE


class Phrase(NamedTuple):
    """One fact, phrased for the customer's instructions and for the ticket."""

    you: str
    they: str


class TextWriter(Protocol):
    """Writes the texts of a task."""

    def __call__(
        self,
        phrases: Sequence[Phrase],
        *,
        opening: Phrase,
        values: Mapping[str, JsonValue],
        rng: Random,
    ) -> TaskTexts:
        """The texts: the complaint ``opening``, then ``phrases`` in random order."""
        ...


COMPLAINTS: Mapping[str, Sequence[Phrase]] = {
    SERVICE: (
        Phrase(
            "Your phone cannot make or receive calls; it seems to have no service at all.",
            "The customer can neither make nor receive calls: the phone has no service.",
        ),
        Phrase(
            "Since this morning your phone finds no network, and you need to be reachable again.",
            "Since this morning the customer's phone finds no network.",
        ),
        Phrase(
            "You lost your signal a while ago and want your phone service back.",
            "The customer lost their signal and wants the phone service back.",
        ),
        Phrase(
            "Nobody can reach you on your phone, and you see no signal on it.",
            "Nobody can reach the customer: their phone shows no signal.",
        ),
    ),
    DATA: (
        Phrase(
            "The mobile internet on your phone does not work as it should: either nothing loads or "
            "it crawls. You are away from any Wi-Fi.",
            "Mobile data on the customer's phone is missing or very slow, and there is no Wi-Fi "
            "where they are.",
        ),
        Phrase(
            "Web pages and apps on your phone load badly or not at all over mobile data.",
            "Web pages and apps on the customer's phone load badly or not at all over mobile data.",
        ),
        Phrase(
            "You cannot work because the mobile data of your phone is down or far too slow.",
            "The customer cannot work: the phone's mobile data is down or far too slow.",
        ),
        Phrase(
            "Your phone's mobile internet has become useless, and you want it at full speed again.",
            "The customer's mobile internet has become unusable; they want it at full speed.",
        ),
    ),
    MMS: (
        Phrase(
            "You cannot send pictures from the messaging app of your phone.",
            "The customer cannot send pictures from their phone's messaging app.",
        ),
        Phrase(
            "Every picture message you try to send fails, and you want to get one out today.",
            "Every picture message (MMS) the customer tries to send fails.",
        ),
        Phrase(
            "Group messages and photos do not leave your phone any more; MMS seems to be broken.",
            "MMS is broken on the customer's phone: photos and group messages do not go out.",
        ),
        Phrase(
            "You want to text a video to your family, but the messaging app refuses to send it.",
            "The messaging app refuses to send the customer's video; MMS does not work.",
        ),
    ),
}

RESOLVED: Mapping[str, Sequence[Phrase]] = {
    SERVICE: (
        Phrase(
            "For you the matter is settled once the status bar shows a signal again.",
            "The matter is settled once the status bar shows a signal again.",
        ),
        Phrase(
            "You are satisfied when your phone is connected to the network and shows signal.",
            "The customer is satisfied when the phone is connected to the network.",
        ),
    ),
    DATA: (
        Phrase(
            "You are satisfied only when a speed test reports an excellent connection; good, fair "
            "or poor is not enough.",
            "Only a speed test that reports an excellent connection settles the matter; good, fair "
            "or poor does not.",
        ),
        Phrase(
            "For you the matter is settled once the speed test says excellent, and not before.",
            "The matter is settled once the speed test says excellent, and not before.",
        ),
    ),
    MMS: (
        Phrase(
            "For you the matter is settled once the messaging app can send MMS messages.",
            "The matter is settled once the messaging app can send MMS messages.",
        ),
        Phrase(
            "You are satisfied when a check shows that MMS messages can be sent.",
            "The customer is satisfied when a check shows that MMS messages can be sent.",
        ),
    ),
}

PAYS = (
    Phrase(
        "If an overdue bill turns up, you agree to pay it.",
        "The customer gives permission to pay any overdue bill.",
    ),
    Phrase(
        "You accept a payment request for whatever bill is overdue.",
        "Payment of overdue bills is permitted by the customer.",
    ),
    Phrase(
        "You will pay what is overdue on the account when you are asked to.",
        "The customer agrees that overdue bills be paid now.",
    ),
)
REFUSES_TO_PAY = (
    Phrase(
        "You refuse to pay any bill during this contact, whatever the reason.",
        "The customer gives no permission to pay any bill.",
    ),
    Phrase(
        "You do not settle any bill today and turn down every payment request.",
        "No bill may be paid: the customer turns down every payment request.",
    ),
)
REFUELS = (
    Phrase(
        "If your line has run out of data, you agree to add {asks_gb:g} GB and accept the price.",
        "If the line has run out of data, {asks_gb:g} GB may be added at the plan's price.",
    ),
    Phrase(
        "You are fine with buying {asks_gb:g} GB of extra data, but only if your allowance is "
        "used up.",
        "The customer agrees to buy {asks_gb:g} GB of extra data, but only if the allowance is "
        "used up.",
    ),
    Phrase(
        "Should the data of your plan be used up, you want exactly {asks_gb:g} GB added.",
        "Should the plan's data be used up, the customer wants exactly {asks_gb:g} GB added and "
        "accepts the charge.",
    ),
)
REFUELS_TOO_MUCH = (
    Phrase(
        "If your line has run out of data, you ask for {asks_gb:g} GB; told that less is allowed, "
        "you take the most that is.",
        "If the line has run out of data, the customer asks for {asks_gb:g} GB, and takes the "
        "largest amount the rules allow if that is less.",
    ),
    Phrase(
        "Should the data of your plan be used up, you want {asks_gb:g} GB added, or the permitted "
        "maximum where that is smaller.",
        "Should the plan's data be used up, the customer wants {asks_gb:g} GB added, or the "
        "permitted maximum where that is smaller.",
    ),
)
REFUSES_DATA = (
    Phrase(
        "You refuse to buy extra data, whatever it costs.",
        "The customer refuses to buy extra data.",
    ),
    Phrase(
        "You will not have data added to your line.",
        "No data may be added to the line; the customer does not want it.",
    ),
)
KEEPS_PLAN = (
    Phrase("You want to keep the plan you have.", "The customer keeps the present plan."),
    Phrase("A different plan is out of the question.", "A change of plan is not wanted."),
)
MANNERS = (
    "Do on your phone what the agent asks for, one thing at a time, and report what it shows.",
    "Whatever you say about your phone comes from a look at it with your tools; invent nothing.",
    "If the agent hands you over to a human, accept it.",
)
UNKNOWN = (
    "You do not know what causes the problem.",
    "You have no idea which setting or account matter is behind this.",
    "What is wrong, or whether it is more than one thing, you cannot tell.",
)

SPARE_ON_HOLD = Phrase(
    "Your other line, {spare_phone}, is on hold because you want it so; it stays on hold.",
    "Another line of the account, {spare_phone}, is on hold at the customer's wish and must stay "
    "on hold.",
)
SPARE_OUT_OF_DATA = Phrase(
    "Your other line, {spare_phone}, has used up its data too, but you want nothing added there.",
    "Another line of the account, {spare_phone}, has used up its data as well; nothing is to be "
    "added there.",
)
TRAVELLING = Phrase(
    "You have been travelling since last week.",
    "The customer has been travelling since last week.",
)
SMALL_TALK = (
    Phrase("Your phone is a {phone_model}.", "The phone is a {phone_model}."),
    Phrase("You dropped the phone last week.", "The phone was dropped last week."),
    Phrase(
        "You bought a new case for the phone on Sunday.",
        "The phone has had a new case since Sunday.",
    ),
    Phrase("A friend suspects the battery.", "A friend of the customer suspects the battery."),
    Phrase("Your neighbour's phone works well.", "A neighbour's phone works well."),
    Phrase("You have been a customer for years.", "The customer is a long-standing one."),
    Phrase("You were born on {birth_date}.", "Date of birth: {birth_date}."),
)

COUNTRIES = (
    "Brazil",
    "Canada",
    "Egypt",
    "France",
    "Greece",
    "Iceland",
    "Italy",
    "Japan",
    "Kenya",
    "Mexico",
    "Portugal",
    "Thailand",
    "Vietnam",
)

PERSONAS = (
    "You are in a hurry and answer in very few words.",
    "You like to chat, and wander off to your garden and your grandchildren before you answer.",
    "You are not at ease with phones, ask what words mean, and need each step explained slowly.",
    "You think you know phones well and like to guess at causes, but you do what you are asked.",
    "You are annoyed because this is your third call this month, yet you stay polite.",
    "You are calm, careful, and repeat each instruction before you follow it.",
)


IDENTITIES = (
    Phrase(
        "You are {name}, calling about the line with the phone number {phone_number}.",
        "The customer is {name}, calling about the line {phone_number}.",
    ),
    Phrase(
        "Your name is {name} and your phone number is {phone_number}.",
        "Customer: {name}, phone number {phone_number}.",
    ),
)
LOCATION = Phrase("You are currently {place}.", "They are currently {place}.")


def write_texts(
    phrases: Sequence[Phrase],
    *,
    opening: Phrase,
    values: Mapping[str, JsonValue],
    rng: Random,
) -> TaskTexts:
    """The texts of a task: the complaint ``opening``, then ``phrases`` in random order."""
    identity = rng.choice(IDENTITIES)
    facts = rng.sample(phrases, len(phrases))
    instructions = [*(phrase.you for phrase in facts), *MANNERS]
    ticket = [phrase.they for phrase in (opening, identity, LOCATION, *facts)]
    return TaskTexts(
        reason_for_call=opening.you,
        known_info=f"{identity.you} {LOCATION.you}".format(**values),
        unknown_info=rng.choice(UNKNOWN),
        task_instructions=" ".join(instructions).format(**values),
        ticket=" ".join(ticket).format(**values),
    )
