"""Parser of the agent's instructions: the steps that the user carries out with their own tools."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.types import ToolSchema
from grpo_cl.users.scripted.device_instructions import find_settings, parse_clause
from grpo_cl.users.scripted.sentences import any_of, split_sentences
from grpo_cl.users.scripted.steps import CallTool, PayBill, SetSwitch, Step
from grpo_cl.users.scripted.tool_mentions import find_tool_mentions


class Instructions(NamedTuple):
    """The steps that an agent's message asks for, and its remaining sentences."""

    steps: tuple[Step, ...]
    other_text: str


_VERBS = (
    "check turn toggle switch enable disable reboot restart reset reseat re-seat remove run open "
    "go look set change connect disconnect grant give allow make ensure verify confirm tell pay "
    "accept use perform do send power see take put eject insert reinsert re-insert dismiss view "
    "show update select activate deactivate test complete call navigate list find try let"
)
_VERB = rf"(?:{'|'.join(_VERBS.split())})"
_OPENING_WORDS = (
    r"(?:first|then|next|now|also|finally|after that|okay|ok|great|alright|sure|perfect|and)"
)
_REQUEST = any_of(
    r"\?",
    r"\bplease\b",
    r"\blet's\b",
    r"\b(?:could|can|would|will) you\b",
    r"\byou(?:'ll| will| can| should| need| could| must)\b",
    r"\bneeds? (?:you )?to\b",
    r"\byou to\b",
    r"\b(?:try|recommend|suggest)\b",
    r"\blet me know\b",
    rf"^(?:\W|\b{_OPENING_WORDS}\b|\bstep \d+\b)*{_VERB}\b",
)
_AGENT_ACTION = any_of(
    r"^(?:\w+[,!.]? )?i(?:'ve|'ll|'m| have| will| can| could| see| am| just| also| checked)\b",
    r"^(?:\w+[,!.]? )?we(?:'ve|'re| have| see| are| can see|'ll(?! need)| will(?! need))\b",
)
_TO_USER = re.compile(
    r"\b(?:you to|you can|please|recommend|suggest|let's|could you|can you)\b", re.IGNORECASE
)
_OFFER = re.compile(
    r"\b(?:would you like|do you want|shall i|should i|are you willing|may i|can i"
    r"|would you be (?:willing|okay|ok))\b",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(r"\b(?:do not|don't|no need to|avoid|never|refrain)\b", re.IGNORECASE)
_SUBORDINATE = re.compile(
    r"^(?:\W|\b(?:and|then|so|also|but)\b)*(?:if|after|once|when|since|because|as|while"
    r"|before)\b[^,]*,\s*",
    re.IGNORECASE,
)
_PURPOSE = any_of(
    r",?\s+\b(?:so|because|since|which|as|while|when|for|before|until|that way|but)\b",
    r",?\s+\b(?:in order )?to (?:see|allow|restore|get|help|improve|fix|make|let)\b",
)
_SPLIT = re.compile(
    rf";|:\s|,?\s+(?:and then|and|then|after that|afterwards|next)\s+(?={_VERB}\b)"
    rf"|,\s+(?=(?:then )?{_VERB}\b)",
    re.IGNORECASE,
)
_GERUND = re.compile(
    r"\b(?:try(?:ing)?|tried|by|mind|suggest|recommend|consider"
    r"|start)\s+(?:you )?(\w+?)(?:([a-z])\2)?(ing)\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"[*`_]{1,2}(?=\W|$)|(?<!\w)[*`_]{1,2}(?=\w)")
_VERBS_BY_STEM = {
    "toggl": "toggle",
    "enabl": "enable",
    "disabl": "disable",
    "rese": "reset",
    "remov": "remove",
    "ru": "run",
    "se": "set",
    "chang": "change",
}
"""Stems that the removal of -ing leaves incomplete, and their verbs."""
_RESOLVED = re.compile(
    r"\b(?:is|does|did|has|have|are|see|check|try|test|let me know|can)\b.*"
    r"\b(?:work(?:s|ing|ed)?|resolved?|fixed|helped|issue|problem|again|restored|improved?"
    r"|better)\b",
    re.IGNORECASE,
)


def parse_instructions(text: str, tools: Sequence[ToolSchema]) -> Instructions:
    """The steps that an agent's message asks for, in order."""
    steps: list[Step] = []
    other_sentences: list[str] = []
    last_setting = ""
    for sentence in split_sentences(text):
        sentence_steps = _parse_sentence(sentence, tools, last_setting)
        steps.extend(sentence_steps)
        if not sentence_steps:
            other_sentences.append(sentence)
        last_setting = _last_setting(sentence, last_setting)
    return Instructions(tuple(_without_repeats(steps, tools)), "\n".join(other_sentences))


def asks_if_resolved(text: str) -> bool:
    """Whether the agent asks if the problem is resolved."""
    return any(
        _RESOLVED.search(piece)
        and _REQUEST.search(piece)
        and not _AGENT_ACTION.search(piece)
        and not _OFFER.search(piece)
        for piece in split_sentences(text)
    )


def _parse_sentence(sentence: str, tools: Sequence[ToolSchema], last_setting: str) -> list[Step]:
    body = _SUBORDINATE.sub("", sentence)
    mentions = find_tool_mentions(body, tools)
    if not _is_request(body, has_tool=bool(mentions)):
        return []
    if mentions:
        return [mention.step for mention in mentions]
    antecedent = _last_setting(sentence[: len(sentence) - len(body)], last_setting)
    steps: list[Step] = []
    for clause in _SPLIT.split(_GERUND.sub(_base_verb, _MARKUP.sub("", body))):
        head = _without_purpose(clause)
        for setting in () if _NEGATIVE.search(head) else find_settings(head):
            antecedent = antecedent if setting == "it" else setting
            steps.extend(parse_clause(head, antecedent))
    return steps


def _last_setting(text: str, default: str) -> str:
    named = [setting for setting in find_settings(text) if setting != "it"]
    return named[-1] if named else default


def _is_request(body: str, *, has_tool: bool) -> bool:
    if has_tool and _NEGATIVE.search(body):
        return False
    if _OFFER.search(body) or re.search(r"\blater\b", body):
        return False
    if _AGENT_ACTION.search(body) and not _TO_USER.search(body):
        return False
    return has_tool or bool(_REQUEST.search(body))


def _without_purpose(clause: str) -> str:
    head = _PURPOSE.split(clause)[0]
    return head if find_settings(head) else clause


def _base_verb(match: re.Match[str]) -> str:
    stem = match[1].lower()
    return _VERBS_BY_STEM.get(stem, stem)


def _without_repeats(steps: Sequence[Step], tools: Sequence[ToolSchema]) -> list[Step]:
    names = {tool["function"]["name"] for tool in tools}
    kept: list[Step] = []
    for step in steps:
        if (
            _tool_of(step) in names
            and step not in kept[-1:]
            and not (_is_check(step) and step in kept)
        ):
            kept.append(step)
    return kept


def _tool_of(step: Step) -> str:
    if isinstance(step, CallTool):
        return step.name
    if isinstance(step, SetSwitch):
        return step.switch.turn_on
    return "make_payment"


def _is_check(step: Step) -> bool:
    return isinstance(step, PayBill) or (
        isinstance(step, CallTool) and step.name.startswith("check_")
    )
