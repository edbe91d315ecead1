"""Dialogue acts of an agent's message: transfer, closing, greeting, refusal, consent question."""

from grpo_cl.users.scripted.sentences import any_of, split_sentences

_TRANSFER = any_of(
    r"\byou (?:are|have|will) (?:\w+ )?(?:being|been|be) (?:\w+ )?(?:transferred|connected)\b",
    r"\b(?:am|i'm|now|we're) (?:\w+ )?transferring (?:you|this)\b",
    r"\b(?:i have|i've) (?:\w+ )?transferred (?:you|this)\b",
    r"\bi(?:'ll| will)(?: now| go ahead and)? transfer you\b",
    r"\b(?:your|the) (?:call|chat|case|request) (?:is|has been|will be) (?:\w+ )?transferred\b",
    r"^transferring you\b",
)
_OFFER = any_of(r"\?", r"\bif you\b", r"\bwould you like\b", r"\bcannot\b", r"\bunable\b")
_CLOSING = any_of(
    r"\b(?:any|some)thing else\b",
    r"\bany other (?:\w+ )?(?:questions?|requests?|concerns?|issues?|ways?|changes?)\b",
    r"\b(?:further|additional) (?:assistance|help|questions?)\b",
    r"\b(?:assist|help) you further\b",
    r"\bmore i can (?:do|help)\b",
    r"\belse (?:i can|can i)\b",
    r"\bhave a (?:\w+ )?(?:great|nice|good|wonderful|lovely|pleasant) \w+\b",
    r"\bgood ?bye\b",
    r"\btake care\b(?! of)",
    r"\byou(?:'re| are) (?:very |most )?welcome\b",
    r"\bglad (?:i|we|that i) (?:could|was able)\b",
    r"\b(?:all|everything) (?:(?:is|are|has been|have been) )?(?:\w+ )?(?:set|done)\b",
    r"\b(?:all|everything) (?:is|are|has been|have been) (?:\w+ )?(?:completed?|processed"
    r"|resolved)\b",
    r"\beverything (?:is|has been) taken care of\b",
    r"\bthank you for (?:contacting|calling|reaching|choosing|being)\b",
    r"\b(?:issue|problem) (?:is|has been) (?:now )?(?:resolved|fixed|solved)\b",
)
_GREETING = any_of(
    r"\bhow (?:can|may) (?:i|we) (?:help|assist)\b",
    r"\bwhat can i (?:help|do)\b",
    r"\bwhat brings you\b",
    r"\bwhat (?:is|seems to be) the (?:issue|problem)\b",
)
_OUTCOMES = (
    "canceled cancelled refunded returned exchanged modified updated changed booked processed "
    "added removed issued upgraded complete completed confirmed created submitted resolved marked "
    "deleted placed applied sent resumed enabled disabled"
)
_DONE = any_of(
    r"\b(?:has|have|was|were|been|i've|successfully|is now|are now)\b(?: \w+)? "
    rf"(?:been )?(?:successfully )?(?:{'|'.join(_OUTCOMES.split())})\b"
)
_WAIT = any_of(
    r"\b(?:one|a) moment\b",
    r"\bhold on\b",
    r"\bbear with\b",
    r"\blet me\b(?! know)",
    r"\bi(?:'ll| will) (?:now |first |go ahead and )?(?:check|look|process|proceed)\b",
    r"\bplease wait\b",
    r"\bjust a (?:second|minute)\b",
    r"\bnext,? (?:i|we)\b",
)
_YES_OR_NO = any_of(r"\byes ?/ ?no\b", r"\(yes\b", r"\byes or no\b")
_PERSONAL = r"(?:id|name|email|zip|address|phone|date|number|identity)"
_CONSENT = any_of(
    r"\b(?:reply|say|type|answer|respond) (?:with )?['\"]?yes\b",
    r"\bdo you (?:\w+ )?(?:confirm|agree|approve|consent|accept|authorize)\b",
    rf"\b(?:please|can you|could you"
    rf"|kindly) (?:\w+ )?confirm\b(?! your (?:\w+ ){{0,2}}{_PERSONAL})",
    r"\b(?:shall|should) (?:i|we)\b",
    r"\b(?:may|can) i (?:go ahead|proceed|continue|process|cancel|make|book|place)\b",
    r"\bwould you (?:still )?like (?:me )?to\b",
    r"\bdo you (?:still )?(?:want|wish) (?:me )?to\b",
    r"\b(?:would you like|do you want) (?:an?|the|this|that|it)\b",
    r"\bis (?:that|this|it|everything) (?:all )?(?:correct|right|okay|ok|acceptable|fine"
    r"|alright)\b",
    r"\b(?:proceed|go ahead|sound good|continue|correct|right)\?",
    r"\bare you (?:ok|okay|fine|happy|willing|comfortable|sure|ready)\b",
    r"\bready to proceed\b",
    r"\bdoes (?:that|this) (?:work|sound|look)\b",
    r"\bwould (?:that|this|it) be (?:ok|okay|fine|acceptable|alright)\b",
    r"\bconfirm (?:that )?you(?:'d| would)? (?:like|want|wish)\b",
    r"\byour (?:explicit )?(?:confirmation|consent|approval)\b",
)
_OPEN_QUESTION = any_of(
    r"^(?:\W|and |so |also,? )*(?:which|what|how|where|when|who|why)\b",
    r", (?:which|what|how|where|when)\b",
)
_EITHER = any_of(r"\bor\b(?! (?:no|not)\b)")
_DENIAL = any_of(
    r"\bunfortunately\b",
    r"\b(?:unable|not able) to\b",
    r"\bcan(?:not|'t)\b",
    r"\b(?:not|isn't|aren't) (?:possible|available|allowed|permitted|eligible)\b",
    r"\bsorry, but\b",
    r"\b(?:is|are) no\b",
    r"\bdo(?:es)?(?: not|n't) (?:allow|qualify|permit|exist|work)\b",
    r"\bdon't (?:see|have)\b",
    r"\b(?:could|did)(?: not|n't) (?:find|work)\b",
    r"\bnot found\b",
    r"\binvalid\b",
    r"\bno (?:\w+ )?(?:matching|available)\b",
    r"\bout of stock\b",
    r"\bcan only\b",
    r"\bno way\b",
)


def announces_transfer(text: str) -> bool:
    """Whether the agent announces a transfer; an offer to transfer does not count."""
    return any(
        _TRANSFER.search(piece) and not _OFFER.search(piece) for piece in split_sentences(text)
    )


def is_closing(text: str) -> bool:
    """Whether the agent ends the conversation or offers further help."""
    return bool(_CLOSING.search(text)) and not _WAIT.search(text)


def is_greeting(text: str) -> bool:
    """Whether the agent asks for the reason of the call."""
    return bool(_GREETING.search(text))


def reports_success(text: str) -> bool:
    """Whether the agent reports a completed action and asks nothing."""
    return bool(_DONE.search(text)) and "?" not in text and not _WAIT.search(text)


def is_refusal(text: str) -> bool:
    """Whether the agent says that something is not possible."""
    return bool(_DENIAL.search(text))


def consent_questions(text: str) -> list[str]:
    """The sentences that ask for a yes or a no."""
    return [piece for piece in split_sentences(text) if _is_consent_question(piece)]


def _is_consent_question(sentence: str) -> bool:
    if _YES_OR_NO.search(sentence):
        return True
    if _CLOSING.search(sentence) or not _CONSENT.search(sentence):
        return False
    return not _OPEN_QUESTION.search(sentence) and not _EITHER.search(sentence)


def is_either_or(sentence: str) -> bool:
    """Whether the agent asks the user to choose between alternatives."""
    return bool(_EITHER.search(sentence)) and sentence.rstrip().endswith("?")
