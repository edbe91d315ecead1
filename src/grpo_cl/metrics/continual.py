"""Continual-learning scores. Formulas and sources: docs/metrics.md.

``scores[k][j]`` is the score on domain j+1 after learning domain k; row 0 is the untrained policy.
A matrix of an unfinished run ends early; its scores are those of its last stage. A score that needs
a missing cell is None. A cell that is ``NOT_JUDGED`` is left out of every mean.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import comb, isnan, nan
from statistics import fmean, stdev
from typing import NamedTuple, TypedDict

Scores = Sequence[Sequence[float | None]]
Counts = Mapping[str, tuple[int, int]]
"""Successes and trials of each task."""
NOT_JUDGED = nan
"""The score of a domain by a reward component that none of its tasks is judged by."""
MIN_LEARNED = 0.05
"""Retention is undefined for a domain whose score when learned is not above this."""


class ContinualScores(TypedDict):
    """The continual-learning scores of one R-matrix."""

    average_performance: float | None
    average_incremental_performance: float | None
    current_performance: float | None
    learning_accuracy: float | None
    backward_transfer: float | None
    backward_transfer_all: float | None
    forgetting: float | None
    retention: float | None
    forward_transfer: float | None
    intransigence: float | None


def continual_scores(scores: Scores, *, references: Sequence[float | None] = ()) -> ContinualScores:
    """All scores of an R-matrix; ``references`` are needed for intransigence only."""
    return ContinualScores(
        average_performance=average_performance(scores),
        average_incremental_performance=average_incremental_performance(scores),
        current_performance=current_performance(scores),
        learning_accuracy=learning_accuracy(scores),
        backward_transfer=backward_transfer(scores),
        backward_transfer_all=backward_transfer_all(scores),
        forgetting=forgetting(scores),
        retention=retention(scores),
        forward_transfer=forward_transfer(scores),
        intransigence=intransigence(scores, references),
    )


def average_performance(scores: Scores) -> float | None:
    """Mean score over the domains learned so far, after the last of them."""
    last = len(scores) - 1
    return mean_or_none(scores[-1][:last] if last > 0 else ())


def average_incremental_performance(scores: Scores) -> float | None:
    """Mean over stages of the average performance after each stage."""
    return mean_or_none(average_performance(scores[: k + 1]) for k in range(1, len(scores)))


def current_performance(scores: Scores) -> float | None:
    """Score on the domain that was learned last."""
    last = len(scores) - 1
    return scores[last][last - 1] if last > 0 else None


def learning_accuracy(scores: Scores) -> float | None:
    """Mean score on each domain just after it was learned."""
    return mean_or_none(scores[k][k - 1] for k in range(1, len(scores)))


def backward_transfer(scores: Scores) -> float | None:
    """Mean change on earlier domains since each was learned; negative values are forgetting."""
    return mean_or_none(backward_transfer_by_domain(scores))


def backward_transfer_by_domain(scores: Scores) -> list[float | None]:
    """The change on each earlier domain since it was learned."""
    last = len(scores) - 1
    return [_change(scores[j][j - 1], scores[last][j - 1]) for j in range(1, last)]


def backward_transfer_all(scores: Scores) -> float | None:
    """Mean change on earlier domains since each was learned, over every later stage."""
    return mean_or_none(
        _change(scores[j][j - 1], scores[k][j - 1])
        for k in range(2, len(scores))
        for j in range(1, k)
    )


def forgetting(scores: Scores) -> float | None:
    """Mean drop on earlier domains from their best score in any stage since they were learned."""
    return mean_or_none(forgetting_by_domain(scores))


def forgetting_by_domain(scores: Scores) -> list[float | None]:
    """The drop on each earlier domain; negative if the last stage has the best score."""
    last = len(scores) - 1
    return [
        _change(scores[last][j - 1], _best(scores[k][j - 1] for k in range(j, last)))
        for j in range(1, last)
    ]


def isolated_forgetting(scores: Scores) -> list[list[float | None]]:
    """The drop that each stage caused on each earlier domain: ``[k-1][j-1]`` of stage k, domain j.

    A negative entry is a gain. Entries of domains not learned before stage k are None.
    """
    return [
        [_change(after[j], before[j]) if j + 1 < k else None for j in range(len(after))]
        for k, (before, after) in enumerate(pairwise(scores), 1)
    ]


def retention(scores: Scores) -> float | None:
    """Mean ratio of each earlier domain's last score to its score when it was learned."""
    return mean_or_none(retention_by_domain(scores))


def retention_by_domain(scores: Scores) -> list[float | None]:
    """The ratio of each earlier domain; None if it was not learned."""
    last = len(scores) - 1
    pairs = [(scores[j][j - 1], scores[last][j - 1]) for j in range(1, last)]
    return [
        None if learned is None or final is None or learned <= MIN_LEARNED else final / learned
        for learned, final in pairs
    ]


def forward_transfer(scores: Scores) -> float | None:
    """Mean gain over the untrained policy on a domain just before it is learned."""
    return mean_or_none(
        _change(scores[0][j - 1], scores[j - 1][j - 1]) for j in range(2, len(scores))
    )


def intransigence(scores: Scores, references: Sequence[float | None]) -> float | None:
    """Mean difference of ``references``, one score per domain, and the score when learned."""
    learned = range(1, len(scores))
    if len(references) < len(learned):
        return None
    return mean_or_none(_change(scores[k][k - 1], references[k - 1]) for k in learned)


def pass_hat_k(tasks: Counts, k: int) -> float | None:
    """Probability that k trials of a task all succeed (pass^k), unbiased, mean over tasks."""
    return mean_or_none(
        comb(successes, k) / comb(trials, k) if trials >= k else None
        for successes, trials in tasks.values()
    )


def pass_hat_ks(trials: int) -> list[int]:
    """The k for which pass^k is shown, with that many trials of a task."""
    return [k for k in (1, 2, 4, 8) if k <= trials]


def pass_at_k(tasks: Counts, k: int) -> float | None:
    """Probability that one of k trials of a task succeeds (pass@k), unbiased, mean over tasks."""
    return mean_or_none(
        1 - comb(trials - successes, k) / comb(trials, k) if trials >= k else None
        for successes, trials in tasks.values()
    )


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are judged; None if there is no value or one is None."""
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    judged = [value for value in known if not isnan(value)]
    if known and not judged:
        return NOT_JUDGED
    return fmean(judged) if judged else None


class OrderSummary(NamedTuple):
    """The spread of a score over task orders."""

    mean: float
    sd: float | None
    """None for one order."""
    worst: float
    range: float
    orders: int


def order_summary(
    values: Sequence[float | None], *, is_better_high: bool = True
) -> OrderSummary | None:
    """The spread of a score over task orders, one value each; None if one is missing.

    ``worst`` is the smallest value, or the largest of a score such as forgetting.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    spread = stdev(known) if len(known) > 1 else None
    return OrderSummary(
        mean=fmean(known),
        sd=spread,
        worst=min(known) if is_better_high else max(known),
        range=max(known) - min(known),
        orders=len(known),
    )


def _best(values: Iterable[float | None]) -> float | None:
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return max(known)


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
