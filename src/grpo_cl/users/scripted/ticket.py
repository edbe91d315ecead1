"""The task as a support ticket, for an agent in solo mode."""

import re

from grpo_cl.types import StructuredInstructions, Task
from grpo_cl.users.scripted.clauses import (
    AGENT_ACTIONS,
    parse_command,
    split_condition,
    strip_disclosure_notes,
)
from grpo_cl.users.scripted.grammatical_person import third_person
from grpo_cl.users.scripted.sentences import as_sentence, split_sentences

_SIMULATION_NOTE = re.compile(
    r"meant to test|playing the role|never respond as|currently on the line|now on the line|"
    r"make up a story|trying to make the agent",
    re.IGNORECASE,
)
_STORY = re.compile(r"^(?:for that,? )?you make up a story about having\b", re.IGNORECASE)
_NOT = re.compile(r"^(?:do not|don't)\s+", re.IGNORECASE)
_AUXILIARY = {
    (False, False): "will",
    (False, True): "will not",
    (True, False): "want to",
    (True, True): "do not want to",
}
_ACTION_REWRITES = (
    (re.compile(r"^no action\b"), "take no action"),
    (re.compile(r" - (?:do not|don't)\b"), "; you will not"),
    (re.compile(r", (?:do not|don't)\b"), ", you will not"),
    (re.compile(r"\band (?:do not|don't) (?=provide|accept|ask)"), "and not "),
    (re.compile(r", and (?=return\b)"), ", and want to "),
    (re.compile(r", (?=(?:be|sound) \w+)"), "; you will "),
)
_LEADING_AND = re.compile(r"^(?:and|but)\b,?\s*")
_SPACE_BEFORE = re.compile(r"\s+([.,;!?])")


def ticket(task: Task) -> str:
    """The task's own ticket, or one composed from its scenario in the third person."""
    if task.ticket:
        return task.ticket
    scenario = task.user_scenario.instructions
    if isinstance(scenario, str):
        return _paragraph("", scenario)
    return "\n\n".join(part for part in _sections(scenario) if part)


def _sections(scenario: StructuredInstructions) -> list[str]:
    return [
        _paragraph("", scenario.known_info or ""),
        _paragraph("Request: ", scenario.reason_for_call),
        _paragraph("Not known to the customer: ", scenario.unknown_info or ""),
        _paragraph("How the customer decides: ", scenario.task_instructions),
    ]


def _paragraph(heading: str, text: str) -> str:
    sentences: list[str] = []
    for sentence in split_sentences(text):
        if reported := _report(sentence, name_customer=not sentences):
            sentences.append(reported)
    return heading + " ".join(sentences) if sentences else ""


def _report(sentence: str, *, name_customer: bool) -> str:
    stripped = strip_disclosure_notes(_STORY.sub("You say that you had", sentence))
    if stripped.is_secret or _SIMULATION_NOTE.search(stripped.text):
        return ""
    conditional = split_condition(stripped.text)
    if conditional is None:
        return as_sentence(_as_report(stripped.text, name_customer=name_customer))
    condition = third_person(conditional.condition, name_customer=False)
    return as_sentence(f"{condition}, {_as_report(conditional.consequent, name_customer=False)}")


def _as_report(clause: str, *, name_customer: bool) -> str:
    """The clause in the third person; an imperative becomes what the customer will do or wants."""
    command = parse_command(clause)
    if command is None:
        return third_person(clause, name_customer=name_customer)
    action = f"{command.verb} {command.rest}"
    is_negative = bool(_NOT.match(action))
    action = _NOT.sub("", action)
    is_wanted = action.split(" ", 1)[0] in AGENT_ACTIONS and "your mind" not in action
    for pattern, replacement in _ACTION_REWRITES:
        action = pattern.sub(replacement, action)
    adverbs = f"{_LEADING_AND.sub('', command.adverbs.lower())} ".lstrip()
    auxiliary = _AUXILIARY[is_wanted, is_negative]
    verb_phrase = f"{adverbs}{auxiliary}" if is_wanted else f"{auxiliary} {adverbs}".rstrip()
    sentence = third_person(f"You {verb_phrase} {action}", name_customer=name_customer)
    if not name_customer:
        sentence = sentence[0].lower() + sentence[1:]
    return _SPACE_BEFORE.sub(r"\1", sentence)
