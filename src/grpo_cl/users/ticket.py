"""The task as a support ticket, for an agent that works without a user."""

import re

from grpo_cl.types import StructuredInstructions, Task
from grpo_cl.users.clauses import ACTIONS, read_command, split_condition, strip_asides
from grpo_cl.users.person import third_person
from grpo_cl.users.sentences import capitalise, split_sentences

_NOTE_TO_ACTOR = re.compile(
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
_DEEDS = (
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
    told: list[str] = []
    for sentence in split_sentences(text):
        if line := _tell(sentence, lead=not told):
            told.append(line)
    return heading + " ".join(told) if told else ""


def _tell(sentence: str, *, lead: bool) -> str:
    aside = strip_asides(_STORY.sub("You say that you had", sentence))
    if aside.is_secret or _NOTE_TO_ACTOR.search(aside.text):
        return ""
    conditional = split_condition(aside.text)
    if conditional is None:
        return capitalise(_will(aside.text, lead=lead))
    condition = third_person(conditional.condition, lead=False)
    return capitalise(f"{condition}, {_will(conditional.consequent, lead=False)}")


def _will(clause: str, *, lead: bool) -> str:
    """A command becomes what the customer will do or wants done; the rest only changes person."""
    command = read_command(clause)
    if command is None:
        return third_person(clause, lead=lead)
    deed = f"{command.verb} {command.rest}"
    is_negative = bool(_NOT.match(deed))
    deed = _NOT.sub("", deed)
    is_wanted = deed.split(" ", 1)[0] in ACTIONS and "your mind" not in deed
    for pattern, replacement in _DEEDS:
        deed = pattern.sub(replacement, deed)
    adverbs = f"{_LEADING_AND.sub('', command.adverbs.lower())} ".lstrip()
    auxiliary = _AUXILIARY[is_wanted, is_negative]
    you = f"You {adverbs}{auxiliary} {deed}" if is_wanted else f"You {auxiliary} {adverbs}{deed}"
    told = third_person(you, lead=lead)
    return _SPACE_BEFORE.sub(r"\1", told if lead else told[0].lower() + told[1:])
