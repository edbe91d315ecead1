"""The leaderboard: a Markdown page made from submissions alone."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from grpo_cl.campaigns.submission import Submission, SubmittedRun
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.bootstrap import Score
from grpo_cl.metrics.comparisons import score_interval
from grpo_cl.metrics.continual import (
    average_performance,
    backward_transfer,
    forgetting,
    forward_transfer,
    mean_or_none,
)
from grpo_cl.metrics.floors import FLOORS, without_floor_tasks
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.metrics.statistics import Interval

_SCORES: dict[str, Score] = {
    "average performance": average_performance,
    "backward transfer": backward_transfer,
    "forgetting": forgetting,
    "forward transfer": forward_transfer,
}
Benchmark = tuple[tuple[str, str], ...]
"""What is equal in all rows of a table: domains in their order with their evaluation tasks, and the
conditions of an evaluation."""
_INTRODUCTION = """\
# Leaderboard

Made from the files in `docs/leaderboard` by `grpo-cl leaderboard docs/leaderboard/* --out
docs/leaderboard.md`; do not edit it. `grpo-cl submit RUN` writes such a file, and `grpo-cl
verify-submission FILE [RUN]` computes its results again: [campaigns.md](campaigns.md#leaderboard).

Scores are those of [metrics.md](metrics.md), comparable within a table only: all its runs were
evaluated on the same tasks. In brackets: 95 % confidence intervals, over seeds for several runs,
over tasks and trials for one, which then do not cover the variance between seeds. A *floor* is the
score of a policy without skill; *other tasks* is the average performance on the tasks that none of
these policies solves."""


class _Row(NamedTuple):
    """The runs of one method of a submission on one benchmark; they differ in their seeds."""

    submission: str
    method: str
    benchmark: Benchmark
    runs: Sequence[SubmittedRun]
    """All from the same initial model."""
    num_planned: int
    """All runs of the method in this order, those without results and of other models too."""


def leaderboard(submissions: Sequence[Submission]) -> str:
    """The page, with one table for each set of evaluation tasks; the best average comes first."""
    if not submissions:
        raise ConfigError("a leaderboard needs a submission; `grpo-cl submit RUN` writes one")
    names = [submission.name for submission in submissions]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two submissions are called {name!r}; give each its own --name")
    tables: dict[Benchmark, list[str]] = {}
    ranked = sorted(_rows(submissions), key=lambda row: (-_average(row.runs), row[:2]))
    for row in ranked:
        tables.setdefault(row.benchmark, _head(row.runs[0])).append(_line(row))
    for submission in submissions:
        for order, sentence in _unfinished(submission).items():
            own = (row for row in ranked if row.submission == submission.name)
            same = (row.benchmark for row in own if row.runs[0].r_matrix.domains == order)
            unknown = tuple((domain, "") for domain in order)
            lines = tables.setdefault(next(same, unknown), [f"## {_escape(' → '.join(order))}"])
            lines += ["", sentence]
    return "\n\n".join([_INTRODUCTION, *("\n".join(lines) for lines in tables.values())]) + "\n"


def _rows(submissions: Sequence[Submission]) -> list[_Row]:
    """One row for each method of a submission, benchmark that it was run on, and initial model."""
    found: dict[tuple[str, str, Benchmark, str | None], list[SubmittedRun]] = {}
    planned: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for submission in submissions:
        for run in submission.runs:
            key = (submission.name, run.label, _benchmark(run), run.initial_model)
            found.setdefault(key, []).append(run)
            planned[submission.name, run.label, run.r_matrix.domains] += 1
        planned.update((submission.name, run.label, run.order) for run in submission.missing)
    return [
        _Row(*key[:3], runs, planned[*key[:2], runs[0].r_matrix.domains])
        for key, runs in found.items()
    ]


def _unfinished(submission: Submission) -> dict[tuple[str, ...], str]:
    """For each order, a sentence that names the methods without any finished run, if there are."""
    finished = {(run.r_matrix.domains, run.label) for run in submission.runs}
    planned = Counter((run.order, run.label) for run in submission.missing)
    methods: dict[tuple[str, ...], list[str]] = {}
    for (order, label), count in planned.items():
        if (order, label) not in finished:
            methods.setdefault(order, []).append(f"{_escape(label)} (0 of {count})")
    name = _escape(submission.name)
    return {
        order: f"No finished run: {', '.join(found)}. Submission: {name}."
        for order, found in methods.items()
    }


def _benchmark(run: SubmittedRun) -> Benchmark:
    tasks = [(domain, run.task_fingerprints.get(domain, "")) for domain in run.r_matrix.domains]
    return (*tasks, *_conditions(run).items())


def _conditions(run: SubmittedRun) -> dict[str, str]:
    """What changes the scores of one policy on the same tasks: trials, user and reward basis."""
    cells = [cell for row in run.r_matrix.rows for cell in row.cells.values()]
    trials = max((n for cell in cells for _, n in cell.tasks.values()), default=0)
    rollout, reward = run.config.get("rollout", {}), run.config.get("reward", {})
    return {
        "trials": str(trials),
        "user": str(rollout.get("user", "solo")),
        "reward basis": str(reward.get("basis", "tau2")),
    }


def _head(run: SubmittedRun) -> list[str]:
    order = " → ".join(run.r_matrix.domains)
    releases = run.environment.get("task_releases") or {}
    cells = run.r_matrix.rows[-1].cells
    tasks = "; ".join(
        f"{domain}: {len(cells[domain].tasks)} tasks, {releases.get(domain)}, "
        f"`{run.task_fingerprints.get(domain, '')[:12]}`"
        for domain in run.r_matrix.domains
        if domain in cells
    )
    conditions = ", ".join(f"{name} {_escape(value)}" for name, value in _conditions(run).items())
    columns = ("submission", "method", "policy", "seeds", *_SCORES, "other tasks", "episodes")
    return [
        f"## {order}",
        "",
        f"{tasks}. Conditions: {conditions}.",
        "",
        *_floor_lines(run.r_matrix),
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
    ]


def _floor_lines(matrix: RMatrix) -> list[str]:
    known = {name: facts for name, facts in matrix.facts.items() if facts.floor_tasks is not None}
    if not known:
        return []
    rows = [
        f"| {label} | "
        + " | ".join(_number(getattr(facts, name)) for facts in known.values())
        + " |"
        for name, label in FLOORS.items()
    ]
    return [f"| floor | {' | '.join(known)} |", f"|{'---|' * (len(known) + 1)}", *rows, ""]


def _line(row: _Row) -> str:
    runs = row.runs
    matrices = [run.r_matrix for run in runs]
    scores = [_text(matrices, score) for score in _SCORES.values()]
    rest = [without_floor_tasks(matrix) for matrix in matrices]
    known = [matrix for matrix in rest if matrix is not None]
    other = _text(known, average_performance) if len(known) == len(rest) else _number(None)
    episodes = sum(run.costs.training.rollouts for run in runs) // len(runs)
    policy = _escape(str(runs[0].config.get("model_name_or_path", "?")))
    if initial_model := runs[0].initial_model:
        policy += f" `{initial_model[:8]}`"
    is_part = len(runs) < row.num_planned
    seeds = f"{len(runs)} of {row.num_planned}" if is_part else str(len(runs))
    cells = [_escape(row.submission), _escape(row.method), policy, seeds]
    return f"| {' | '.join([*cells, *scores, other, f'{episodes:,}'])} |"


def _interval(matrices: Sequence[RMatrix], score: Score) -> Interval | None:
    try:
        return score_interval(matrices, score, rng=Random(score.__name__))
    except ConfigError:  # fewer than two tasks in a domain
        return None


def _average(runs: Sequence[SubmittedRun]) -> float:
    return _mean([run.r_matrix for run in runs], average_performance) or 0.0


def _mean(matrices: Sequence[RMatrix], score: Score) -> float | None:
    return mean_or_none(score(matrix.scores()) for matrix in matrices)


def _text(matrices: Sequence[RMatrix], score: Score) -> str:
    interval = _interval(matrices, score)
    if interval is None:  # too few tasks, or one run with rewards between 0 and 1
        return _number(_mean(matrices, score))
    if interval.low == interval.high:
        return f"{interval.estimate:.3f} (no variance)".replace("-", "−")
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]".replace("-", "−")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def _escape(text: str) -> str:
    plain = "".join(char for char in text if char.isprintable())
    for char in "\\|<>[]`*_":
        plain = plain.replace(char, f"\\{char}")
    return plain
