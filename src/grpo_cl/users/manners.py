"""Sentences of a scenario that say how to behave rather than what to say."""

import re

_DIRECTIONS = (
    r"playing the role|never respond as|on the line with|meant to test|trying to make the agent",
    r"behavior guidelines|have access to a tool|if you are unsure|for example:|express mild",
    r"always ground|never make up|might need to perform|whatever you say about your phone",
    r"^do on your phone|^continue the conversation|^(?:first, )?use the \w+_\w+ tool",
    r"consider the issue resolved|matter is settled|^you are satisfied",
    r"as you are interacting|intended task|get the agent to be|make the agent laugh|coercion",
    r"asserting it|maximum of|make up reasons|upfront|in every (?:single )?message",
    r"each of your replies|as confusing|reactive to the agent|your approach|english is not",
    r"(?:dump|reveal) (?:much|all)|insert(?:s)? |one thing at a time|one wish after the other",
    r"everything you want at once|like to (?:say|talk|do|chat|guess)\b(?! with)"
    r"|answer (?:only )?what",
    r"clear yes|say yes (?:when|to)|confirm every|complain once|about the weather|in a hurry",
)
_TEMPERS = (
    r"detail-oriented|private|mysterious|into gaming|sad|polite|funny|chill|rude|anxious|young",
    r"brief|lonely|impatient|emotional|outgoing|optimistic|insecure|direct|curious|messy|shy",
    r"rigid|dependent|confident|cautious|pessimistic|busy[,.]|happy (?:but)|happy,|logical",
    r"organized|calm|upset|persistent|extremely|distraught|patient|creative|independent|relaxing",
    r"interesting|stressed|friendly|precise|suspicious|cheerful|tired|formal|nervous|annoyed",
    r"not at ease",
)
_DEGREES = r"(?:(?:now|very|extremely|a bit|also|in debt and|an?|quite) )*(?:\w+, )*"

_DIRECTION = re.compile("|".join(_DIRECTIONS), re.IGNORECASE)
_TEMPER = re.compile(rf"you(?:'re| are) {_DEGREES}(?:{'|'.join(_TEMPERS)})\b", re.IGNORECASE)
_BUT_SPEAKS = re.compile(r"\b(?:want to know|insist on)\b", re.IGNORECASE)


def is_manner(sentence: str) -> bool:
    """Whether ``sentence`` describes the user's character or gives them stage directions."""
    if _DIRECTION.search(sentence):
        return True
    return bool(_TEMPER.match(sentence)) and not _BUT_SPEAKS.search(sentence)
