"""MemoryAgentBench: one long context and many questions about it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_cl.envs.memory.instances import Instance, Metric, Question
from grpo_cl.envs.memory.loaders.chunks import split_text
from grpo_cl.envs.memory.loaders.files import LoaderOptions, build, fields, read_rows, texts
from grpo_cl.errors import TaskDataError

LICENSE = "MIT"
METRICS: dict[str, Metric] = {
    "icl_": "exact",  # classification labels: "label: 43" is not "43"
    "infbench_sum": "judge",
    "longmemeval": "judge",
}
"""By prefix of the source; other sources use ``contains``."""


def load_memoryagentbench(path: Path, options: LoaderOptions) -> list[Instance]:
    """One instance per row of a parquet, JSON or JSON-lines file."""
    rows = read_rows(path)[: options.limit]
    return [
        _instance(row, f"row {number} of {path}", f"{path.stem}-{number}", options)
        for number, row in enumerate(rows)
    ]


def _instance(row: Any, where: str, name: str, options: LoaderOptions) -> Instance:
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
        chunks=tuple(split_text(context, limit=options.chunk_tokens)),
        questions=tuple(
            Question(
                question_id=ids[i] if ids else f"{name}/{i}",
                question=text,
                answers=texts(answers[i], f"question {i} of {where}"),
                qtype=kinds[i] if kinds else source,
                metric=_metric(source),
            )
            for i, text in enumerate(questions)
        ),
        source=source,
        license=LICENSE,
    )


def _column(metadata: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    values = metadata.get(name)
    if not isinstance(values, list) or len(values) != count:
        return None  # many sources have empty columns
    return [str(value) for value in values]


def _metric(source: str) -> Metric:
    for start, metric in METRICS.items():
        if source.startswith(start):
            return metric
    return "contains"
