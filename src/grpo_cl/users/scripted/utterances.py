"""Rewrites scenario instructions as the user's utterances."""

import re

from grpo_cl.users.scripted.clauses import AGENT_ACTIONS, Command, parse_command
from grpo_cl.users.scripted.grammatical_person import first_person
from grpo_cl.users.scripted.sentences import as_sentence

_TO_AGENT = r"(?:the (?:service )?agent|them|it)"
_QUOTE = re.compile(r"""^exactly with ['"](.+?)['"]\.?$""")
_STORY = re.compile(r"^(?:for that,? )?you make up a story about having\b", re.IGNORECASE)
_REWRITES = (
    (_STORY, "You had"),
    (
        re.compile(r"^(?:your goal is|you are looking|you're looking) to\b", re.IGNORECASE),
        "You want to",
    ),
    (re.compile(r"^you will see that\s+", re.IGNORECASE), ""),
    (re.compile(r"^your character is\b", re.IGNORECASE), "You are"),
    (re.compile(r"^start by saying(?: that)?\s+", re.IGNORECASE), ""),
    (re.compile(r"^make sure (?:to |you )(?=(?:ask|mention)\b)", re.IGNORECASE), ""),
    (
        re.compile(
            r"^you (?=(?:then |first |suddenly |also )*(?:say|ask|tell|mention)\b)", re.IGNORECASE
        ),
        "",
    ),
    (re.compile(r"^you add another request and (?=also want)", re.IGNORECASE), "you "),
    (re.compile(r"^you regret (?:it )?and (?=want)", re.IGNORECASE), "you "),
    (re.compile(r"^you (?:(?:are|become) )angry and (?=ask|return|refund)", re.IGNORECASE), ""),
    (re.compile(r"^(?:you )?(?:are angry and )?swear for a few times, then ", re.IGNORECASE), ""),
    (re.compile(r"^you are angry and swear for a few times, then ", re.IGNORECASE), ""),
    (re.compile(r"^you suddenly decide that\s+", re.IGNORECASE), ""),
    (re.compile(r"^(?:you )?(?:suddenly )?change your mind and (?=\w)", re.IGNORECASE), ""),
    (re.compile(r"^do not say yes immediately, because ", re.IGNORECASE), ""),
    (re.compile(r"^confirm and (?=ask)", re.IGNORECASE), ""),
    (re.compile(r"^be \w+ and (?=ask)", re.IGNORECASE), ""),
    (re.compile(r"^be insistent that\b", re.IGNORECASE), "insist that"),
    (re.compile(r"^you (?=(?:move on|accept it|carry on)\b)", re.IGNORECASE), ""),
    (
        re.compile(r"^you don't remember (your [\w ]+?) for the first .*: it is\b", re.IGNORECASE),
        r"\1 is",
    ),
    (re.compile(r"\babruptly mention that .* by saying that ", re.IGNORECASE), ""),
)
_SAY = re.compile(
    rf"^(?:{_TO_AGENT} (?!(?:is|was|will|could|can|has|does)\b))?(?:that |at the beginning that )?",
    re.IGNORECASE,
)
_SAY_TO = re.compile(rf"^to {_TO_AGENT} ", re.IGNORECASE)
_FIRST_TRY = re.compile(r"\s*\b(?:first \([^()]*\), then .*|initially|first)(?=[,.]|$)")
_LATER_PART = re.compile(r",? but when .*$")
_KNOW = re.compile(
    r"^(?:explicitly )?(?:if|whether|how|what|which|when|where|why|who)\b", re.IGNORECASE
)
_ACCEPT_REFUSAL = re.compile(
    r"^(?:accept|move on|end|forget|thank|stop|no action|carry on|agree)\b"
)


ACCEPT = "Okay, I accept that."
"""The utterance for an instruction to accept a refusal."""


def join_clauses(first: str, second: str) -> str:
    """Condition and consequent as one sentence."""
    head = second if second.startswith(("I ", "I'")) else second[:1].lower() + second[1:]
    return f"{first}, {head}"


def to_utterance(instruction: str, *, is_reaction: bool = False) -> str:
    """The utterance that carries out ``instruction``; empty if it asks for no utterance."""
    clause = instruction.strip()
    for pattern, replacement in _REWRITES:
        clause = pattern.sub(replacement, clause)
    command = parse_command(clause)
    if command is None:
        return as_sentence(first_person(clause))
    return as_sentence(_utterance_for(command, is_reaction=is_reaction))


def _utterance_for(command: Command, *, is_reaction: bool) -> str:
    verb, rest = command.verb, command.rest
    if verb in {"say", "mention", "state", "tell", "respond", "reply", "explain", "admit"}:
        return _say(rest if verb == "tell" else _SAY_TO.sub("", rest))
    if verb == "ask":
        return _ask(rest)
    if verb in {"insist", "request", "demand"}:
        return first_person(f"you {verb} {rest}")
    if verb == "try" and rest.startswith("to "):
        return first_person(f"you would like {rest}")
    if verb == "provide":
        return "" if "details" in rest else f"It is {_FIRST_TRY.sub('', rest)}"
    return _request_action(command, is_reaction=is_reaction)


def _request_action(command: Command, *, is_reaction: bool) -> str:
    verb, rest = command.verb, command.rest
    if verb == "make" and rest.startswith("sure") and "mention" not in rest:
        return first_person(f"please make {rest}")
    adverbs = re.sub(r"^(?:and|but)\b\s*", "", f"{command.adverbs.lower()} ".lstrip())
    if verb in AGENT_ACTIONS:
        return first_person(f"please {adverbs}{verb} {rest}".replace("please please", "please"))
    if not is_reaction:
        return ""
    if _ACCEPT_REFUSAL.match(f"{verb} {rest}"):
        return ACCEPT
    if verb in {"do", "don't"} and not re.search(
        r"\b(?:mention|reveal|say|tell|volunteer)\b", rest
    ):
        return first_person(f"please {adverbs}{verb} {rest}")
    return ""


def _say(rest: str) -> str:
    if quote := _QUOTE.match(rest):
        return quote[1]
    if match := re.match(rf"^{_TO_AGENT} (not to|to) (.+)$", rest, re.DOTALL):
        return first_person(f"please {'do not ' if match[1] == 'not to' else ''}{match[2]}")
    if re.search(r"\b(?:at once|at the same time|together)\b|^the two\b", rest):
        return ""
    words = _LATER_PART.sub("", _SAY.sub("", rest))
    words = re.sub(r"\band provide (?=\d)", "and it is ", words)
    return first_person(_FIRST_TRY.sub("", words))


def _ask(rest: str) -> str:
    wish = re.sub(rf"^{_TO_AGENT}\s+", "", rest)
    wish = re.sub(r"^explicitly ", "", wish)
    if match := re.match(r"^to (be .+)$", wish, re.DOTALL):
        return first_person(f"you want to {match[1]}")
    if match := re.match(r"^to (.+)$", wish, re.DOTALL):
        return first_person(f"please {match[1]}")
    if _KNOW.match(wish):
        return first_person(f"you would like to know {wish}")
    if match := re.match(r"^for (what|how|which)(.+)$", wish, re.DOTALL):
        return first_person(f"you would like to know {match[1]}{match[2]}")
    if match := re.match(r"^(?:for|about) (.+)$", wish, re.DOTALL):
        return first_person(f"you would like to ask {wish}")
    return first_person(f"you want {wish}") if " to be " in wish else ""
