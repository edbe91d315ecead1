"""What agents ask about, and which of the user's lines answer it."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.users.scenario import Kind, Line
from grpo_cl.users.sentences import any_of, content_words, split_sentences


class Topic(NamedTuple):
    """Something an agent may ask for."""

    name: str
    question: re.Pattern[str]
    fact: re.Pattern[str]


class Answers(NamedTuple):
    """What the user can say to an agent's questions."""

    known: tuple[str, ...]
    unknown: tuple[str, ...]
    """Names of what was asked for and is nowhere in the scenario."""


def _topic(name: str, question: str, fact: str) -> Topic:
    return Topic(name, re.compile(question, re.IGNORECASE), re.compile(fact))


_IDENTIFIER = r"(?:ids?|identifiers?|numbers?|codes?|#)"
IDENTITY = (
    _topic(
        "my user id",
        rf"\b(?:user|account|customer) ?(?:{_IDENTIFIER}|name)\b|\busername\b",
        r"\b[Uu]ser id\b|\b[a-z]+_[a-z]+_\d{4}\b",
    ),
    _topic(
        "my name",
        r"(?<!user )(?<!file )\bname\b(?! of)",
        r"\bI(?: am|'m)(?: an? [\w ]+ called| user)? [A-Z][a-z]+\b|\b[Mm]y name is\b",
    ),
    _topic("my email address", r"\be-?mail\b", r"@|\be-?mail\b"),
    _topic("my zip code", r"\bzip ?(?:code)?\b|\bpostal\b", r"\bzip ?code\b|\b\d{5}\b"),
    _topic(
        "who I am",
        r"\b(?:verify|confirm|authenticate) (?:your |you|who )(?:identity|account"
        r"|are)\b|\byour identity\b",
        r"\b[Uu]ser id\b|\b[a-z]+_[a-z]+_\d{4}\b|\b[Mm]y name is\b|\bI(?: am|'m) [A-Z][a-z]+\b",
    ),
    _topic(
        "my date of birth",
        r"\bdate of birth\b|\bbirth ?(?:day|date)\b|\bdob\b",
        r"\b[Bb]irth|\bDOB\b",
    ),
    _topic(
        "my phone number",
        r"\b(?:phone|mobile|contact|line) number\b",
        r"\b\d{3}-\d{3}-\d{4}\b|\bphone number\b",
    ),
)
"""What tells the agent whom it talks to."""

TOPICS = (
    *IDENTITY,
    _topic(
        "the order number",
        rf"\border {_IDENTIFIER}|\bwhich (?:\w+ )?orders?\b|\border\(s\)",
        r"#?\bW\d{7}\b|\border (?:number|id|ID)s?\b",
    ),
    _topic(
        "my reservation id",
        rf"\b(?:reservation|confirmation|booking) ?{_IDENTIFIER}"
        rf"|\bwhich (?:\w+ )?(?:reservation|booking|flight|trip)s?\b",
        r"\b(?:[Rr]eservation|[Cc]onfirmation)\b.*\b(?=[A-Z0-9]*\d)[A-Z0-9]{6}\b"
        r"|\b[Rr]eservation (?:[A-Z]{6}|IDs?|ids?|number)\b"
        r"|\blast reservation\b",
    ),
    _topic(
        "the payment method",
        r"\bpay(?:ing|ment)?\b|\brefund(?:ed)? (?:to|method)\b"
        r"|\bcards?\b|\bcertificates?\b",
        r"\b(?:[Cc]ard|cards|PayPal|[Gg]ift ?card|Giftcard|certificates?|payment|amex|visa|GC"
        r"|credit)\b",
    ),
    _topic(
        "the address",
        r"\baddress\b(?<!email address)|\bwhere (?:do you live|should)\b",
        r"\b[Aa]ddress(?:es)?\b(?<!email address)|\blive (?:in|on|at)\b|\bliving in\b"
        r"|\bresid(?:e|ing) in\b|\bSuite\b",
    ),
    _topic(
        "the reason",
        r"\breasons?\b|\bwhy\b",
        r"\b(?:because|by mistake|no longer need(?:ed)?|reason|broken|damaged|sick|since"
        r"|emergency|unhappy)\b",
    ),
    _topic(
        "the passengers",
        r"\bpassengers?\b|\bhow many (?:people|travell?ers)\b"
        r"|\btravell?ers?\b",
        r"\b[Pp]assengers?\b|\bfriend\b|\bmyself\b",
    ),
    _topic(
        "the baggage",
        r"\b(?:checked )?bag(?:s|gage)?\b|\bluggage\b|\bsuitcases?\b",
        r"\b(?:bags?|baggages?|suitcases?)\b",
    ),
    _topic("insurance", r"\binsurance\b", r"\binsurance\b"),
    _topic(
        "the cabin",
        r"\bcabin\b|\b(?:travel|fare|service|seat) class\b|\bwhich class\b"
        r"|\beconomy or\b",
        r"\b(?:[Ee]conomy|business|cabin)\b",
    ),
    _topic(
        "the date",
        r"\b(?:what|which|travel|departure|return|new) (?:dates?|days?)\b"
        r"|\bwhen (?:would|do|are) you\b",
        r"\b(?:January|February|March|April|May|June|July|August|September|October|November"
        r"|December) \d"
        r"|\b(?:next|same) day\b|\bday after\b",
    ),
    _topic(
        "where I am",
        r"\babroad\b|\btravel+ing\b|\bcurrent location\b|\bwhere are you\b"
        r"|\bcountry\b|\blocated\b",
        r"\babroad\b|\bat home\b",
    ),
    _topic(
        "more data",
        r"\brefuel|\btop[ -]?up\b|\b(?:add|more|additional|extra) (?:\w+ )?data\b"
        r"|\bhow (?:much data|many gb)\b|\bplan\b",
        r"\brefuel\b|\bGB\b|\bextra data\b|\bdata added\b|\bplan\b",
    ),
)
_ASK = any_of(
    r"\?",
    r"\b(?:please|kindly) (?:provide|tell|share|confirm|give|specify|state|verify|enter|send"
    r"|reply)\b",
    r"\b(?:could|can|may|would) (?:you|i) (?:\w+ ){0,2}(?:provide|tell|share|confirm|give)\b",
    r"\b(?:could|can|may|would) (?:you|i) (?:\w+ ){0,2}(?:specify|have|get|verify|let)\b",
    r"\bi(?:'ll|'d| will| would)? (?:\w+ )?need\b",
    r"\blet me know\b",
    r"\bprovide (?:me with )?your\b",
)
CHOICE = any_of(
    r"\b(?:which|what) (?:\w+ ){0,4}(?:options?|items?|variants?|products?|one|flights?|prefer)\b",
    r"\b(?:which|what) (?:\w+ ){0,4}(?:would you like|do you want|are you looking|should i)\b",
    r"\bdo you prefer\b",
    r"\bany (?:\w+ )?requirements?\b",
    r"\bhow would you like\b",
    r"\bpreferences?\b",
)
"""Questions that leave it to the user what they get."""
_ANSWERING = (Kind.FACT, Kind.WISH, Kind.PREFERENCE)
_ALTERNATIVES = re.compile(r"\bor\b|\beither\b|\bidentity\b", re.IGNORECASE)
_RECALL = re.compile(r"\b(?:don't|do not|can't) (?:remember|know|have)\b")


def questions(text: str) -> list[str]:
    """The sentences in which the agent wants to know something."""
    return [sentence for sentence in split_sentences(text) if _ASK.search(sentence)]


def answer(asks: Sequence[str], lines: Sequence[Line], *, settled: str = "") -> Answers:
    """The lines that fit the questions, in the order asked; topics of ``settled`` are left out."""
    known: dict[str, None] = {}
    unknown: dict[str, None] = {}
    told = [line for line in lines if line.kind in _ANSWERING]
    for ask in asks:
        one = _answer_one(ask, told, settled)
        known.update(dict.fromkeys(one.known))
        if not one.known or not _ALTERNATIVES.search(ask):
            unknown.update(dict.fromkeys(one.unknown))
    return Answers(tuple(known), tuple(unknown))


def _answer_one(ask: str, lines: Sequence[Line], settled: str) -> Answers:
    topics = [topic for topic in _topics_of(ask) if not topic.question.search(settled)]
    if not topics:
        is_closed = settled or CHOICE.search(ask)
        texts = [line.text for line in lines]
        return Answers(() if is_closed else tuple(_overlapping(ask, texts)), ())
    fitting = {topic.name: _fitting(topic, lines) for topic in topics}
    known = [text for texts in fitting.values() for text in _closest(ask, texts)]
    return Answers(tuple(known), tuple(name for name, texts in fitting.items() if not texts))


def _fitting(topic: Topic, lines: Sequence[Line]) -> list[str]:
    """The lines on a topic; who the user is follows from plain facts where there are any."""
    found = [line for line in lines if topic.fact.search(line.text)]
    facts = [line.text for line in found if line.kind is Kind.FACT] if topic in IDENTITY else []
    return facts or [line.text for line in found]


def _topics_of(ask: str) -> list[Topic]:
    found = [(match.start(), topic) for topic in TOPICS if (match := topic.question.search(ask))]
    return [topic for _, topic in sorted(found, key=lambda pair: pair[0])]


def _closest(ask: str, texts: Sequence[str]) -> list[str]:
    """All short facts; of the long ones only those that share a word with the question."""
    if len(texts) <= 2:
        return list(texts)
    words = content_words(ask)
    shared = [text for text in texts if content_words(text) & words]
    return shared or list(texts)


def _overlapping(ask: str, texts: Sequence[str]) -> list[str]:
    words = content_words(ask)
    scores = [(len(words & content_words(text)), text) for text in texts]
    best = max((score for score, _ in scores), default=0)
    return [text for score, text in scores if best and score == best and not _RECALL.search(text)]


def asks_identity(text: str) -> bool:
    """Whether the agent is still finding out whom it talks to."""
    return any(topic.question.search(ask) for ask in questions(text) for topic in IDENTITY)
