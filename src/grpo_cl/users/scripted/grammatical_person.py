"""Rewrites second-person scenario text ("you") in the first or third person."""

import re
from collections.abc import Callable, Mapping

_QUOTED = re.compile(r"""((?<!\w)'[^'"]*'(?!\w)|(?<!\w)"[^"]*"(?!\w))""")
_YOU = re.compile(
    r"\b(you)(?:['’](re|ve|d|ll))?\b(?!['’])|\b(yourself|yours|your)\b", re.IGNORECASE
)
_OBJECT_BEFORE = re.compile(
    r"\b(?:tells?|told|gives?|gave|asks?|asked|refund|helps?|allows?|lets?|upgrade|transfer"
    r"|shows?|sends?|"
    r"sent|offers?|costs?|saves?|corrects?|compensate|charged?|provides?|remind|assist|inform"
    r"|call|contact|"
    r"believe|thank|caused?|makes?|made|to|for|with|from|of|about|at|on|by|around|against"
    r"|between) +$",
    re.IGNORECASE,
)
_VERB_AFTER = re.compile(
    r" +(?:want|need|prefer|are|were|had|will|would|can|could|don't|didn't|should|must|wish)\b"
)
_TYPOS = (
    (re.compile(r"\byou (?=(?:name|mobile data|reservation|skateboard)\b)"), "your "),
    (re.compile(r"\bYou (?=(?:name|mobile data|reservation|skateboard)\b)"), "Your "),
    (re.compile(r"\byour forgot\b"), "you forgot"),
    (re.compile(r"\bwant to want to\b"), "want to"),
    (re.compile(r"\bwant be sure\b"), "want to be sure"),
    (re.compile(r"\b([Ii]f|IF) [Aa]gent\b"), r"\1 the agent"),
    (
        re.compile(r"\b(so|otherwise|order,) (?=(?:insist|ask the agent|tell the agent)\b)"),
        r"\1 you ",
    ),
    (re.compile(r"\bcontinues to refuses\b"), "continues to refuse"),
    (re.compile(r"\bbe in arriving\b"), "be arriving"),
    (re.compile(r"\bchange upgrade\b"), "upgrade"),
    (re.compile(r"\bflight form\b"), "flight from"),
    (re.compile(r"\bit not possible\b"), "it is not possible"),
    (re.compile(r"\band and\b"), "and"),
    (re.compile(r"\bwhen is (your [\w ]+) is\b"), r"when \1 is"),
)
_AGENT = re.compile(r"\b[Tt]he (?:(?:customer )?(?:service|support) )?agent('s)?\b")
_ADVERBS = r"(?:(?:also|just|still|now|only|never|really|currently|recently|\w+ly) )*"
_BE_FIRST = re.compile(rf"\bI ({_ADVERBS})(are|were|aren't|weren't)\b")
_AND_ARE_FIRST = re.compile(r"^(I\b.*?\b(?:and|but)) are\b(?! (?:they|there))")
_YOU_VERB = re.compile(rf"\b(you) ({_ADVERBS})(\w+(?:'t)?)\b", re.IGNORECASE)

_FIRST_PERSON_FIXES = (
    (re.compile(r"\b[Aa]re I\b"), "am I"),
    (re.compile(r"\band are willing\b"), "and am willing"),
    (re.compile(r"\bask them to\b"), "ask you to"),
    (re.compile(r"\band that (?=I\b)"), "and "),
    (re.compile(r"(?:,| and) be (?:adamant about it|insistent)\b"), ""),
)

_FIRST = {
    "subject": "I",
    "object": "me",
    "your": "my",
    "yours": "mine",
    "yourself": "myself",
    "re": "I'm",
    "ve": "I've",
    "d": "I'd",
    "ll": "I'll",
}
_THIRD = {
    "subject": "they",
    "object": "them",
    "your": "their",
    "yours": "theirs",
    "yourself": "themselves",
    "re": "they're",
    "ve": "they've",
    "d": "they'd",
    "ll": "they'll",
}
_BE_FORMS = {"are": "am", "were": "was", "aren't": "am not", "weren't": "wasn't"}
_SINGULAR = {
    "are": "is",
    "were": "was",
    "have": "has",
    "do": "does",
    "don't": "doesn't",
    "aren't": "isn't",
    "weren't": "wasn't",
    "haven't": "hasn't",
    "try": "tries",
    "go": "goes",
    "wish": "wishes",
}
_PLURAL = {singular: plural for plural, singular in _SINGULAR.items()}
_REGULAR_VERBS = (
    "want need like prefer wonder live think know accept insist remember believe guess use "
    "intend contact reside love feel care ask say mention become request expect hope plan "
    "speak enjoy require choose realize come give get make move agree refuse tell provide "
    "propose offer continue show allow insert correct deny"
)
_REGULAR = frozenset(_REGULAR_VERBS.split())
_COORDINATED = re.compile(
    r"\b(and|but|or) ((?:also |then |now )?)(want|wish|are|prefer|wonder|insist|believe|realize"
    r"|do(?= not)|don't)\b"
)
_NEW_SUBJECT = re.compile(r"(?:,|\b(?:because|so|but|and|that|since|if|as|when|while|or)) they ")
_OPENING = re.compile(rf"^They ({_ADVERBS})(\w+(?:'t)?)\b")
_OPENING_CONTRACTIONS = {
    "They're": "The customer is",
    "They've": "The customer has",
    "They'd": "The customer would",
}


def fix_typos(text: str) -> str:
    """``text`` without the typos of τ²'s task files."""
    for pattern, replacement in _TYPOS:
        text = pattern.sub(replacement, text)
    return text


def first_person(text: str) -> str:
    """``text`` as the user says it to the agent: "you" is "I", and "the agent" is "you"."""
    rewritten = _outside_quotes(fix_typos(text), lambda piece: _replace_you(piece, _FIRST))
    rewritten = _BE_FIRST.sub(lambda m: f"I {m[1]}{_BE_FORMS[m[2]]}", rewritten)
    rewritten = _AND_ARE_FIRST.sub(r"\1 am", rewritten)
    for pattern, replacement in _FIRST_PERSON_FIXES:
        rewritten = pattern.sub(replacement, rewritten)
    return _outside_quotes(rewritten, _address_agent)


def third_person(text: str, *, name_customer: bool) -> str:
    """``text`` about the customer; with ``name_customer`` an opening "You" is "The customer"."""
    rewritten = _outside_quotes(fix_typos(text), lambda piece: _replace_you(piece, _THIRD))
    return _name_customer(rewritten) if name_customer else rewritten


def _outside_quotes(text: str, change: Callable[[str], str]) -> str:
    pieces = _QUOTED.split(text)  # every second piece is a quotation
    return "".join(piece if index % 2 else change(piece) for index, piece in enumerate(pieces))


def _replace_you(text: str, forms: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        word, short, possessive = match[1], match[2], match[3]
        if possessive:
            form = forms[possessive.lower()]
        elif short:
            form = forms[short]
        else:
            form = forms["object" if _is_object(match) else "subject"]
        is_capitalized = (word or possessive)[0].isupper()
        if is_capitalized and _is_sentence_start(text, match.start()):
            return form[0].upper() + form[1:]
        return form

    return _YOU.sub(replace, text)


def _is_object(you: re.Match[str]) -> bool:
    before, after = you.string[: you.start()], you.string[you.end() :]
    return bool(_OBJECT_BEFORE.search(before)) and not _VERB_AFTER.match(after)


def _is_sentence_start(text: str, index: int) -> bool:
    before = text[:index].rstrip()
    return not before or before[-1] in ".!?(:"


def _address_agent(text: str) -> str:
    named = _AGENT.sub(lambda match: "your" if match[1] else "you", text)
    if named == text:
        return text
    return _YOU_VERB.sub(lambda m: f"{m[1]} {m[2]}{_plural(m[3])}", named)


def _plural(verb: str) -> str:
    if verb in _PLURAL:
        return _PLURAL[verb]
    if verb.endswith("ies") and len(verb) > 4:
        return f"{verb[:-3]}y"
    return verb[:-1] if verb.endswith("s") and verb[:-1] in _REGULAR else verb


def _singular(verb: str) -> str:
    if verb in _SINGULAR:
        return _SINGULAR[verb]
    return f"{verb}s" if verb in _REGULAR else verb


def _name_customer(text: str) -> str:
    first, _, rest = text.partition(" ")
    if first == "Their":
        return f"The customer's {rest}"
    if first in _OPENING_CONTRACTIONS:
        return _agree(f"{_OPENING_CONTRACTIONS[first]} {rest}")
    if not _OPENING.match(text):
        return text
    return _agree(_OPENING.sub(lambda m: f"The customer {m[1]}{_singular(m[2])}", text))


def _agree(text: str) -> str:
    other = _NEW_SUBJECT.search(text)
    end = other.start() if other else len(text)
    agreed = _COORDINATED.sub(lambda m: f"{m[1]} {m[2]}{_singular(m[3])}", text[:end])
    return agreed + text[end:]
