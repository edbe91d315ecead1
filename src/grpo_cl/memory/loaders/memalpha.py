"""Mem-α: parquet files whose chunks and questions are JSON text."""

from pathlib import Path
from typing import Any

from grpo_cl.errors import TaskDataError
from grpo_cl.memory.instances import Chunk, Instance, Metric, Question
from grpo_cl.memory.loaders.files import Reading, build, fields, parse_json, read_rows, texts

LICENSE = "none seen; ask its authors before passing it on"
METRICS: dict[str, Metric] = {
    "squad": "contains",
    "hotpotqa": "contains",
    "perltqa": "contains",
    "lme_train": "judge",
    "ttl_train": "boxed",
    "pubmed-rct": "boxed",
    "booksum": "keywords",
}
"""By data source; answers of other sources must be contained."""
SEPARATORS = {"booksum": ",", "perltqa": ";"}
"""Where one text holds several answers."""


def load_memalpha(path: Path, reading: Reading) -> list[Instance]:
    """One instance per row."""
    rows = read_rows(path)[: reading.limit]
    return [_instance(row, f"row {number} of {path}") for number, row in enumerate(rows)]


def _instance(row: Any, where: str) -> Instance:
    names = ["instance_id", "chunks", "questions_and_answers", "data_source"]
    name, chunks, pairs, source = fields(row, names, where)
    contents = _listed(chunks, f"chunks of {where}")
    questions = [
        _question(pair, f"{name}/{number}", source, f"question {number} of {where}")
        for number, pair in enumerate(_listed(pairs, f"questions_and_answers of {where}"))
    ]
    return build(
        where,
        id=f"memalpha/{name}",
        chunks=tuple(
            Chunk(chunk_id=place, content=str(content)) for place, content in enumerate(contents)
        ),
        questions=tuple(questions),
        source=str(source),
        license=LICENSE,
        meta={"sub_source": row.get("sub_source")},
    )


def _listed(value: Any, where: str) -> list[Any]:
    items = parse_json(value, where) if isinstance(value, str) else value
    if not isinstance(items, list):
        raise TaskDataError(f"{where} hold {type(items).__name__}, not a list; is the row whole?")
    return items


def _question(pair: Any, question_id: str, source: str, where: str) -> Question:
    text, answer = fields(pair, ["question", "answer"], where)
    answers = texts(answer, where)
    separator = SEPARATORS.get(source)
    if separator:
        parts = [part.strip() for whole in answers for part in whole.split(separator)]
        answers = tuple(part for part in parts if part)
    return Question(
        question_id=question_id,
        question=text,
        answers=answers,
        qtype=source,
        metric=METRICS.get(source, "contains"),
    )
