"""A policy measured on its own, as a file that a row of the R-matrix is read from."""

from pathlib import Path

from pydantic import ValidationError

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import Cell
from grpo_cl.rundir import read_json, write_json
from grpo_cl.types import Record


class Evaluation(Record):
    """What ``grpo-cl evaluate --out`` writes."""

    model: str
    releases: dict[str, str]
    """The task release of each domain."""
    cells: dict[str, Cell]
    """What was measured of each domain."""

    def save(self, path: Path) -> None:
        """Write the file."""
        write_json(path, self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def load(cls, path: Path) -> "Evaluation":
        """Read the file."""
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            raise ConfigError(
                f"{path} is no evaluation; `grpo-cl evaluate --out FILE` writes one: {error}"
            ) from error
