"""The R-matrix: every domain's evaluation after every stage."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isclose
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Self

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from grpo_cl.errors import ConfigError
from grpo_cl.runs.result_files import require_unchanged, written_again
from grpo_cl.types import SUCCESS, Record, Reward, RewardType, first_problem

BASE = "base"
"""The row of the untrained policy."""
TOOL_NAME = "tool_name"
"""Share of gold actions whose tool was called."""
TOOL_ARGUMENTS = "tool_arguments"
"""Share of gold actions whose tool was called with the gold arguments."""
JUDGE_AGREEMENT = "judge_agreement"
"""Mean share of a judge's votes that agree with the majority, where a judge scored."""
_REWARD, _TOOL_ACCURACY = "reward", "tool_accuracy"


class Drift(Record):
    """Divergence and distance of the evaluated policy from earlier ones: docs/metrics.md."""

    kl_base: float | None = None
    """Mean log-ratio per generated token to the initial policy; None without tokens."""
    kl_previous: float | None = None
    """The same to the policy evaluated on the domain after the previous stage; None in row 0."""
    distance_base: float
    """Euclidean distance of the weights from the initial ones."""
    distance_previous: float | None = None
    start_norm: float
    """Norm of the initial weights."""
    tokens: NonNegativeInt
    """Generated tokens in the mean."""
    is_sampled: bool
    """Whether the tokens were sampled; greedy decoding gives no unbiased estimate of the KL."""

    @property
    def relative_base(self) -> float | None:
        """``distance_base`` divided by ``start_norm``; None if that is 0."""
        return self._relative(self.distance_base)

    @property
    def relative_previous(self) -> float | None:
        """``distance_previous`` divided by ``start_norm``; None if either is missing."""
        return self._relative(self.distance_previous)

    def numbers(self) -> dict[str, float | None]:
        """The logged metrics: divergences and relative distances."""
        return {
            "kl_base": self.kl_base,
            "kl_previous": self.kl_previous,
            "relative_base": self.relative_base,
            "relative_previous": self.relative_previous,
        }

    def _relative(self, distance: float | None) -> float | None:
        return None if distance is None or not self.start_norm else distance / self.start_norm


class Cell(Record):
    """One evaluation of a domain. Each task has the same weight, whatever its number of trials."""

    mean: float
    """Mean reward."""
    tasks: dict[str, tuple[NonNegativeInt, PositiveInt]]
    """Successes and trials of each task."""
    components: dict[str, float] = Field(default_factory=dict)
    """Means of the reward components, ``tool_name`` and ``tool_arguments``, each over the tasks
    that are judged by it; absent if none is."""
    component_tasks: dict[str, dict[str, float]] | None = None
    """Mean of each component on every task that is judged by it, over trials; None if there are no
    components, and in files that do not have them."""
    reward_std: float | None = None
    """Standard deviation of the reward over episodes."""
    tool_accuracy: float | None = None
    left_out: PositiveInt | None = None
    """Episodes ended by a failing endpoint, excluded from all metrics; None if there were none."""
    context_window_exceeded: PositiveInt | None = None
    """Episodes ended by a full context; None if there were none."""
    no_tool_call: PositiveInt | None = None
    """Episodes in which no reply of the agent was a tool call; None if there were none."""
    drift: Drift | None = None
    """None unless ``evaluation.drift`` is set."""

    @property
    def num_episodes(self) -> int:
        """Trials of all tasks."""
        return sum(trials for _, trials in self.tasks.values())

    @property
    def pass_rate(self) -> float | None:
        """Mean over tasks of the share of successful trials; None without tasks."""
        rates = [successes / trials for successes, trials in self.tasks.values()]
        return fmean(rates) if rates else None

    @property
    def is_binary(self) -> bool:
        """Whether the mean reward is the pass rate, that is, rewards are 0 or 1."""
        return self.pass_rate is not None and isclose(self.mean, self.pass_rate, abs_tol=1e-9)

    def numbers(self) -> dict[str, float]:
        """The logged metrics of the evaluation."""
        metrics = {
            "reward_mean": self.mean,
            "reward_std": self.reward_std,
            "pass_rate": self.pass_rate,
            "tool_accuracy": self.tool_accuracy,
            "left_out": self.left_out,
            "context_window_exceeded": self.context_window_exceeded,
            "no_tool_call": self.no_tool_call,
            JUDGE_AGREEMENT: self.components.get(JUDGE_AGREEMENT),
            **(self.drift.numbers() if self.drift else {}),
        }
        return {name: value for name, value in metrics.items() if value is not None}

    @model_validator(mode="after")
    def _counts_and_components_are_those_of_the_tasks(self) -> Self:
        for name, (successes, trials) in self.tasks.items():
            if successes > trials:
                raise ValueError(f"task {name!r} has {successes} successes in {trials} trials")
        judged = {task for means in (self.component_tasks or {}).values() for task in means}
        if unknown := sorted(judged - set(self.tasks)):
            raise ValueError(f"components of {unknown}, which are not among the tasks")
        return self


class DomainFacts(Record):
    """Floors and reward basis of a domain, to interpret its scores."""

    idle: float | None = None
    """Mean reward of an agent that does nothing."""
    transfer: float | None = None
    """Mean reward of an agent that transfers to a human at once."""
    repeat_reads: float | None = None
    """Mean reward of an agent that repeats every read and writes nothing."""
    spam_writes: float | None = None
    """Mean reward of an agent that makes every write it can."""
    floor_tasks: tuple[str, ...] | None = None
    """Evaluation tasks that one of these agents solves; None if they were not played."""
    basis: tuple[RewardType, ...] | None = None
    """The reward components that are factors in the reward of some task."""


class Row(Record):
    """The evaluations after one stage."""

    after: str
    cells: dict[str, Cell]


class RMatrix(Record):
    """One row per stage, row 0 for the untrained policy; cells not evaluated are absent."""

    domains: tuple[str, ...]
    """In task order."""
    rows: tuple[Row, ...] = ()
    facts: dict[str, DomainFacts] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _rows_and_cells_have_known_domains(self) -> Self:
        if BASE in self.domains:
            raise ValueError(f"no domain may be called {BASE!r}: it names the untrained policy")
        afters = [row.after for row in self.rows]
        if afters != sorted(set(afters) & set(self.stages), key=self.stages.index):
            raise ValueError(
                f"rows must be a selection of {list(self.stages)} in that order, not {afters}"
            )
        names = {*self.facts, *(domain for row in self.rows for domain in row.cells)}
        if unknown := sorted(names - set(self.domains)):
            raise ValueError(f"cells of {unknown}, which are not among the domains {self.domains}")
        return self

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of all rows, evaluated or not."""
        return (BASE, *self.domains)

    @property
    def evaluated_stages(self) -> tuple[str, ...]:
        """The names of the rows up to the last evaluated one."""
        return self.stages[: self.stages.index(self.rows[-1].after) + 1] if self.rows else ()

    def cell(self, after: str, domain: str) -> Cell | None:
        """The evaluation of ``domain`` after a stage; None if it is missing."""
        row = next((row for row in self.rows if row.after == after), None)
        return row.cells.get(domain) if row else None

    def with_cell(self, after: str, domain: str, cell: Cell) -> Self:
        """The matrix with one cell added or replaced."""
        if after not in self.stages or domain not in self.domains:
            raise ValueError(f"no cell ({after!r}, {domain!r}) in a matrix of {self.domains}")
        cells = {row.after: row.cells for row in self.rows}
        cells[after] = {**cells.get(after, {}), domain: cell}
        rows = tuple(
            Row(after=stage, cells=cells[stage]) for stage in self.stages if stage in cells
        )
        return self.model_copy(update={"rows": rows})

    def scores(self) -> list[list[float | None]]:
        """Mean rewards, up to the last evaluated stage; None for missing cells."""
        return self._table(lambda cell: cell.mean)

    def component(self, name: str) -> list[list[float | None]]:
        """The means of one component, in the layout of ``scores``."""
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
        require_unchanged(path, written_again(path))
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise ConfigError(f"no R-matrix at {path}; a training run writes it") from None
        except ValidationError as error:
            raise ConfigError(f"{path} is not an R-matrix: {first_problem(error)}") from None

    def _table(self, value: Callable[[Cell], float | None]) -> list[list[float | None]]:
        cells = [
            [self.cell(after, domain) for domain in self.domains] for after in self.evaluated_stages
        ]
        return [[None if cell is None else value(cell) for cell in row] for row in cells]


def measure(rewards: Mapping[str, Sequence[Reward]]) -> Cell:
    """The cell of an evaluation, from the rewards of every trial of each task."""
    episodes = [(task, _numbers(reward)) for task, group in rewards.items() for reward in group]
    if not episodes:
        raise ValueError("an evaluation needs at least one episode")
    names = sorted({name for _, numbers in episodes for name in numbers})
    by_task = {name: _task_means(episodes, name) for name in names}
    means = {name: fmean(found.values()) for name, found in by_task.items()}
    return Cell(
        mean=means.pop(_REWARD),
        tool_accuracy=means.pop(_TOOL_ACCURACY, None),
        tasks={
            task: (sum(reward.value >= SUCCESS for reward in group), len(group))
            for task, group in rewards.items()
            if group
        },
        components=means,
        component_tasks={name: by_task[name] for name in means} or None,
        reward_std=pstdev(numbers[_REWARD] for _, numbers in episodes),
    )


def _numbers(reward: Reward) -> dict[str, float]:
    criteria = {
        RewardType.ENV_ASSERTION: reward.env_assertions,
        RewardType.COMMUNICATE: reward.communicate_checks,
        RewardType.ACTION: reward.action_checks,
        RewardType.NL_ASSERTION: reward.judgement,
    }
    numbers = {_REWARD: reward.value}
    # Without a criterion a component is 1 always, whatever the policy does.
    numbers |= {str(k): value for k, value in reward.components.items() if criteria.get(k, True)}
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
    return numbers | {f"answers_{kind}": fmean(values) for kind, values in scores.items()}


def _task_means(episodes: Iterable[tuple[str, dict[str, float]]], name: str) -> dict[str, float]:
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for task, numbers in episodes:
        if name in numbers:
            by_task[task].append(numbers[name])
    return {task: fmean(values) for task, values in by_task.items()}
