"""The R-matrix: every domain's score after every stage, with what it was counted from."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isclose
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Self

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from grpo_cl.errors import ConfigError
from grpo_cl.types import SUCCESS, Record, Reward, RewardType

BASE = "base"
"""The stage before the first: the untrained policy."""
TOOL_NAME = "tool_name"
"""Share of gold actions whose tool was called."""
TOOL_ARGUMENTS = "tool_arguments"
"""Share of gold actions whose tool was called with the gold arguments."""
JUDGE_AGREEMENT = "judge_agreement"
"""Mean share of a judge's votes that are with the majority, where a judge was asked."""
_REWARD, _TOOL_ACCURACY = "reward", "tool_accuracy"


class Drift(Record):
    """How far the policy that was measured on a domain is from earlier ones: docs/metrics.md."""

    kl_base: float | None = None
    """Mean log-ratio per generated token to the policy the run started from; None without any."""
    kl_previous: float | None = None
    """To the policy measured on the domain when the stage before ended; None before the first."""
    distance_base: float
    """Euclidean distance of the weights."""
    distance_previous: float | None = None
    start_norm: float
    """Norm of the weights the run started from."""
    tokens: NonNegativeInt
    """Generated tokens that were compared."""
    is_sampled: bool
    """Whether the tokens were drawn; greedy ones give no unbiased estimate of a divergence."""

    @property
    def relative_base(self) -> float | None:
        """The distance as a share of ``start_norm``; None where that is 0."""
        return self._relative(self.distance_base)

    @property
    def relative_previous(self) -> float | None:
        """As ``relative_base``, and None before the first stage."""
        return self._relative(self.distance_previous)

    def numbers(self) -> dict[str, float | None]:
        """The divergences and relative distances, as they are logged."""
        return {
            "kl_base": self.kl_base,
            "kl_previous": self.kl_previous,
            "relative_base": self.relative_base,
            "relative_previous": self.relative_previous,
        }

    def _relative(self, distance: float | None) -> float | None:
        return None if distance is None or not self.start_norm else distance / self.start_norm


class Cell(Record):
    """One domain measured once. Each task weighs the same, however often it was played."""

    mean: float
    """Mean reward."""
    tasks: dict[str, tuple[NonNegativeInt, PositiveInt]]
    """Successes and trials of each task."""
    components: dict[str, float] = Field(default_factory=dict)
    """Means of the reward's components, ``tool_name`` and ``tool_arguments``, where they exist."""
    reward_std: float | None = None
    """Spread of the reward over episodes."""
    tool_accuracy: float | None = None
    left_out: PositiveInt | None = None
    """Episodes that a failing endpoint ended, if any did; they are in none of the numbers."""
    drift: Drift | None = None
    """Where the run measures it."""

    @property
    def pass_rate(self) -> float | None:
        """Mean share of successful plays; None without tasks."""
        shares = [successes / trials for successes, trials in self.tasks.values()]
        return fmean(shares) if shares else None

    @property
    def is_counted(self) -> bool:
        """Whether the successes make up the mean, which rewards between 0 and 1 do not."""
        return self.pass_rate is not None and isclose(self.mean, self.pass_rate, abs_tol=1e-9)

    def numbers(self) -> dict[str, float]:
        """The measurement in short, as it is logged."""
        named = {
            "reward_mean": self.mean,
            "reward_std": self.reward_std,
            "pass_rate": self.pass_rate,
            "tool_accuracy": self.tool_accuracy,
            "left_out": self.left_out,
            JUDGE_AGREEMENT: self.components.get(JUDGE_AGREEMENT),
            **(self.drift.numbers() if self.drift else {}),
        }
        return {name: value for name, value in named.items() if value is not None}

    @model_validator(mode="after")
    def _successes_were_tried(self) -> Self:
        for name, (successes, trials) in self.tasks.items():
            if successes > trials:
                raise ValueError(f"task {name!r} has {successes} successes in {trials} trials")
        return self


class DomainFacts(Record):
    """What a reader needs to judge a domain's scores."""

    idle: float | None = None
    """Mean reward of an agent that does nothing."""
    transfer: float | None = None
    """Mean reward of an agent that hands over to a human at once."""
    basis: tuple[RewardType, ...] | None = None
    """The components that some task's reward multiplies."""


class Row(Record):
    """What was measured after one stage."""

    after: str
    cells: dict[str, Cell]


class RMatrix(Record):
    """One row per stage, row 0 for the untrained policy; a cell nobody measured is absent."""

    domains: tuple[str, ...]
    """In the order they are learned."""
    rows: tuple[Row, ...] = ()
    facts: dict[str, DomainFacts] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _rows_and_cells_are_of_known_domains(self) -> Self:
        if BASE in self.domains:
            raise ValueError(f"no domain may be called {BASE!r}: it names the untrained policy")
        stages = [BASE, *self.domains]
        afters = [row.after for row in self.rows]
        if afters != sorted(set(afters) & set(stages), key=stages.index):
            raise ValueError(f"rows must be a selection of {stages} in that order, not {afters}")
        named = {*self.facts, *(domain for row in self.rows for domain in row.cells)}
        if unknown := sorted(named - set(self.domains)):
            raise ValueError(f"cells of {unknown}, which are not among the domains {self.domains}")
        return self

    def cell(self, after: str, domain: str) -> Cell | None:
        """What was measured of ``domain`` after a stage, if it was."""
        row = next((row for row in self.rows if row.after == after), None)
        return row.cells.get(domain) if row else None

    def with_cell(self, after: str, domain: str, cell: Cell) -> Self:
        """The matrix with one measurement added or replaced."""
        stages = [BASE, *self.domains]
        if after not in stages or domain not in self.domains:
            raise ValueError(f"no cell ({after!r}, {domain!r}) in a matrix of {self.domains}")
        cells = {row.after: row.cells for row in self.rows}
        cells[after] = {**cells.get(after, {}), domain: cell}
        rows = tuple(Row(after=stage, cells=cells[stage]) for stage in stages if stage in cells)
        return self.model_copy(update={"rows": rows})

    def scores(self) -> list[list[float | None]]:
        """Mean rewards as numbers, up to the last stage that was measured."""
        return self._table(lambda cell: cell.mean)

    def component(self, name: str) -> list[list[float | None]]:
        """One component's means, laid out as ``scores``."""
        return self._table(lambda cell: cell.components.get(name))

    def to_json(self) -> dict[str, Any]:
        """The contents of ``r_matrix.json``."""
        written = self.model_dump(mode="json", exclude_none=True)
        if not self.facts:
            del written["facts"]
        return written

    @classmethod
    def load(cls, path: Path) -> Self:
        """The matrix in a file."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise ConfigError(f"no R-matrix at {path}; a training run writes it") from None
        except ValidationError as error:
            raise ConfigError(f"{path} is not an R-matrix: {error}") from None

    def _table(self, value: Callable[[Cell], float | None]) -> list[list[float | None]]:
        stages = [BASE, *self.domains]
        measured = stages[: stages.index(self.rows[-1].after) + 1] if self.rows else []
        cells = [[self.cell(after, domain) for domain in self.domains] for after in measured]
        return [[None if cell is None else value(cell) for cell in row] for row in cells]


def measure(rewards: Mapping[str, Sequence[Reward]]) -> Cell:
    """The cell of one evaluation, from the rewards of every play of each task."""
    plays = [(task, _numbers(reward)) for task, group in rewards.items() for reward in group]
    if not plays:
        raise ValueError("nothing was played, so nothing can be measured")
    names = sorted({name for _, numbers in plays for name in numbers})
    means = {name: _task_mean(plays, name) for name in names}
    return Cell(
        mean=means.pop(_REWARD),
        tool_accuracy=means.pop(_TOOL_ACCURACY, None),
        tasks={
            task: (sum(reward.value >= SUCCESS for reward in group), len(group))
            for task, group in rewards.items()
            if group
        },
        components=means,
        reward_std=pstdev(numbers[_REWARD] for _, numbers in plays),
    )


def _numbers(reward: Reward) -> dict[str, float]:
    numbers = {_REWARD: reward.value}
    numbers |= {str(part): value for part, value in reward.components.items()}
    if reward.tool_accuracy is not None:
        numbers[_TOOL_ACCURACY] = reward.tool_accuracy
    if reward.judgement is not None:
        numbers[JUDGE_AGREEMENT] = reward.judgement.agreement
    if checks := reward.action_checks:
        numbers[TOOL_NAME] = fmean(check.name_match for check in checks)
        numbers[TOOL_ARGUMENTS] = fmean(check.arguments_match for check in checks)
    kinds = {check.qtype for check in reward.answer_checks}
    scores = {
        kind: [check.score for check in reward.answer_checks if check.qtype == kind]
        for kind in kinds
    }
    return numbers | {f"answers_{kind}": fmean(found) for kind, found in scores.items()}


def _task_mean(plays: Iterable[tuple[str, dict[str, float]]], name: str) -> float:
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for task, numbers in plays:
        if name in numbers:
            by_task[task].append(numbers[name])
    return fmean(fmean(values) for values in by_task.values())
