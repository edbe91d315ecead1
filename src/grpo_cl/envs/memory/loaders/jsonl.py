"""The package's own format: one instance as JSON per line."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from grpo_cl.envs.memory.instances import Instance
from grpo_cl.envs.memory.loaders.files import LoaderOptions, fields, read_lines
from grpo_cl.errors import TaskDataError
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import write_file
from grpo_cl.types import first_problem

VERSION = 1
FIELD = "version"


def load_jsonl(path: Path, options: LoaderOptions) -> list[Instance]:
    """The instances written by ``save_jsonl``."""
    instances: list[Instance] = []
    for number, line in enumerate(read_lines(path)[: options.limit], 1):
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
            raise TaskDataError(f"{where} is no instance: {first_problem(error)}") from error
    return instances


def save_jsonl(path: Path, instances: Iterable[Instance]) -> None:
    """Write instances atomically."""
    write_file(
        path,
        (
            f"{encode({FIELD: VERSION, **instance.model_dump(mode='json')})}\n"
            for instance in instances
        ),
    )
