"""The tables of a campaign's page."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from grpo_cl.bench.drift import PREDICTORS, ForgettingFit
from grpo_cl.bench.results import Gathered, RunResult
from grpo_cl.bench.summary import MethodScores, OrderScores
from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.metrics.statistics import Interval
from grpo_cl.report.html import Html, join, number, table, tag, words

TITLES = {
    "average_performance": "average performance",
    "learning_accuracy": "learning accuracy",
    "backward_transfer": "backward transfer",
    "forgetting": "forgetting",
    "forward_transfer": "forward transfer",
}
_SIGNED = {"backward_transfer", "forgetting", "forward_transfer"}
_LEDGER = {
    "steps": "updates",
    "rollouts": "rollouts",
    "turns": "turns",
    "environment_steps": "environment steps",
    "generated_tokens": "tokens generated",
    "trained_tokens": "tokens trained on",
    "simulator_calls": "simulator calls",
}
_DRIFT = {
    "kl_base_old": ("KL from start, old domains", ".4f"),
    "kl_base_new": ("new domain", ".4f"),
    "kl_previous_old": ("KL from the stage before, old domains", ".4f"),
    "kl_previous_new": ("new domain", ".4f"),
    "distance_base": ("distance from start", ".4g"),
    "relative_base": ("relative", ".2%"),
    "distance_previous": ("from the stage before", ".4g"),
    "relative_previous": ("relative", ".2%"),
    "stability_gap": ("stability gap", ".3f"),
    "worst_case_performance": ("worst-case performance", ".3f"),
}
PARTS = ("average_performance", "backward_transfer", "forgetting")
DARK = 0.7
"""Shares above this need light text."""


def score_table(
    rows: Sequence[MethodScores], gathered: Gathered, seconds: dict[str, float]
) -> Html:
    """Every algorithm with its scores, what it keeps and what it costs."""
    known = {method.label: method for method in gathered.methods}
    body = [
        (
            row.label,
            f"{row.finished} of {row.planned}",
            *(interval_cell(row.scores[name], name) for name in TITLES),
            words(known[row.label].stores),
            words("yes" if known[row.label].needs_domain else "no"),
            number(row.costs.get("rollouts"), ",.0f"),
            number(seconds.get(row.label), ",.0f"),
        )
        for row in rows
    ]
    head = ("algorithm", "runs", *TITLES.values(), "keeps", "is told the domain")
    return table((*head, "rollouts", "seconds"), body)


def difference_table(rows: Sequence[MethodScores], names: Sequence[str]) -> Html:
    """Every algorithm's difference from the reference, and the chance of seeing it by luck."""
    body = [
        (row.label, *(cell for name in names for cell in _difference(row, name))) for row in rows
    ]
    heads = [head for name in names for head in (f"Δ {TITLES[name]}", "p", "p, Holm")]
    return table(("algorithm", *heads), body)


def cost_table(rows: Sequence[MethodScores], gathered: Gathered, seconds: dict[str, float]) -> Html:
    """The training ledger of every algorithm, a mean over its runs."""
    known = {method.label: method for method in gathered.methods}
    body = [
        (
            row.label,
            *(number(row.costs.get(name), ",.0f") for name in _LEDGER),
            number(seconds.get(row.label), ",.0f"),
            words({True: "yes", False: "no", None: "unknown"}[row.is_matched]),
            tag("td", known[row.label].cost, class_="text long"),
        )
        for row in rows
    ]
    return table(
        ("algorithm", *_LEDGER.values(), "seconds", "matched", "extra cost of a step"), body
    )


def component_table(rows: Sequence[MethodScores], parts: dict[str, str]) -> Html | None:
    """How much of each reward component was kept; None if none was measured."""
    present = list(dict.fromkeys(n for row in rows for n in row.components))
    ordered = [*(n for n in parts if n in present), *(n for n in present if n not in parts)]
    if not ordered:
        return None
    body = [
        (
            row.label,
            *(_change(row.components.get(name, {}).get("backward_transfer")) for name in ordered),
        )
        for row in rows
    ]
    return table(("algorithm", *(parts.get(name, name) for name in ordered)), body)


def drift_table(rows: Sequence[MethodScores]) -> Html | None:
    """How far the policies moved and how low they fell, means over runs; None if not measured."""
    if not any(row.drift for row in rows):
        return None
    body = [
        (row.label, *(number(row.drift.get(name), form) for name, (_, form) in _DRIFT.items()))
        for row in rows
    ]
    return table(("algorithm", *(title for title, _ in _DRIFT.values())), body)


def fit_table(fits: Sequence[ForgettingFit]) -> Html:
    """Lines of forgetting by each divergence."""
    body = [
        (
            PREDICTORS[found.predictor],
            number(found.fit.slope if found.fit else None, "+.3f"),
            number(found.fit.intercept if found.fit else None, "+.3f"),
            number(found.fit.r_squared if found.fit else None),
            number(found.fit.points if found.fit else None, "d"),
            number(found.runs, "d"),
        )
        for found in fits
    ]
    return table(("forgetting by", "slope per nat", "intercept", "R²", "n", "runs"), body)


def order_table(rows: Sequence[OrderScores], names: Sequence[str]) -> Html:
    """Scores over all orders of an algorithm."""
    body = [
        (
            row.label,
            number(row.seeds, "d"),
            *(cell for name in names for cell in _order_cells(row, name)),
        )
        for row in rows
    ]
    heads = [
        head for name in names for head in (TITLES[name], "sd over orders", "worst order", "range")
    ]
    return table(("algorithm", "seeds", *heads), body)


def matrix_table(label: str, runs: Sequence[RunResult]) -> Html:
    """The mean R-matrix of runs that differ in their seeds only."""
    matrices = [run.r_matrix for run in runs if run.r_matrix]
    domains = matrices[0].domains
    head = tag("tr", tag("th", "after", scope="col"), *(tag("th", d, scope="col") for d in domains))
    body = [
        tag(
            "tr",
            tag("th", "untrained" if after == BASE else after, scope="row"),
            *(_shaded(matrices, after, domain) for domain in domains),
        )
        for after in (BASE, *domains)
    ]
    caption = tag("caption", f"{label}, mean of {len(matrices)}")
    inner = tag("table", caption, tag("thead", head), tag("tbody", *body), class_="matrix")
    return tag("div", inner, class_="scroll")


def interval_cell(interval: Interval | None, name: str) -> Html:
    """An estimate with its interval in small print."""
    if interval is None:
        return tag("td", number(None))
    form = "+.3f" if name in _SIGNED else ".3f"
    if interval.degrees is None:
        return tag("td", number(interval.estimate, form), tag("small", " no spread seen"))
    ends = (" [", number(interval.low, form), ", ", number(interval.high, form), "]")
    return tag("td", number(interval.estimate, form), tag("small", *ends))


def _difference(row: MethodScores, name: str) -> Iterator[Html]:
    found = row.differences.get(name)
    if found is None:
        yield from (tag("td", number(None)) for _ in range(3))
        return
    shown = interval_cell(found.difference, "backward_transfer")
    yield shown
    yield tag("td", number(found.p_value))
    yield tag("td", number(found.p_holm))


def _order_cells(row: OrderScores, name: str) -> Iterator[Html]:
    yield interval_cell(row.scores[name], name)
    spread = row.spread[name]
    values = (spread.sd, spread.worst, spread.range) if spread else (None, None, None)
    yield from (tag("td", number(value)) for value in values)


def _change(value: float | None) -> Html:
    shade = None if not value else "worse" if value < 0 else "better"
    return tag("td", number(value, "+.3f"), class_=shade)


def _shaded(matrices: Sequence[RMatrix], after: str, domain: str) -> Html:
    cells = [matrix.cell(after, domain) for matrix in matrices]
    known = [cell.mean for cell in cells if cell is not None]
    frame = "learned" if after == domain else None
    if not known:
        return tag("td", number(None), class_=frame)
    share = min(1.0, max(0.0, fmean(known)))
    red, green, blue = (round(255 - share * (255 - end)) for end in (33, 113, 181))
    ink = "#fff" if share > DARK else "#222"
    return tag(
        "td",
        number(fmean(known)),
        class_=frame,
        style=f"background: rgb({red}, {green}, {blue}); color: {ink}",
        title=join(f"{value:.3f} " for value in known).strip(),
    )


def spent_table(gathered: Gathered) -> Html:
    """What all processes of a campaign did, each once."""
    counted = gathered.spent.model_dump()
    body = [
        (
            kind,
            *(number(counted[kind][name], ",d") for name in _LEDGER),
            number(sum(times[kind] for times in gathered.own_times.values()), ",.0f"),
        )
        for kind in ("training", "evaluation")
    ]
    return table(("what", *_LEDGER.values(), "seconds"), body)
