"""Scores of methods, each with its interval, and what sets them apart from a baseline."""

from collections.abc import Mapping, Sequence
from random import Random

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.bootstrap import Score, bootstrap_interval, shared_tasks
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.metrics.statistics import Interval, holm, seed_difference, seed_interval
from grpo_cl.types import Record


class Comparison(Record):
    """One method against the baseline."""

    difference: Interval
    """The method's score less the baseline's."""
    p_value: float | None
    p_holm: float | None
    """The p value that holds for all comparisons at once."""


def score_interval(runs: Sequence[RMatrix], score: Score, *, rng: Random) -> Interval | None:
    """A method's score over its seeds; of a single run, with the noise of its evaluation.

    ``runs`` differ in their seeds only. None where the score is missing in one of them.
    """
    return _interval(runs, (), score, rng)


def compare(
    methods: Mapping[str, Sequence[RMatrix]], baseline: str, score: Score, *, rng: Random
) -> dict[str, Comparison | None]:
    """Every other method's difference from ``baseline``, corrected for how many there are."""
    if baseline not in methods:
        raise ConfigError(
            f"the baseline {baseline!r} has no runs; methods with runs: {', '.join(methods)}"
        )
    found = {
        name: _interval(runs, methods[baseline], score, rng)
        for name, runs in methods.items()
        if name != baseline
    }
    p_values = {name: interval.p_value if interval else None for name, interval in found.items()}
    corrected = holm(p_values)
    return {
        name: None
        if interval is None
        else Comparison(difference=interval, p_value=p_values[name], p_holm=corrected[name])
        for name, interval in found.items()
    }


def _interval(
    runs: Sequence[RMatrix], baseline: Sequence[RMatrix], score: Score, rng: Random
) -> Interval | None:
    if min(len(group) for group in (runs, baseline or runs)) < 2:
        return bootstrap_interval(runs, score, rng=rng, baseline=baseline)
    values, others = ([score(run.scores()) for run in group] for group in (runs, baseline))
    known = [value for value in values if value is not None]
    known_others = [value for value in others if value is not None]
    if len(known) + len(known_others) < len(values) + len(others):
        return None
    tasks = sum(len(ids) for ids in shared_tasks([*runs, *baseline]).values())
    if baseline:
        return seed_difference(known, known_others, tasks=tasks)
    return seed_interval(known, tasks=tasks)
