"""Files of exported episodes: JSON lines, a JSON array, or a parquet table."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.runs.reservoir import Experience
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import create_file, temporary_path, write_file, writing
from grpo_cl.types import RewardType

Write = Callable[[Path, Iterable[Experience]], None]

_JSON_COLUMNS = ("advantage", "trajectory")
"""Columns of a table that hold JSON: their types differ between rows."""


def export_writer(path: Path) -> Write:
    """The function that writes the format of the suffix of ``path``."""
    if path.suffix not in _WRITERS:
        raise ConfigError(
            f"cannot export to {str(path)!r}: the suffix is {path.suffix!r} and must be one of "
            f"{', '.join(_WRITERS)}"
        )
    return _WRITERS[path.suffix]


def _write_lines(path: Path, records: Iterable[Experience]) -> None:
    write_file(path, (f"{_line(record)}\n" for record in records))


def _write_array(path: Path, records: Iterable[Experience]) -> None:
    write_file(path, _array(records))


def _array(records: Iterable[Experience]) -> Iterator[str]:
    yield "["
    for number, record in enumerate(records):
        yield f"{',' if number else ''}\n{_line(record)}"
    yield "\n]\n"


def _write_table(path: Path, records: Iterable[Experience]) -> None:
    import pyarrow  # noqa: PLC0415  # slow to import, and only needed here
    from pyarrow import parquet  # noqa: PLC0415

    number, text = pyarrow.float64(), pyarrow.string()
    columns = {
        "domain": text,
        "task_id": text,
        "reward": number,
        "step": pyarrow.int64(),
        "components": pyarrow.struct([(part.value, number) for part in RewardType]),
        "basis_name": text,
        "timestamp": text,
        **dict.fromkeys(_JSON_COLUMNS, text),
    }
    table = pyarrow.Table.from_pylist([_row(record) for record in records], pyarrow.schema(columns))
    temporary = temporary_path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with create_file(temporary) as file:
                parquet.write_table(table, file)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


_WRITERS: dict[str, Write] = {
    ".jsonl": _write_lines,
    ".json": _write_array,
    ".parquet": _write_table,
}


def _line(record: Experience) -> str:
    return encode(record.model_dump(mode="json"))


def _row(record: Experience) -> dict[str, Any]:
    values = record.model_dump(mode="json")
    as_json = {name: encode(values[name]) for name in _JSON_COLUMNS}
    return {**values, **as_json, "domain": record.task.domain, "task_id": record.task.id}


def read_table(path: Path) -> Iterator[Experience]:
    """The records of an exported parquet table."""
    from pyarrow import ArrowException, parquet  # noqa: PLC0415  # slow to import

    names = [*Experience.model_fields]
    try:
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(columns=names):
            for row in batch.to_pylist():
                yield _experience(row)
    except (OSError, ArrowException, KeyError, TypeError, ValueError) as error:
        raise TaskDataError(
            f"{str(path)!r} is not a table of export_trajectories: {error}"
        ) from error


def _experience(row: Mapping[str, Any]) -> Experience:
    parsed = {name: json.loads(row[name]) for name in _JSON_COLUMNS}
    components = {name: value for name, value in row["components"].items() if value is not None}
    return Experience.model_validate({**row, **parsed, "components": components})
