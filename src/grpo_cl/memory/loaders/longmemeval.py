"""LongMemEval: one question over many sessions of a user with an assistant.

Questions over the same sessions become one instance. Sessions are read by date, whatever their
order in the file. An id that ends with ``_abs`` marks a question without an answer, whose
``answer`` is an explanation.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grpo_cl.errors import TaskDataError
from grpo_cl.memory.instances import Instance, Question
from grpo_cl.memory.loaders.chunks import Cut, Turn, add_dialogue, metric_for
from grpo_cl.memory.loaders.files import Reading, build, fields, read_rows, texts

LICENSE = "MIT"
ABSTENTION = "abstention"
_NUMBERS = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})\D*(\d{1,2}):(\d{2})")


def load_longmemeval(path: Path, reading: Reading) -> list[Instance]:
    """One instance per set of sessions."""
    groups: dict[tuple[str, ...], list[tuple[str, Any]]] = {}
    for number, row in enumerate(read_rows(path)):
        where = f"question {number} of {path}"
        session_ids, dates = fields(row, ["haystack_session_ids", "haystack_dates"], where)
        groups.setdefault((*map(str, session_ids), *map(str, dates)), []).append((where, row))
    return [_instance(group, reading) for group in list(groups.values())[: reading.limit]]


def _instance(group: Sequence[tuple[str, Any]], reading: Reading) -> Instance:
    where, first = group[0]
    cut = _sessions(first, where, reading)
    return build(
        where,
        id=f"longmemeval/{first['question_id']}",
        chunks=tuple(cut.chunks),
        questions=tuple(_question(row, place, cut) for place, row in group),
        source="longmemeval",
        license=LICENSE,
    )


def _sessions(row: Any, where: str, reading: Reading) -> Cut:
    names = ["haystack_session_ids", "haystack_dates", "haystack_sessions"]
    session_ids, dates, sessions = fields(row, names, where)
    if not len(session_ids) == len(dates) == len(sessions):
        raise TaskDataError(
            f"{where} has {len(session_ids)} session ids, {len(dates)} dates and {len(sessions)} "
            "sessions; there must be as many of each"
        )
    cut = Cut([], {})
    in_time = sorted(
        zip(dates, session_ids, sessions, strict=True), key=lambda item: _when(item[0], where)
    )
    for date, session_id, session in in_time:
        turns = list(_turns(session, session_id, f"session {session_id!r} of {where}"))
        add_dialogue(cut, turns, date=date, limit=reading.chunk_tokens)
    return cut


def _turns(session: Any, session_id: str, where: str) -> Iterable[Turn]:
    for turn in session:
        role, content = fields(turn, ["role", "content"], where)
        is_evidence = bool(turn.get("has_answer"))
        yield Turn(line=f"{role}: {content}", key=_key(session_id, has_answer=is_evidence))


def _key(session_id: str, *, has_answer: bool) -> str:
    return f"{session_id}\n{'answer' if has_answer else 'other'}"


def _when(date: Any, where: str) -> tuple[int, ...]:
    found = _NUMBERS.match(str(date))
    if not found:
        raise TaskDataError(
            f"the date {date!r} of {where} cannot be read; write it as 2023/05/30 (Tue) 23:17"
        )
    return tuple(int(number) for number in found.groups())


def _question(row: Any, where: str, cut: Cut) -> Question:
    question_id, kind, text, date, answer = fields(
        row, ["question_id", "question_type", "question", "question_date", "answer"], where
    )
    is_abstention = str(question_id).endswith("_abs")
    given = texts(answer, where)
    meta: dict[str, Any] = {"question_type": kind, "question_date": date}
    if is_abstention:
        meta["explanation"] = given[0]
    evidence, dangling = _evidence(row.get("answer_session_ids") or (), cut)
    if dangling:
        meta["dangling_evidence"] = dangling
    answers = () if is_abstention else given
    return Question(
        question_id=str(question_id),
        question=f"[Asked on {date}] {text}",
        answers=answers,
        qtype=ABSTENTION if is_abstention else str(kind),
        metric=metric_for(answers),
        evidence=evidence,
        meta=meta,
    )


def _evidence(session_ids: Iterable[str], cut: Cut) -> tuple[tuple[int, ...], list[str]]:
    places: set[int] = set()
    dangling: list[str] = []
    for session_id in session_ids:
        marked = cut.places.get(_key(session_id, has_answer=True))
        found = marked or cut.places.get(_key(session_id, has_answer=False))
        places.update(found or ())
        if not found:
            dangling.append(session_id)
    return tuple(sorted(places)), dangling
