"""Policy drift of a campaign's runs, and the regression of forgetting on drift."""

from collections.abc import Mapping, Sequence

from grpo_cl.metrics.continual import forgetting_by_domain, mean_or_none
from grpo_cl.metrics.rmatrix import Drift, RMatrix
from grpo_cl.metrics.statistics import LinearFit, least_squares
from grpo_cl.types import Record

PREDICTORS = {
    "kl_base_old": "KL from the start, on the old domain",
    "kl_previous_old": "KL from the previous stage, on the old domain",
    "kl_base_new": "KL from the start, on the domain learned last",
    "kl_previous_new": "KL from the previous stage, on the domain learned last",
}


class ForgettingFit(Record):
    """The regression of forgetting on one divergence, with a point per run and old domain."""

    predictor: str
    runs: int
    """Runs that have points; the points of one run are not independent."""
    fit: LinearFit | None


def drift_scores(matrix: RMatrix) -> dict[str, float]:
    """The drift of a run after its last stage, averaged over old domains; empty if not measured."""
    drifts = _last_drifts(matrix)
    if not drifts:
        return {}
    *old, newest = drifts
    scores: dict[str, float | None] = {
        **{f"{name}_old": mean_or_none(d.numbers()[name] for d in old) for name in _KL},
        **{f"{name}_new": newest.numbers()[name] for name in _KL},
        "distance_base": newest.distance_base,
        "distance_previous": newest.distance_previous,
        "relative_base": newest.relative_base,
        "relative_previous": newest.relative_previous,
    }
    return {name: value for name, value in scores.items() if value is not None}


def forgetting_fits(matrices: Sequence[RMatrix]) -> tuple[ForgettingFit, ...]:
    """The regressions of forgetting on each divergence; empty if drift was not measured."""
    by_run = [points for matrix in matrices if (points := _points(matrix))]
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
    """For each old domain, pairs of each divergence and the forgetting."""
    drifts = _last_drifts(matrix)
    points: list[Mapping[str, tuple[float, float]]] = []
    for old, forgetting in zip(drifts[:-1], forgetting_by_domain(matrix.scores()), strict=False):
        pairs = [(old, "old"), (drifts[-1], "new")]
        divergences = {f"{name}_{age}": d.numbers()[name] for d, age in pairs for name in _KL}
        point = {
            name: (kl, forgetting)
            for name, kl in divergences.items()
            if kl is not None and forgetting is not None
        }
        if len(point) == len(PREDICTORS):
            points.append(point)
    return points


def _last_drifts(matrix: RMatrix) -> list[Drift]:
    """The drift on each learned domain after the last stage; empty unless all are known."""
    if not matrix.rows or matrix.rows[-1].after not in matrix.domains:
        return []
    after = matrix.rows[-1].after
    learned = matrix.domains[: matrix.domains.index(after) + 1]
    cells = [matrix.cell(after, domain) for domain in learned]
    drifts = [cell.drift for cell in cells if cell and cell.drift]
    return drifts if len(drifts) == len(learned) else []
