"""How far the policies of a campaign's runs moved, beside what they forgot."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from grpo_cl.metrics.continual import forgetting_by_domain
from grpo_cl.metrics.regression import Fit, least_squares
from grpo_cl.metrics.rmatrix import Drift, RMatrix
from grpo_cl.types import Record

PREDICTORS = {
    "kl_base_old": "KL from the start, on the old domain",
    "kl_previous_old": "KL from the stage before, on the old domain",
    "kl_base_new": "KL from the start, on the domain learned last",
    "kl_previous_new": "KL from the stage before, on the domain learned last",
}


class ForgettingFit(Record):
    """Forgetting by one divergence: a point per run and old domain."""

    predictor: str
    runs: int
    """Runs the points are from; those of one run are not independent."""
    fit: Fit | None


def drift_scores(matrix: RMatrix) -> dict[str, float]:
    """The drift of a run after its last stage, old domains averaged; empty if not measured."""
    last = _last_drifts(matrix)
    if not last:
        return {}
    newest, old = last[-1], last[:-1]
    named: dict[str, float | None] = {
        **{f"{name}_old": _mean(dict(d.numbers())[name] for d in old) for name in _KL},
        **{f"{name}_new": dict(newest.numbers())[name] for name in _KL},
        "distance_base": newest.distance_base,
        "distance_previous": newest.distance_previous,
        "relative_base": newest.relative_base,
        "relative_previous": newest.relative_previous,
    }
    return {name: value for name, value in named.items() if value is not None}


def forgetting_fits(matrices: Sequence[RMatrix]) -> tuple[ForgettingFit, ...]:
    """Forgetting of each old domain of each run on each divergence; empty if none is known."""
    by_run = [found for matrix in matrices if (found := _points(matrix))]
    if not by_run:
        return ()
    return tuple(
        ForgettingFit(
            predictor=name,
            runs=len(by_run),
            fit=least_squares([point[name] for points in by_run for point in points]),
        )
        for name in PREDICTORS
    )


_KL = ("kl_base", "kl_previous")


def _points(matrix: RMatrix) -> list[Mapping[str, tuple[float, float]]]:
    """For each old domain, pairs of a divergence and its forgetting."""
    last = _last_drifts(matrix)
    points: list[Mapping[str, tuple[float, float]]] = []
    for old, lost in zip(last[:-1], forgetting_by_domain(matrix.scores()), strict=False):
        pairs = [(old, "old"), (last[-1], "new")]
        known = {f"{name}_{age}": d.numbers()[name] for d, age in pairs for name in _KL}
        found = {
            name: (kl, lost) for name, kl in known.items() if kl is not None and lost is not None
        }
        if len(found) == len(PREDICTORS):
            points.append(found)
    return points


def _last_drifts(matrix: RMatrix) -> list[Drift]:
    """Of the learned domains after the last of them, in order; empty unless all are known."""
    if not matrix.rows or matrix.rows[-1].after not in matrix.domains:
        return []
    after = matrix.rows[-1].after
    learned = matrix.domains[: matrix.domains.index(after) + 1]
    cells = [matrix.cell(after, domain) for domain in learned]
    drifts = [cell.drift for cell in cells if cell and cell.drift]
    return drifts if len(drifts) == len(learned) else []


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    found = [value for value in known if value is not None]
    return fmean(found) if found and len(found) == len(known) else None
