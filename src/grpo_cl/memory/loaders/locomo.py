"""LoCoMo: long conversations of two people over many sessions.

Both layouts are read: the list of ``locomo10.json``, and one flat file per conversation. Evidence
that names no turn is dropped and kept under ``dangling_evidence``; dates of sessions that do not
exist are passed over; what a picture shows is read from its caption.
"""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_cl.errors import TaskDataError
from grpo_cl.memory.instances import Instance, Question
from grpo_cl.memory.loaders.chunks import Cut, Turn, add_dialogue, metric_for
from grpo_cl.memory.loaders.files import Reading, build, fields, read_json, texts

logger = logging.getLogger(__name__)

LICENSE = "CC BY-NC 4.0 as far as known; check before commercial use"
ADVERSARIAL = "adversarial"
QTYPES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: ADVERSARIAL}
_SESSION = re.compile(r"session_(\d+)")
_TURN_ID = re.compile(r"D\d+:\d+")


def load_locomo(path: Path, reading: Reading) -> list[Instance]:
    """One instance per conversation."""
    value = read_json(path)
    samples = value if isinstance(value, list) else [value]
    return [
        _instance(sample, f"conversation {number} of {path}", path.stem, reading)
        for number, sample in enumerate(samples[: reading.limit])
    ]


def _instance(sample: Any, where: str, stem: str, reading: Reading) -> Instance:
    (qa,) = fields(sample, ["qa"], where)
    cut = _sessions(sample.get("conversation", sample), where, reading)
    name = str(sample.get("sample_id", stem))
    questions = [
        _question(entry, f"{name}/{number}", f"question {number} of {where}", cut)
        for number, entry in enumerate(qa)
    ]
    lost = sum("dangling_evidence" in question.meta for question in questions)
    if lost:
        logger.warning("%s: %d questions name turns that do not exist", where, lost)
    return build(
        where,
        id=f"locomo/{name}",
        chunks=tuple(cut.chunks),
        questions=tuple(questions),
        source="locomo",
        license=LICENSE,
    )


def _sessions(conversation: Mapping[str, Any], where: str, reading: Reading) -> Cut:
    numbers = sorted(int(m[1]) for name in conversation if (m := _SESSION.fullmatch(name)))
    if not numbers:
        raise TaskDataError(f"{where} has no session_1; is it a LoCoMo conversation?")
    cut = Cut([], {})
    for number in numbers:
        turns = [
            _turn(turn, f"session {number} of {where}")
            for turn in conversation[f"session_{number}"]
        ]
        date = conversation.get(f"session_{number}_date_time")
        add_dialogue(cut, turns, date=date, limit=reading.chunk_tokens)
    return cut


def _turn(turn: Any, where: str) -> Turn:
    speaker, key = fields(turn, ["speaker", "dia_id"], where)
    said = turn.get("text") or turn.get("clean_text") or ""
    caption = turn.get("blip_caption")
    shown = f" [shows a picture: {caption}]" if caption else ""
    return Turn(line=f"{speaker}: {said}{shown}", key=key)


def _question(entry: Any, question_id: str, where: str, cut: Cut) -> Question:
    text, category = fields(entry, ["question", "category"], where)
    if category not in QTYPES:
        raise TaskDataError(f"{where} has the category {category!r}; known: 1 to 5")
    meta: dict[str, Any] = {}
    answers: tuple[str, ...] = ()
    if QTYPES[category] == ADVERSARIAL:
        # The question rests on something that was not said; its "answer" is the trap.
        meta["adversarial_answer"] = entry.get("adversarial_answer", entry.get("answer"))
    else:
        (answer,) = fields(entry, ["answer"], where)
        answers = texts(answer, where)
    named = _TURN_ID.findall(" ".join(str(item) for item in entry.get("evidence") or ()))
    dangling = [key for key in named if key not in cut.places]
    if dangling:
        meta["dangling_evidence"] = dangling
    evidence = {place for key in named for place in cut.places.get(key, ())}
    return Question(
        question_id=question_id,
        question=text,
        answers=answers,
        qtype=QTYPES[category],
        metric=metric_for(answers),
        evidence=tuple(sorted(evidence)),
        meta=meta,
    )
