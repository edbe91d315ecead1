"""The figures of a campaign, and its tables in Markdown, from its ``results.json`` alone.

    python benchmarks/campaign_figures.py CAMPAIGN_DIR --out docs/images/six
    python benchmarks/campaign_figures.py CAMPAIGN_DIR --markdown

Writes ``six_rmatrix.svg``, ``six_components.svg`` and ``six_differences.svg``, 700 pixels
wide. The same results give the same bytes.
"""

import argparse
from collections.abc import Iterator, Sequence
from math import ceil, floor
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from campaign_tables import decimal, interval_text, p_text, tables
from grpo_cl.campaigns.page import SIGNIFICANT, TITLES, CampaignReport
from grpo_cl.campaigns.results_file import read_results
from grpo_cl.campaigns.summary import MethodScores
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.plots import COLOURS, INK, STYLE, save
from grpo_cl.metrics.rmatrix import BASE, TOOL_ARGUMENTS, TOOL_NAME
from grpo_cl.metrics.statistics import Interval
from grpo_cl.report.intervals import is_beyond_noise

WIDTH = 700 / 96
"""Inches; browsers show 96 pixels per inch."""
COMPONENTS = (TOOL_NAME, TOOL_ARGUMENTS, "DB", "COMMUNICATE")
"""Reward components of the figure; others are in the table."""
PER_LINE = 2
"""Heat maps beside each other."""
GAIN, LOSS = COLOURS[0], COLOURS[1]
NOISE, NOTE = "#777777", "#555555"
COLOUR_MAP = "Blues"
DARK = 0.45
"""Luminance of a cell below which its number is white."""
_LUMINANCE = (0.2126, 0.7152, 0.0722)
_STYLE: Any = {
    **STYLE,
    "font.size": 9,
    "axes.titlesize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}
_NOTE: Any = {"fontsize": 9, "color": NOTE}


class Heat(NamedTuple):
    """The colour scale of all heat maps of a figure."""

    limits: Normalize

    def colour(self, value: float) -> tuple[float, float, float]:
        """The colour of a cell."""
        red, green, blue, _ = mpl.colormaps[COLOUR_MAP](float(self.limits(value)))
        return red, green, blue

    def text_colour(self, value: float) -> str:
        """The colour in which a cell's number is readable."""
        parts = zip(_LUMINANCE, self.colour(value), strict=True)
        return "white" if sum(weight * part for weight, part in parts) < DARK else INK


class Dot(NamedTuple):
    """An estimate in a row of a plot, with its interval if it has one."""

    row: int
    estimate: float
    interval: Interval | None
    is_significant: bool


def matrix_figure(report: CampaignReport, rows: Sequence[MethodScores]) -> Figure:
    """The mean R-matrix of each algorithm as a heat map, all in one colour scale."""
    order = rows[0].order
    means = [_mean_matrix(report, row) for row in rows]
    heat = _heat([value for matrix in means for line in matrix for value in line])
    columns = min(PER_LINE, len(rows))
    lines = ceil(len(rows) / columns)
    height = lines * (0.31 * (len(order) + 1) + 1.0)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    places = [axes for line in grid for axes in line]
    for axes, row, matrix in zip(places, rows, means, strict=False):
        _draw_matrix(axes, order, matrix, heat)
        axes.set_title(f"{row.label}, mean of {_count(row.finished, 'seed')}")
    for axes in places[len(rows) :]:
        axes.set_visible(False)
    bar = figure.colorbar(
        ScalarMappable(heat.limits, COLOUR_MAP), ax=places, pad=0.015, aspect=14 * lines
    )
    bar.set_label("mean reward on test tasks")
    bar.outline.set_visible(False)
    figure.supxlabel("outlined: the domain of the stage", **_NOTE)
    return figure


def component_figure(report: CampaignReport, rows: Sequence[MethodScores]) -> Figure:
    """The backward transfer of each reward component, a panel for each."""
    titles = report.components(rows)
    names = [name for name in COMPONENTS if name in titles] or [*titles]
    figure = Figure(figsize=(WIDTH, _plot_height(rows)), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, len(names), squeeze=False, sharex=True)[0]
    for axes, name in zip(panels, names, strict=True):
        _draw_dots(axes, list(_changes(rows, name)), num_rows=len(rows))
        axes.set_title(titles[name])
        axes.set_yticks(range(len(rows)), [row.label for row in rows] if axes is panels[0] else [])
    figure.supxlabel(
        "backward transfer with its 95 % interval over seeds; filled: the interval excludes zero",
        **_NOTE,
    )
    return figure


def difference_figure(report: CampaignReport, rows: Sequence[MethodScores]) -> Figure:
    """The primary score of each algorithm minus that of the reference."""
    summary = report.summary
    others = [row for row in rows if row.label != summary.reference]
    figure = Figure(figsize=(WIDTH, _plot_height(others)), layout="constrained")
    axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=(1, 0.75))
    beside.set_axis_off()
    _draw_dots(axes, list(_differences(others, summary.primary)), num_rows=len(others))
    axes.set_yticks(range(len(others)), [row.label for row in others])
    reference = next((row for row in rows if row.label == summary.reference), None)
    score = reference.scores[summary.primary] if reference else None
    value = f" ({decimal(score.estimate)})" if score else ""
    axes.set_xlabel(f"{TITLES[summary.primary]} minus {summary.reference}{value}")
    found = [row.differences.get(summary.primary) for row in others]
    texts = [interval_text(one.difference if one else None, sign="+") for one in found]
    _write_column(beside, 0.0, "difference [95 % interval]", texts)
    _write_column(beside, 0.75, "p (Holm)", [p_text(one.p_holm if one else None) for one in found])
    figure.supxlabel(f"filled: p (Holm) below {decimal(SIGNIFICANT).rstrip('0')}", **_NOTE)
    return figure


def _mean_matrix(report: CampaignReport, row: MethodScores) -> list[list[float | None]]:
    matrices = report.matrices(row)
    return [
        [report.means(matrices, after, domain).mean for domain in row.order]
        for after in (BASE, *row.order)
    ]


def _heat(values: Sequence[float | None]) -> Heat:
    """The colour scale from the lowest to the highest tenth."""
    known = [value for value in values if value is not None]
    return Heat(Normalize(floor(10 * min(known)) / 10, ceil(10 * max(known)) / 10))


def _draw_matrix(
    axes: Axes, order: Sequence[str], matrix: Sequence[Sequence[float | None]], heat: Heat
) -> None:
    """Rows are stages, columns domains; the cell of a stage's own domain is outlined."""
    for y, line in enumerate(matrix):
        for x, value in enumerate(line):
            if value is not None:
                _draw_cell(axes, x, y, value, heat)
    for stage in range(len(order)):
        outline = Rectangle(
            (stage - 0.46, stage + 0.54), 0.92, 0.92, fill=False, edgecolor=LOSS, linewidth=2
        )
        axes.add_patch(outline)
    axes.set_xlim(-0.5, len(order) - 0.5)
    axes.set_ylim(len(order) + 0.5, -0.5)
    axes.set_xticks(range(len(order)), order, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(order) + 1), [BASE, *(f"after {domain}" for domain in order)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_cell(axes: Axes, x: int, y: int, value: float, heat: Heat) -> None:
    axes.add_patch(
        Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=heat.colour(value), edgecolor="white")
    )
    text = f"{value:.2f}".replace("0.", ".", 1)
    axes.text(x, y, text, ha="center", va="center_baseline", color=heat.text_colour(value))


def _changes(rows: Sequence[MethodScores], component: str) -> Iterator[Dot]:
    for number, row in enumerate(rows):
        change = row.component_changes.get(component)
        if change:
            is_known = change.interval is not None and is_beyond_noise(change.interval)
            yield Dot(number, change.mean, change.interval, is_known)


def _differences(rows: Sequence[MethodScores], score: str) -> Iterator[Dot]:
    for number, row in enumerate(rows):
        found = row.differences.get(score)
        if found:
            is_significant = found.p_holm is not None and found.p_holm < SIGNIFICANT
            yield Dot(number, found.difference.estimate, found.difference, is_significant)


def _draw_dots(axes: Axes, dots: Sequence[Dot], *, num_rows: int) -> None:
    """Dots with their intervals around zero: filled if significant, hollow otherwise."""
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    for dot in dots:
        colour = (GAIN if dot.estimate > 0 else LOSS) if dot.is_significant else NOISE
        if dot.interval:
            axes.plot([dot.interval.low, dot.interval.high], [dot.row] * 2, color=colour, zorder=2)
        fill = colour if dot.is_significant else "white"
        axes.plot(dot.estimate, dot.row, "o", color=colour, markerfacecolor=fill, markersize=5)
    axes.set_ylim(num_rows - 0.4, -0.6)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)


def _write_column(axes: Axes, x: float, head: str, texts: Sequence[str]) -> None:
    """Text beside each row of a plot, under a head."""
    place = axes.get_yaxis_transform()
    axes.text(x, -1, head, transform=place, va="center_baseline", color=NOTE)
    for number, text in enumerate(texts):
        axes.text(x, number, text, transform=place, va="center_baseline")


def _plot_height(rows: Sequence[MethodScores]) -> float:
    return 0.9 + 0.25 * len(rows)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _sorted_by_score(rows: Sequence[MethodScores], score: str) -> list[MethodScores]:
    """The best first; algorithms without the score last."""
    sign = 1 if score == "forgetting" else -1

    def place(row: MethodScores) -> tuple[bool, float]:
        found = row.scores[score]
        return found is None, sign * found.estimate if found else 0.0

    return sorted(rows, key=place)


def _chosen(
    report: CampaignReport, rows: Sequence[MethodScores], labels: Sequence[str]
) -> list[MethodScores]:
    """The algorithms called ``labels``; by default the reference and the best of the others."""
    by_label = {row.label: row for row in rows}
    for label in labels:
        if label not in by_label:
            raise ConfigError(f"no finished run of {label!r}; there are {', '.join(by_label)}")
    if labels:
        return [by_label[label] for label in labels]
    summary = report.summary
    others = [row for row in rows if row.label != summary.reference]
    best = _sorted_by_score(others, summary.primary)[:1]
    return [row for row in rows if row.label == summary.reference] + best


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the figures, print the tables, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", type=Path, help="directory of a campaign")
    parser.add_argument("--out", type=Path, help="beginning of the figures' file names")
    parser.add_argument("--algorithms", nargs="+", default=[], help="labels, for the R-matrix")
    parser.add_argument("--order", nargs="+", help="default: the campaign's first task order")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    options = parser.parse_args(arguments)
    report = read_results(options.campaign)
    order = tuple(options.order or report.orders[0])
    rows = [row for row in report.rows(order) if row.finished]
    if not rows:
        raise ConfigError(f"no finished run in the order {' → '.join(order)}")
    chosen = _chosen(report, rows, options.algorithms)
    if options.markdown:
        print(tables(report, rows, [row.label for row in chosen]))
    if options.out is not None:
        for name, figure in _figures(report, rows, chosen).items():
            save(figure, options.out.with_name(f"{options.out.name}_{name}.svg"), name=name)


def _figures(
    report: CampaignReport, rows: Sequence[MethodScores], chosen: Sequence[MethodScores]
) -> dict[str, Figure]:
    """The figures for which the campaign has numbers, by name."""
    ranked = _sorted_by_score(rows, "average_performance")
    with mpl.rc_context(_STYLE):
        figures = {"rmatrix": matrix_figure(report, chosen)}
        if report.components(rows):
            figures["components"] = component_figure(report, ranked)
        if len(rows) > 1:
            figures["differences"] = difference_figure(report, ranked)
    return figures


if __name__ == "__main__":
    main()
