"""Continual-learning scores. Formulas and their sources: docs/metrics.md.

``scores[k][j]`` is the score on domain j+1 after learning domain k; row 0 is the untrained policy.
A matrix may end early: every score is then of the last stage it has. A score that needs a missing
cell is None.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import TypedDict

Scores = Sequence[Sequence[float | None]]
Counts = Mapping[str, tuple[int, int]]
"""Successes and trials of each task."""


class ContinualScores(TypedDict):
    """What one matrix says about learning and keeping."""

    average_performance: float | None
    current_performance: float | None
    learning_accuracy: float | None
    backward_transfer: float | None
    forgetting: float | None
    forward_transfer: float | None
    intransigence: float | None


def continual_scores(scores: Scores, *, references: Sequence[float | None] = ()) -> ContinualScores:
    """Every score of this module; ``references`` are only needed for intransigence."""
    return ContinualScores(
        average_performance=average_performance(scores),
        current_performance=current_performance(scores),
        learning_accuracy=learning_accuracy(scores),
        backward_transfer=backward_transfer(scores),
        forgetting=forgetting(scores),
        forward_transfer=forward_transfer(scores),
        intransigence=intransigence(scores, references),
    )


def average_performance(scores: Scores) -> float | None:
    """Mean score over the domains learned so far, after the last of them."""
    last = len(scores) - 1
    return _mean(scores[-1][:last] if last > 0 else ())


def current_performance(scores: Scores) -> float | None:
    """Score on the domain that was learned last."""
    last = len(scores) - 1
    return scores[last][last - 1] if last > 0 else None


def learning_accuracy(scores: Scores) -> float | None:
    """Mean score on each domain just after it was learned."""
    return _mean(scores[k][k - 1] for k in range(1, len(scores)))


def backward_transfer(scores: Scores) -> float | None:
    """Mean change on earlier domains since each was learned; negative means forgotten."""
    return _mean(backward_transfer_by_domain(scores))


def backward_transfer_by_domain(scores: Scores) -> list[float | None]:
    """The change on each earlier domain since it was learned."""
    last = len(scores) - 1
    return [_change(scores[j][j - 1], scores[last][j - 1]) for j in range(1, last)]


def forgetting(scores: Scores) -> float | None:
    """Mean drop on earlier domains from the best score any stage since had on them."""
    return _mean(forgetting_by_domain(scores))


def forgetting_by_domain(scores: Scores) -> list[float | None]:
    """The drop on each earlier domain; negative if the last stage is the best."""
    last = len(scores) - 1
    return [
        _change(scores[last][j - 1], _best(scores[k][j - 1] for k in range(j, last)))
        for j in range(1, last)
    ]


def forward_transfer(scores: Scores) -> float | None:
    """Mean gain on a domain from learning those before it, against the untrained policy."""
    return _mean(_change(scores[0][j - 1], scores[j - 1][j - 1]) for j in range(2, len(scores)))


def intransigence(scores: Scores, references: Sequence[float | None]) -> float | None:
    """Mean shortfall on each new domain against ``references``, one score per domain."""
    learned = range(1, len(scores))
    if len(references) < len(learned):
        return None
    return _mean(_change(scores[k][k - 1], references[k - 1]) for k in learned)


def pass_hat_k(tasks: Counts, k: int) -> float | None:
    """Chance that k plays of a task all succeed (pass^k), unbiased, mean over tasks."""
    return _mean(
        comb(successes, k) / comb(trials, k) if trials >= k else None
        for successes, trials in tasks.values()
    )


def pass_at_k(tasks: Counts, k: int) -> float | None:
    """Chance that one of k plays of a task succeeds (pass@k), unbiased, mean over tasks."""
    return _mean(
        1 - comb(trials - successes, k) / comb(trials, k) if trials >= k else None
        for successes, trials in tasks.values()
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return fmean(known) if known else None


def _best(values: Iterable[float | None]) -> float | None:
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return max(known)


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
