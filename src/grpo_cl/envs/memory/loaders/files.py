"""File readers and field checks; a malformed file raises ``TaskDataError``."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.envs.memory.instances import Instance
from grpo_cl.errors import TaskDataError

LFS_POINTER = b"version https://git-lfs"
PARQUET = ".parquet"
TABLES = (PARQUET, ".json", ".jsonl")
"""Suffixes of the files that ``read_rows`` reads."""


class LoaderOptions(NamedTuple):
    """Options of a loader."""

    chunk_tokens: int = 2000
    """The length of a chunk, exceeded only by a single longer turn."""
    limit: int | None = None
    """The maximum number of instances; None for all."""
    seed: int = 0
    """Seed of the order of answer choices."""


def read_bytes(path: Path) -> bytes:
    """The content of a file; a missing file and a git-LFS pointer are errors."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskDataError(f"cannot read {path}: {error.strerror}; check the path") from error
    if data.startswith(LFS_POINTER):
        raise TaskDataError(
            f"{path} is a git-LFS pointer of {len(data)} bytes, not the data; "
            "fetch the file with `git lfs pull` or download it again"
        )
    return data


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return parse_json(read_bytes(path), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of JSON text."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise TaskDataError(f"{where} is no JSON ({error}); check that it is complete") from error


def read_lines(path: Path) -> list[Any]:
    """The values of a JSON-lines file."""
    lines = read_bytes(path).splitlines()
    return [
        parse_json(line, f"line {number} of {path}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column name."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # conversations exceed the default limit
    text = read_bytes(path).decode("utf-8-sig").splitlines(keepends=True)
    return list(csv.DictReader(text))


def read_rows(path: Path) -> list[Any]:
    """The rows of a parquet, JSON or JSON-lines file."""
    if path.suffix == PARQUET:
        return _read_parquet(path)
    if path.suffix == ".jsonl":
        return read_lines(path)
    value = read_json(path)
    if not isinstance(value, list):
        raise TaskDataError(f"{path} holds no list; it needs one entry per instance")
    return value


def _read_parquet(path: Path) -> list[Any]:
    import pyarrow  # noqa: PLC0415  # slow to import, and only needed here
    from pyarrow import parquet  # noqa: PLC0415

    data = read_bytes(path)
    try:
        return parquet.read_table(pyarrow.BufferReader(data)).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise TaskDataError(f"{path} is no parquet file ({error}); download it again") from error


def fields(row: Any, names: Sequence[str], where: str) -> list[Any]:
    """The required fields of a row."""
    if not isinstance(row, Mapping):
        raise TaskDataError(f"{where} is no object; it needs the fields {', '.join(names)}")
    missing = [name for name in names if name not in row]
    if missing:
        present = ", ".join(str(name) for name in row)
        raise TaskDataError(
            f"{where} has no field {missing[0]!r}, only {present}; is it a file of this format?"
        )
    return [row[name] for name in names]


def texts(value: Any, where: str) -> tuple[str, ...]:
    """One answer or a list of answers, as strings."""
    items: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if not items or not all(isinstance(item, str | int | float) for item in items):
        raise TaskDataError(f"the answer {value!r} of {where} is no text; give a text or a number")
    answers = tuple(str(item).strip() for item in items)
    if not all(answers):
        raise TaskDataError(f"the answer {value!r} of {where} is blank; give at least a word")
    return answers


def build(where: str, **parts: Any) -> Instance:
    """An instance; raises ``TaskDataError`` if its parts are inconsistent."""
    try:
        return Instance(**parts)
    except ValidationError as error:
        reasons = "; ".join(problem["msg"] for problem in error.errors())
        raise TaskDataError(f"{where} makes no instance: {reasons}") from error
