"""The tables of a campaign in Markdown, from its ``results.json``."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.campaigns.components import ComponentChange
from grpo_cl.campaigns.page import TITLES, CampaignReport
from grpo_cl.campaigns.summary import MethodScores, OrderScores
from grpo_cl.metrics.comparisons import Comparison
from grpo_cl.metrics.rmatrix import BASE
from grpo_cl.metrics.statistics import Interval
from grpo_cl.metrics.tables import Table, markdown

SEED_SCORES = ("average_performance", "backward_transfer")
"""Scores of each run."""
MIN_P = 0.0005
"""Smaller p-values have no digit among three."""


class Section(NamedTuple):
    """A table and the sentence before it."""

    title: str
    table: Table


def tables(report: CampaignReport, rows: Sequence[MethodScores], shown: Sequence[str]) -> str:
    """The tables of algorithms in one task order; of those in ``shown`` also the R-matrix."""
    sections = [
        Section("Scores, with 95 % confidence intervals over seeds:", _scores(report, rows)),
        Section(
            "Mean R-matrix over seeds:",
            _matrices(report, [row for row in rows if row.label in shown]),
        ),
        Section("Backward transfer by reward component, exploratory:", _components(report, rows)),
        Section(
            f"{', '.join(TITLES[name] for name in SEED_SCORES).capitalize()} of each run:",
            _seeds(report, rows),
        ),
    ]
    if report.summary.orders:
        sections.append(Section("Over all task orders, exploratory:", _orders(report)))
    return "\n\n".join(f"{title}\n\n{markdown(table)}" for title, table in sections)


def decimal(value: float | None, *, sign: str = "") -> str:
    """A number with three digits, without the zero before the point; a dash for None."""
    if value is None:
        return "–"
    # A negative number that rounds to zero keeps its sign: an interval up to −.000 excludes zero.
    text = f"{value or 0.0:{sign}.3f}"
    return re.sub(r"(?<!\d)0\.", ".", text).replace("-", "−")


def interval_text(interval: Interval | None, *, sign: str = "") -> str:
    """An estimate and the ends of its interval; a dash for None."""
    if interval is None:
        return "–"
    estimate, low, high = (
        decimal(value, sign=sign) for value in (interval.estimate, interval.low, interval.high)
    )
    return estimate if low == high else f"{estimate} [{low}, {high}]"


def p_text(p: float | None) -> str:
    """A p-value with three digits; a dash for None."""
    if p is None:
        return "–"
    return "<.001" if p < MIN_P else decimal(p)


def _scores(report: CampaignReport, rows: Sequence[MethodScores]) -> Table:
    primary, reference = report.summary.primary, report.summary.reference
    names = dict.fromkeys((primary, *SEED_SCORES, "learning_accuracy"))
    heads = [TITLES[name] for name in names]
    return Table(
        ("algorithm", "runs", *heads, f"{TITLES[primary]} minus `{reference}`", "p (Holm)"),
        [
            (
                f"`{row.label}`",
                f"{row.finished} of {row.planned}",
                *(interval_text(row.scores[name]) for name in names),
                *_difference(row, primary, is_reference=row.label == reference),
            )
            for row in rows
        ],
    )


def _difference(row: MethodScores, score: str, *, is_reference: bool) -> tuple[str, str]:
    found = row.differences.get(score)
    if is_reference or found is None:
        return ("", "") if is_reference else ("–", "–")
    return interval_text(found.difference, sign="+"), p_text(found.p_holm)


def _matrices(report: CampaignReport, rows: Sequence[MethodScores]) -> Table:
    order = rows[0].order
    lines: list[tuple[str, ...]] = []
    for row in rows:
        matrices = report.matrices(row)
        for after in (BASE, *order):
            means = [report.means(matrices, after, domain).mean for domain in order]
            lines.append((f"`{row.label}`", after, *map(decimal, means)))
    return Table(("algorithm", "after", *order), [*lines])


def _components(report: CampaignReport, rows: Sequence[MethodScores]) -> Table:
    titles = report.components(rows)
    return Table(
        ("algorithm", *titles.values()),
        [
            (f"`{row.label}`", *(_change(row.component_changes.get(name)) for name in titles))
            for row in rows
        ],
    )


def _change(change: ComponentChange | None) -> str:
    if change is None or change.interval is None:
        return decimal(change.mean if change else None)
    return interval_text(change.interval)


def _seeds(report: CampaignReport, rows: Sequence[MethodScores]) -> Table:
    lines: list[tuple[str, ...]] = []
    for row in rows:
        runs = {run.seed: run.scores for run in report.results.finished(row.label, row.order)}
        cells = [
            ", ".join(decimal(runs[seed].get(name)) for name in SEED_SCORES)
            if seed in runs
            else "–"
            for seed in report.campaign.seeds
        ]
        lines.append((f"`{row.label}`", *cells))
    return Table(("algorithm", *(f"seed {seed}" for seed in report.campaign.seeds)), [*lines])


def _orders(report: CampaignReport) -> Table:
    reference = report.summary.reference
    heads = [head for name in SEED_SCORES for head in (TITLES[name], "worst order", "range")]
    difference = f"{TITLES[report.summary.primary]} minus `{reference}`"
    return Table(
        ("algorithm", "seeds", *heads, difference, "p"),
        [_order_row(row, report.summary.primary) for row in report.summary.orders],
    )


def _order_row(row: OrderScores, primary: str) -> tuple[str, ...]:
    cells = [f"`{row.label}`", str(row.seeds)]
    for name in SEED_SCORES:
        spread = row.spread[name]
        extremes = (spread.worst, spread.range) if spread else (None, None)
        cells += [interval_text(row.scores[name]), *map(decimal, extremes)]
    found: Comparison | None = row.differences[primary]
    cells += (
        [interval_text(found.difference, sign="+"), p_text(found.p_value)] if found else ["", ""]
    )
    return tuple(cells)
