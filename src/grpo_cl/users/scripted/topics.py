"""Topics of an agent's questions, and the script lines that answer them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.users.scripted.scenario import LineKind, ScriptLine
from grpo_cl.users.scripted.sentences import any_of, content_words, split_sentences


class Topic(NamedTuple):
    """A topic with the patterns of its questions and of the lines that answer them."""

    name: str
    question: re.Pattern[str]
    fact: re.Pattern[str]


class Answers(NamedTuple):
    """Answers to an agent's questions."""

    known: tuple[str, ...]
    unknown: tuple[str, ...]
    """Names of the topics that the scenario has no line for."""


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
"""Topics that identify the user."""

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
OPEN_CHOICE = any_of(
    r"\b(?:which|what) (?:\w+ ){0,4}(?:options?|items?|variants?|products?|one|flights?|prefer)\b",
    r"\b(?:which|what) (?:\w+ ){0,4}(?:would you like|do you want|are you looking|should i)\b",
    r"\bdo you prefer\b",
    r"\bany (?:\w+ )?requirements?\b",
    r"\bhow would you like\b",
    r"\bpreferences?\b",
)
"""Questions that leave the choice to the user."""
_ANSWERING = (LineKind.FACT, LineKind.REQUEST, LineKind.PREFERENCE)
_ALTERNATIVES = re.compile(r"\bor\b|\beither\b|\bidentity\b", re.IGNORECASE)
_NOT_REMEMBERED = re.compile(r"\b(?:don't|do not|can't) (?:remember|know|have)\b")


def find_questions(text: str) -> list[str]:
    """The sentences of ``text`` that ask for information."""
    return [sentence for sentence in split_sentences(text) if _ASK.search(sentence)]


def answer_questions(
    questions: Sequence[str], lines: Sequence[ScriptLine], *, answered: str = ""
) -> Answers:
    """The lines that answer the questions, in order, without the topics of ``answered``."""
    known: dict[str, None] = {}
    unknown: dict[str, None] = {}
    answering = [line for line in lines if line.kind in _ANSWERING]
    for question in questions:
        result = _answer_question(question, answering, answered)
        known.update(dict.fromkeys(result.known))
        if not result.known or not _ALTERNATIVES.search(question):
            unknown.update(dict.fromkeys(result.unknown))
    return Answers(tuple(known), tuple(unknown))


def _answer_question(question: str, lines: Sequence[ScriptLine], answered: str) -> Answers:
    topics = [topic for topic in _topics_of(question) if not topic.question.search(answered)]
    if not topics:
        is_closed = answered or OPEN_CHOICE.search(question)
        texts = [line.text for line in lines]
        return Answers(() if is_closed else tuple(_overlapping(question, texts)), ())
    fitting = {topic.name: _fitting(topic, lines) for topic in topics}
    known = [text for texts in fitting.values() for text in _closest(question, texts)]
    return Answers(tuple(known), tuple(name for name, texts in fitting.items() if not texts))


def _fitting(topic: Topic, lines: Sequence[ScriptLine]) -> list[str]:
    """The lines on a topic; an identity topic uses only facts if there are any."""
    matching = [line for line in lines if topic.fact.search(line.text)]
    facts = (
        [line.text for line in matching if line.kind is LineKind.FACT] if topic in IDENTITY else []
    )
    return facts or [line.text for line in matching]


def _topics_of(question: str) -> list[Topic]:
    matching = [
        (match.start(), topic) for topic in TOPICS if (match := topic.question.search(question))
    ]
    return [topic for _, topic in sorted(matching, key=lambda pair: pair[0])]


def _closest(question: str, texts: Sequence[str]) -> list[str]:
    """All texts if there are at most two, else those that share a word with the question."""
    if len(texts) <= 2:
        return list(texts)
    words = content_words(question)
    shared = [text for text in texts if content_words(text) & words]
    return shared or list(texts)


def _overlapping(question: str, texts: Sequence[str]) -> list[str]:
    words = content_words(question)
    scores = [(len(words & content_words(text)), text) for text in texts]
    best = max((score for score, _ in scores), default=0)
    return [
        text
        for score, text in scores
        if best and score == best and not _NOT_REMEMBERED.search(text)
    ]


def asks_identity(text: str) -> bool:
    """Whether the agent asks for the user's identity."""
    return any(
        topic.question.search(question) for question in find_questions(text) for topic in IDENTITY
    )
