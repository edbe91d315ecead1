"""LoCoMo: long conversations of two persons over many sessions.

Both layouts are supported: the list of ``locomo10.json``, and one flat file per conversation.
Evidence without a matching turn is moved to ``dangling_evidence``; dates of missing sessions are
ignored; images are represented by their captions.
"""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_cl.envs.memory.instances import Instance, Question
from grpo_cl.envs.memory.loaders.chunks import ChunkedDialogue, Turn, add_dialogue, metric_for
from grpo_cl.envs.memory.loaders.files import LoaderOptions, build, fields, read_json, texts
from grpo_cl.errors import TaskDataError

logger = logging.getLogger(__name__)

LICENSE = "CC BY-NC 4.0 as far as known; check before commercial use"
ADVERSARIAL = "adversarial"
QTYPES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: ADVERSARIAL}
_SESSION = re.compile(r"session_(\d+)")
_TURN_ID = re.compile(r"D\d+:\d+")


def load_locomo(path: Path, options: LoaderOptions) -> list[Instance]:
    """One instance per conversation."""
    value = read_json(path)
    samples = value if isinstance(value, list) else [value]
    return [
        _instance(sample, f"conversation {number} of {path}", path.stem, options)
        for number, sample in enumerate(samples[: options.limit])
    ]


def _instance(sample: Any, where: str, stem: str, options: LoaderOptions) -> Instance:
    (qa,) = fields(sample, ["qa"], where)
    dialogue = _sessions(sample.get("conversation", sample), where, options)
    name = str(sample.get("sample_id", stem))
    questions = [
        _question(entry, f"{name}/{number}", f"question {number} of {where}", dialogue)
        for number, entry in enumerate(qa)
    ]
    num_dangling = sum("dangling_evidence" in question.meta for question in questions)
    if num_dangling:
        logger.warning("%s: %d questions refer to missing turns", where, num_dangling)
    return build(
        where,
        id=f"locomo/{name}",
        chunks=tuple(dialogue.chunks),
        questions=tuple(questions),
        source="locomo",
        license=LICENSE,
    )


def _sessions(
    conversation: Mapping[str, Any], where: str, options: LoaderOptions
) -> ChunkedDialogue:
    numbers = sorted(int(m[1]) for name in conversation if (m := _SESSION.fullmatch(name)))
    if not numbers:
        raise TaskDataError(f"{where} has no session_1; is it a LoCoMo conversation?")
    dialogue = ChunkedDialogue([], {})
    for number in numbers:
        turns = [
            _turn(turn, f"session {number} of {where}")
            for turn in conversation[f"session_{number}"]
        ]
        date = conversation.get(f"session_{number}_date_time")
        add_dialogue(dialogue, turns, date=date, limit=options.chunk_tokens)
    return dialogue


def _turn(turn: Any, where: str) -> Turn:
    speaker, key = fields(turn, ["speaker", "dia_id"], where)
    text = turn.get("text") or turn.get("clean_text") or ""
    caption = turn.get("blip_caption")
    image = f" [shows a picture: {caption}]" if caption else ""
    return Turn(line=f"{speaker}: {text}{image}", key=key)


def _question(entry: Any, question_id: str, where: str, dialogue: ChunkedDialogue) -> Question:
    text, category = fields(entry, ["question", "category"], where)
    if category not in QTYPES:
        raise TaskDataError(f"{where} has the category {category!r}; known: 1 to 5")
    meta: dict[str, Any] = {}
    answers: tuple[str, ...] = ()
    if QTYPES[category] == ADVERSARIAL:
        # The premise of the question is false; its "answer" is the wrong one it suggests.
        meta["adversarial_answer"] = entry.get("adversarial_answer", entry.get("answer"))
    else:
        (answer,) = fields(entry, ["answer"], where)
        answers = texts(answer, where)
    turn_ids = _TURN_ID.findall(" ".join(str(item) for item in entry.get("evidence") or ()))
    dangling = [key for key in turn_ids if key not in dialogue.chunk_ids]
    if dangling:
        meta["dangling_evidence"] = dangling
    evidence = {i for key in turn_ids for i in dialogue.chunk_ids.get(key, ())}
    return Question(
        question_id=question_id,
        question=text,
        answers=answers,
        qtype=QTYPES[category],
        metric=metric_for(answers),
        evidence=tuple(sorted(evidence)),
        meta=meta,
    )
