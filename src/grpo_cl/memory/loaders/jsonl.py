"""Our own files: one instance as JSON on each line."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from grpo_cl.errors import TaskDataError
from grpo_cl.memory.instances import Instance
from grpo_cl.memory.loaders.files import Reading, fields, read_lines
from grpo_cl.rundir import encode, write_file

VERSION = 1
FIELD = "version"


def load_jsonl(path: Path, reading: Reading) -> list[Instance]:
    """The instances ``save_jsonl`` wrote."""
    instances: list[Instance] = []
    for number, line in enumerate(read_lines(path)[: reading.limit], 1):
        where = f"line {number} of {path}"
        (version,) = fields(line, [FIELD], where)
        if version != VERSION:
            raise TaskDataError(
                f"{where} has the version {version!r}, this release reads {VERSION}; "
                "write the file anew with save_jsonl"
            )
        parts = {name: value for name, value in line.items() if name != FIELD}
        try:
            instances.append(Instance.model_validate(parts))
        except ValidationError as error:
            raise TaskDataError(f"{where} is no instance: {error}") from error
    return instances


def save_jsonl(path: Path, instances: Iterable[Instance]) -> None:
    """Write instances, whole or not at all."""
    write_file(
        path,
        (
            f"{encode({FIELD: VERSION, **instance.model_dump(mode='json')})}\n"
            for instance in instances
        ),
    )
