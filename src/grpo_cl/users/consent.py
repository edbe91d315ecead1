"""Yes or no."""

import re
from collections.abc import Sequence

from grpo_cl.users.scenario import Kind, Line
from grpo_cl.users.sentences import content_words

YES = "Yes, please go ahead."
NO = "No, thank you."

_REFUSAL = re.compile(
    r"\b(?:do|does|will|would) not (?:\w+ )?(?:want|need|accept|wish)|\b(?:don't|won't) (?:want"
    r"|need|accept)|"
    r"\bunder no circumstances\b|\bnot willing\b|\bnever want\b",
    re.IGNORECASE,
)
_FIRM = re.compile(
    r"\brefuse to\b|\bout of the question\b|\bkeep the plan\b|\bwill not have\b"
    r"|\bturn down every\b",
    re.IGNORECASE,
)
"""Refusals so clear that one shared word is enough."""
_PROVISO = re.compile(r"\b(?:if|unless|until|other|without|only)\b", re.IGNORECASE)
_EXTRA = re.compile(r"\badd\b.*\binsurance\b|\binsurance\?|\btravel insurance\b", re.IGNORECASE)
_TRANSFER = re.compile(r"\btransfer", re.IGNORECASE)
_CLAUSES = re.compile(r",? (?:but|and) (?=I\b)", re.IGNORECASE)


def decide(ask: str, lines: Sequence[Line]) -> str:
    """The answer to a yes-or-no question: the user's own words of refusal, or a plain yes or no."""
    clauses = [
        clause
        for line in lines
        if line.kind in {Kind.FACT, Kind.WISH, Kind.PREFERENCE}
        for clause in _CLAUSES.split(line.text)
    ]
    refusals = [clause for clause in clauses if _refuses(clause)]
    others = [clause for clause in clauses if clause not in refusals]
    refusal = _closest(ask, refusals)
    if refusal and _shared(ask, refusal) > max(
        (_shared(ask, clause) for clause in others), default=0
    ):
        return f"No. {refusal[0].upper()}{refusal[1:].rstrip('.')}."
    return NO if _EXTRA.search(ask) and not any("insurance" in clause for clause in others) else YES


def _closest(ask: str, clauses: Sequence[str]) -> str:
    best = max(clauses, key=lambda clause: _shared(ask, clause), default="")
    is_transfer = bool(_TRANSFER.search(ask) and _TRANSFER.search(best))
    is_extra = "insurance" in best and "insurance" in ask.lower()
    enough = 1 if _FIRM.search(best) or is_transfer or is_extra else 2
    return best if _shared(ask, best) >= enough else ""


def _refuses(clause: str) -> bool:
    if _FIRM.search(clause):
        return True
    return bool(_REFUSAL.search(clause)) and not _PROVISO.search(clause)


def _shared(ask: str, clause: str) -> int:
    return len(content_words(ask) & content_words(clause))
