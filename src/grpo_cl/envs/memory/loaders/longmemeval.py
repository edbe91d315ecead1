"""LongMemEval: one question over many sessions of a user with an assistant.

Questions over the same sessions become one instance. Sessions are sorted by date. An id with the
suffix ``_abs`` marks an unanswerable question, whose ``answer`` is an explanation.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grpo_cl.envs.memory.instances import Instance, Question
from grpo_cl.envs.memory.loaders.chunks import ChunkedDialogue, Turn, add_dialogue, metric_for
from grpo_cl.envs.memory.loaders.files import LoaderOptions, build, fields, read_rows, texts
from grpo_cl.errors import TaskDataError

LICENSE = "MIT"
ABSTENTION = "abstention"
_DATE = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})\D*(\d{1,2}):(\d{2})")


def load_longmemeval(path: Path, options: LoaderOptions) -> list[Instance]:
    """One instance per set of sessions."""
    groups: dict[tuple[str, ...], list[tuple[str, Any]]] = {}
    for number, row in enumerate(read_rows(path)):
        where = f"question {number} of {path}"
        session_ids, dates = fields(row, ["haystack_session_ids", "haystack_dates"], where)
        groups.setdefault((*map(str, session_ids), *map(str, dates)), []).append((where, row))
    return [_instance(group, options) for group in list(groups.values())[: options.limit]]


def _instance(group: Sequence[tuple[str, Any]], options: LoaderOptions) -> Instance:
    where, first = group[0]
    dialogue = _sessions(first, where, options)
    return build(
        where,
        id=f"longmemeval/{first['question_id']}",
        chunks=tuple(dialogue.chunks),
        questions=tuple(_question(row, where, dialogue) for where, row in group),
        source="longmemeval",
        license=LICENSE,
    )


def _sessions(row: Any, where: str, options: LoaderOptions) -> ChunkedDialogue:
    names = ["haystack_session_ids", "haystack_dates", "haystack_sessions"]
    session_ids, dates, sessions = fields(row, names, where)
    if not len(session_ids) == len(dates) == len(sessions):
        raise TaskDataError(
            f"{where} has {len(session_ids)} session ids, {len(dates)} dates and {len(sessions)} "
            "sessions; there must be as many of each"
        )
    dialogue = ChunkedDialogue([], {})
    by_date = sorted(
        zip(dates, session_ids, sessions, strict=True), key=lambda item: _parse_date(item[0], where)
    )
    for date, session_id, session in by_date:
        turns = list(_turns(session, session_id, f"session {session_id!r} of {where}"))
        add_dialogue(dialogue, turns, date=date, limit=options.chunk_tokens)
    return dialogue


def _turns(session: Any, session_id: str, where: str) -> Iterable[Turn]:
    for turn in session:
        role, content = fields(turn, ["role", "content"], where)
        is_evidence = bool(turn.get("has_answer"))
        yield Turn(line=f"{role}: {content}", key=_key(session_id, has_answer=is_evidence))


def _key(session_id: str, *, has_answer: bool) -> str:
    return f"{session_id}\n{'answer' if has_answer else 'other'}"


def _parse_date(date: Any, where: str) -> tuple[int, ...]:
    match = _DATE.match(str(date))
    if not match:
        raise TaskDataError(
            f"the date {date!r} of {where} cannot be read; write it as 2023/05/30 (Tue) 23:17"
        )
    return tuple(int(number) for number in match.groups())


def _question(row: Any, where: str, dialogue: ChunkedDialogue) -> Question:
    question_id, kind, text, date, answer = fields(
        row, ["question_id", "question_type", "question", "question_date", "answer"], where
    )
    is_abstention = str(question_id).endswith("_abs")
    listed = texts(answer, where)
    meta: dict[str, Any] = {"question_type": kind, "question_date": date}
    if is_abstention:
        meta["explanation"] = listed[0]
    evidence, dangling = _evidence(row.get("answer_session_ids") or (), dialogue)
    if dangling:
        meta["dangling_evidence"] = dangling
    answers = () if is_abstention else listed
    return Question(
        question_id=str(question_id),
        question=f"[Asked on {date}] {text}",
        answers=answers,
        qtype=ABSTENTION if is_abstention else str(kind),
        metric=metric_for(answers),
        evidence=evidence,
        meta=meta,
    )


def _evidence(
    session_ids: Iterable[str], dialogue: ChunkedDialogue
) -> tuple[tuple[int, ...], list[str]]:
    chunk_ids: set[int] = set()
    dangling: list[str] = []
    for session_id in session_ids:
        with_answer = dialogue.chunk_ids.get(_key(session_id, has_answer=True))
        session_chunks = with_answer or dialogue.chunk_ids.get(_key(session_id, has_answer=False))
        chunk_ids.update(session_chunks or ())
        if not session_chunks:
            dangling.append(session_id)
    return tuple(sorted(chunk_ids)), dangling
