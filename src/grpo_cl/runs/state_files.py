"""State files: JSON that this package writes and reads back, with a format number.

A kind of file has the record that its contents must match, the number of its present format, and a
migration from each earlier one. A file without a number has format 1. Damaged files, unknown keys
and newer formats are refused in one sentence.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from grpo_cl.errors import CheckpointError, GRPOCLError
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.types import first_problem

FORMAT = "format"

Migration = Callable[[dict[str, Any], Path], dict[str, Any]]
"""From the contents of one format, and the file's path, to the contents of the next format."""


class StateKind(NamedTuple):
    """A kind of state file."""

    noun: str
    """What the file is, as in "the state of a checkpoint"."""
    contents: type[BaseModel]
    """The contents in the present format, besides the number."""
    remedy: str
    """What to do with a damaged file."""
    migrations: Mapping[int, Migration] = {}
    """By the format they start from; the present format is one more than the last."""

    @property
    def format(self) -> int:
        """The number of the present format."""
        return 1 + max(self.migrations, default=0)


def write_state(path: Path, kind: StateKind, contents: Mapping[str, Any]) -> None:
    """Write ``contents`` in the present format."""
    write_json(path, {FORMAT: kind.format, **contents})


def read_state(path: Path, kind: StateKind) -> dict[str, Any]:
    """The contents of a file, migrated to the present format."""
    return migrate(read_json(path), kind, path)


def migrate(value: Any, kind: StateKind, path: Path) -> dict[str, Any]:
    """The parsed JSON of ``path`` in the present format."""
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not {kind.noun}: it must be a JSON object; {kind.remedy}")
    contents: dict[str, Any] = dict(value)
    number = contents.pop(FORMAT, 1)
    if type(number) is not int or number < 1:
        raise CheckpointError(
            f"{path} has the {FORMAT} {number!r}, which must be a whole number; {kind.remedy}"
        )
    if number > kind.format:
        raise CheckpointError(
            f"{path} has {FORMAT} {number}, and this version of grpo-cl reads {FORMAT}s up to "
            f"{kind.format}; continue with the version that wrote it, or a newer one"
        )
    with restoring(path, kind):
        for known in range(number, kind.format):
            contents = kind.migrations[known](contents, path)
        # Strict: a text that looks like a number is damage too.
        kind.contents.model_validate(contents, strict=True)
    return contents


@contextmanager
def restoring(path: Path, kind: StateKind) -> Generator[None]:
    """Turn the errors of contents with wrong keys or types into a ``CheckpointError``."""
    try:
        yield
    except GRPOCLError:
        raise
    except ValidationError as error:
        raise CheckpointError(
            f"{path} is not {kind.noun} of this version ({_problem(error)}); {kind.remedy}"
        ) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else first_problem(error)
        raise CheckpointError(
            f"{path} is not {kind.noun} of this version ({reason}); {kind.remedy}"
        ) from error


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"unknown key {name!r}"
    if first["type"] == "missing":
        return f"key {name!r} is missing"
    return first_problem(error)
