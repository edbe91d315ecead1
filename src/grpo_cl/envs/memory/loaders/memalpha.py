"""Mem-α: parquet files with chunks and questions as JSON strings."""

from pathlib import Path
from typing import Any

from grpo_cl.envs.memory.instances import Chunk, Instance, Metric, Question
from grpo_cl.envs.memory.loaders.files import (
    LoaderOptions,
    build,
    fields,
    parse_json,
    read_rows,
    texts,
)
from grpo_cl.errors import TaskDataError

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
"""By data source; other sources use ``contains``."""
SEPARATORS = {"booksum": ",", "perltqa": ";"}
"""Separators of several answers in one string."""


def load_memalpha(path: Path, options: LoaderOptions) -> list[Instance]:
    """One instance per row."""
    rows = read_rows(path)[: options.limit]
    return [_instance(row, f"row {number} of {path}") for number, row in enumerate(rows)]


def _instance(row: Any, where: str) -> Instance:
    names = ["instance_id", "chunks", "questions_and_answers", "data_source"]
    name, chunks, pairs, source = fields(row, names, where)
    contents = _as_list(chunks, f"chunks of {where}")
    questions = [
        _question(pair, f"{name}/{number}", source, f"question {number} of {where}")
        for number, pair in enumerate(_as_list(pairs, f"questions_and_answers of {where}"))
    ]
    return build(
        where,
        id=f"memalpha/{name}",
        chunks=tuple(
            Chunk(chunk_id=index, content=str(content)) for index, content in enumerate(contents)
        ),
        questions=tuple(questions),
        source=str(source),
        license=LICENSE,
        meta={"sub_source": row.get("sub_source")},
    )


def _as_list(value: Any, where: str) -> list[Any]:
    items = parse_json(value, where) if isinstance(value, str) else value
    if not isinstance(items, list):
        raise TaskDataError(f"{where} hold {type(items).__name__}, not a list; is the row whole?")
    return items


def _question(pair: Any, question_id: str, source: str, where: str) -> Question:
    text, gold = fields(pair, ["question", "answer"], where)
    answers = texts(gold, where)
    separator = SEPARATORS.get(source)
    if separator:
        parts = [part.strip() for answer in answers for part in answer.split(separator)]
        answers = tuple(part for part in parts if part)
    return Question(
        question_id=question_id,
        question=text,
        answers=answers,
        qtype=source,
        metric=METRICS.get(source, "contains"),
    )
