"""MemoryAgentBench: one long context and many questions about it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_cl.errors import TaskDataError
from grpo_cl.memory.instances import Instance, Metric, Question
from grpo_cl.memory.loaders.chunks import cut_text
from grpo_cl.memory.loaders.files import Reading, build, fields, read_rows, texts

LICENSE = "MIT"
METRICS: dict[str, Metric] = {
    "icl_": "exact",  # a label is right or wrong: "label: 43" is not "43"
    "infbench_sum": "judge",
    "longmemeval": "judge",
}
"""By how the name of a source begins; other answers must be contained."""


def load_memoryagentbench(path: Path, reading: Reading) -> list[Instance]:
    """One instance per row of a parquet, JSON or JSON-lines file."""
    rows = read_rows(path)[: reading.limit]
    return [
        _instance(row, f"row {number} of {path}", f"{path.stem}-{number}", reading)
        for number, row in enumerate(rows)
    ]


def _instance(row: Any, where: str, name: str, reading: Reading) -> Instance:
    context, questions, answers = fields(row, ["context", "questions", "answers"], where)
    if len(questions) != len(answers):
        raise TaskDataError(
            f"{where} has {len(questions)} questions and {len(answers)} answers; "
            "there must be one answer, or one list of answers, per question"
        )
    metadata: Mapping[str, Any] = row.get("metadata") or {}
    source = str(metadata.get("source") or "memoryagentbench")
    ids = _column(metadata, "qa_pair_ids", len(questions)) or _column(
        metadata, "uuid", len(questions)
    )  # older files
    kinds = _column(metadata, "question_types", len(questions))
    return build(
        where,
        id=f"memoryagentbench/{name}",
        chunks=tuple(cut_text(context, limit=reading.chunk_tokens)),
        questions=tuple(
            Question(
                question_id=ids[place] if ids else f"{name}/{place}",
                question=text,
                answers=texts(answers[place], f"question {place} of {where}"),
                qtype=kinds[place] if kinds else source,
                metric=_metric(source),
            )
            for place, text in enumerate(questions)
        ),
        source=source,
        license=LICENSE,
    )


def _column(metadata: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    values = metadata.get(name)
    if not isinstance(values, list) or len(values) != count:
        return None  # many sources leave these empty
    return [str(value) for value in values]


def _metric(source: str) -> Metric:
    for start, metric in METRICS.items():
        if source.startswith(start):
            return metric
    return "contains"
