"""What an engine is told: stages in order, and for each its tasks, policies and measurements."""

from pydantic import PositiveInt

from grpo_cl.types import Record

FORMAT = 1


class Stage(Record):
    """Training on one domain of the order; paths are relative to the plan's folder."""

    index: int
    name: str
    """Of the stage's folder, in the plan and among the runs of an engine."""
    domain: str
    table: str
    """The tasks of every step, in the order they are played: read it once, unshuffled."""
    schedule: str
    """The same in short: step, domain and task id of each row."""
    steps: PositiveInt
    tasks_per_step: PositiveInt
    """Rows of one policy update; each is played ``num_samples_per_prompt`` times."""
    mix: dict[str, int]
    """Rows of each domain; earlier domains are there where the algorithm replays them."""
    checkpoint_in: str
    """The model to begin with: the run's own, or the name of the stage that wrote it."""
    checkpoint_out: str
    """The stage's own name: its model is found in the folder of that name."""
    evaluations: tuple[str, ...]
    """Domains measured when the stage is over: a row of the R-matrix."""


class Plan(Record):
    """A run that another engine trains."""

    format: int = FORMAT
    config: str
    """The file with the description of the run."""
    releases: dict[str, str]
    """The task release of each domain; a run is read back with the same ones."""
    base_evaluations: tuple[str, ...]
    """Domains measured before the first stage."""
    stages: tuple[Stage, ...]
