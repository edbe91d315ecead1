"""Records of a plan's files: the plan, its stages, and the evaluation after each stage."""

from pathlib import Path

from pydantic import PositiveInt, ValidationError

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import Cell
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.types import Record, first_problem

FORMAT = 1


class Stage(Record):
    """Training on one domain of the task order; paths are relative to the plan's folder."""

    index: int
    name: str
    """Name of the stage's folder, in the plan and in an engine's run."""
    domain: str
    table: str
    """Parquet file with the tasks of every step in order; read it once, unshuffled."""
    schedule: str
    """JSON lines with step, domain and task id of each row."""
    steps: PositiveInt
    tasks_per_step: PositiveInt
    """Rows of one policy update; each has ``num_samples_per_prompt`` episodes."""
    mix: dict[str, int]
    """Rows per domain, with earlier domains if the algorithm replays them."""
    checkpoint_in: str
    """The initial model: the run's base model, or the name of the stage that saved it."""
    checkpoint_out: str
    """The stage's name: its model is saved in the folder of that name."""
    evaluations: tuple[str, ...]
    """Domains evaluated after the stage: a row of the R-matrix."""


class Plan(Record):
    """The schedule of a run that another engine trains."""

    format: int = FORMAT
    config: str
    """The file with the run's config."""
    releases: dict[str, str]
    """The task release of each domain; importing the run requires the same ones."""
    base_evaluations: tuple[str, ...]
    """Domains evaluated before the first stage."""
    stages: tuple[Stage, ...]


class Evaluation(Record):
    """The file that ``grpo-cl evaluate --out`` writes: a row of the R-matrix."""

    model: str
    releases: dict[str, str]
    """The task release of each domain."""
    cells: dict[str, Cell]
    """The evaluation of each domain."""

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
                f"{path} is not an evaluation; `grpo-cl evaluate --out FILE` writes one: "
                f"{first_problem(error)}"
            ) from error
