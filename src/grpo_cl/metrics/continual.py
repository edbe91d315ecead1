"""Continual-learning scores. Formulas and their sources: docs/metrics.md.

``scores[k][j]`` is the score on domain j+1 after learning domain k; row 0 is the untrained policy.
A matrix may end early: every score is then of the last stage it has. A score that needs a missing
cell is None.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import comb
from statistics import fmean, stdev
from typing import NamedTuple, TypedDict

Scores = Sequence[Sequence[float | None]]
Counts = Mapping[str, tuple[int, int]]
"""Successes and trials of each task."""
LEARNED = 0.05
"""A domain whose score was not above this when it was learned has nothing to retain."""


class ContinualScores(TypedDict):
    """What one matrix says about learning and keeping."""

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
    """Every score of this module; ``references`` are only needed for intransigence."""
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
    return _mean(scores[-1][:last] if last > 0 else ())


def average_incremental_performance(scores: Scores) -> float | None:
    """Mean over the stages of the average performance after each."""
    return _mean(average_performance(scores[: k + 1]) for k in range(1, len(scores)))


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


def backward_transfer_all(scores: Scores) -> float | None:
    """Mean change on earlier domains since each was learned, over every later stage."""
    return _mean(
        _change(scores[j][j - 1], scores[k][j - 1])
        for k in range(2, len(scores))
        for j in range(1, k)
    )


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


def isolated_forgetting(scores: Scores) -> list[list[float | None]]:
    """What each stage took from each domain learned before it: ``[k-1][j-1]`` of stage k, domain j.

    A negative entry is a gain. Domains that stage k had yet to reach are None.
    """
    return [
        [_change(after[j], before[j]) if j + 1 < k else None for j in range(len(after))]
        for k, (before, after) in enumerate(pairwise(scores), 1)
    ]


def retention(scores: Scores) -> float | None:
    """Mean share of what each earlier domain's score was when it was learned."""
    return _mean(retention_by_domain(scores))


def retention_by_domain(scores: Scores, *, floor: float = LEARNED) -> list[float | None]:
    """The share each earlier domain kept; None where it was not learned above ``floor``."""
    last = len(scores) - 1
    pairs = [(scores[j][j - 1], scores[last][j - 1]) for j in range(1, last)]
    return [
        None if learned is None or kept is None or learned <= floor else kept / learned
        for learned, kept in pairs
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


class OrderSummary(NamedTuple):
    """How much a score depends on the order in which domains are learned."""

    mean: float
    sd: float | None
    """None for one order."""
    worst: float
    range: float
    orders: int


def order_summary(values: Sequence[float | None]) -> OrderSummary | None:
    """The spread of a score over orders, one value each; None if any is missing or none is given.

    ``worst`` is the least value, so give a score of which more is better.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    spread = stdev(known) if len(known) > 1 else None
    return OrderSummary(
        mean=fmean(known),
        sd=spread,
        worst=min(known),
        range=max(known) - min(known),
        orders=len(known),
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
