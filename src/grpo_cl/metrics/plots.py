"""Figures. The only module that imports matplotlib.

A figure is drawn without global state, and its files depend on its data alone: no dates, no random
identifiers, text taken literally.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.continual import backward_transfer_by_domain, forgetting_by_domain
from grpo_cl.metrics.rmatrix import BASE, RMatrix

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, darkest first."""
MARKERS = "osD^vPX"
INK = "#222222"
FORMATS = (".png", ".svg")
LABEL_CHARACTERS = 20
SMOOTHING_SHARE = 0.1
"""Share of a stage's steps that the thick reward line averages over."""

_STYLE: Any = {
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 11,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "grpo-cl",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


class _Stage(NamedTuple):
    start: int
    length: int
    train: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]


def learning_curves(metrics: Mapping[str, Sequence[Any]], domains: Sequence[str]) -> Figure:
    """Training reward by step, stage after stage, with each domain's evaluations over it."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        axes = figure.subplots()
        stages = _stages(metrics, len(domains))
        for number, (domain, stage) in enumerate(zip(domains, stages, strict=True)):
            _draw_stage(axes, stage, domain, number)
        axes.plot([], [], color=INK, linewidth=2.2, label="training, moving mean")
        for number, domain in enumerate(domains):
            _draw_evaluations(axes, stages, domain, number)
        axes.set_xlabel("step")
        axes.set_ylabel("mean reward")
        axes.set_ylim(-0.03, 1.03)
        end = max(1, sum(stage.length for stage in stages))
        axes.set_xlim(-0.015 * end, 1.015 * end)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    return figure


def heat_map(matrix: RMatrix) -> Figure:
    """The R-matrix with its numbers; what was not measured is left blank."""
    scores = matrix.scores()
    stages = [BASE, *matrix.domains][: len(scores)]
    with mpl.rc_context(_STYLE):
        size = (2.6 + 1.3 * len(matrix.domains), 1.9 + 0.6 * max(1, len(stages)))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        for row, values in enumerate(scores):
            for column, value in enumerate(values):
                _draw_score(axes, column, row, value, is_learned=column == row - 1)
        axes.set_xlim(-0.5, len(matrix.domains) - 0.5)
        axes.set_ylim(max(1, len(stages)) - 0.5, -0.5)
        axes.set_xticks(range(len(matrix.domains)), [_label(name) for name in matrix.domains])
        axes.set_yticks(range(len(stages)), [_after(stage) for stage in stages])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title("mean reward by domain; framed: just learned")
    return figure


def forgetting_bars(matrix: RMatrix) -> Figure:
    """What became of each earlier domain: forgetting from its best, and backward transfer."""
    scores = matrix.scores()
    earlier = matrix.domains[: max(0, len(scores) - 2)]
    drops = [None if value is None else -value for value in forgetting_by_domain(scores)]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.4 + 1.5 * max(1, len(earlier)), 3.6), layout="constrained")
        axes = figure.subplots()
        bars = [("since learned", backward_transfer_by_domain(scores)), ("since its best", drops)]
        for number, (label, values) in enumerate(bars):
            _draw_bars(axes, values, label, number)
        axes.axhline(0, color=INK, linewidth=1)
        axes.set_xticks(range(len(earlier)), [_label(name) for name in earlier])
        axes.tick_params(axis="x", length=0)
        ends = [0.1, *(abs(value) for _, values in bars for value in values if value is not None)]
        axes.set_ylim(-1.2 * max(ends), 1.2 * max(ends))
        axes.yaxis.set_major_locator(MaxNLocator(7))
        axes.set_ylabel("change of mean reward")
        if earlier:
            figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=10)
        else:
            axes.text(
                0.5, 0.5, "no domain was followed by another", ha="center", transform=axes.transAxes
            )
    return figure


def save(figure: Figure, path: Path, *, name: str) -> list[Path]:
    """Write to a .png or .svg file, or as ``name`` in both formats into a folder."""
    if path.suffix and path.suffix not in FORMATS:
        raise ConfigError(f"cannot draw {path}; end the name in .png or .svg, or name a folder")
    files = [path] if path.suffix else [path / f"{name}{form}" for form in FORMATS]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_rendered(figure, file.suffix))
    return files


def save_all(folder: Path, metrics: Mapping[str, Sequence[Any]], matrix: RMatrix) -> list[Path]:
    """Write every figure of a run in both formats."""
    figures = {
        "learning_curves": learning_curves(metrics, matrix.domains),
        "r_matrix": heat_map(matrix),
        "forgetting": forgetting_bars(matrix),
    }
    return [file for name, figure in figures.items() for file in save(figure, folder, name=name)]


def inline_svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element for a page that holds others too."""
    text = _rendered(figure, ".svg").decode()
    used = set(re.findall(r'#([^")]+)[")]', text))
    element = text[text.index("<svg") :]
    return re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", element)


def _rendered(figure: Figure, form: str) -> bytes:
    undated: dict[str, Any] = (
        {"Date": None, "Creator": None} if form == ".svg" else {"Software": None}
    )
    file = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(file, format=form[1:], metadata=undated)
    return file.getvalue()


def _stages(metrics: Mapping[str, Sequence[Any]], count: int) -> list[_Stage]:
    train = [metrics.get(f"task_{number}/train", ()) for number in range(count)]
    evaluations = [metrics.get(f"task_{number}/eval", ()) for number in range(count)]
    lengths = [
        max((record["step"] for record in (*trained, *measured)), default=0)
        for trained, measured in zip(train, evaluations, strict=True)
    ]
    starts = [0, *accumulate(lengths)][:count]
    return [_Stage(*parts) for parts in zip(starts, lengths, train, evaluations, strict=True)]


def _draw_stage(axes: Axes, stage: _Stage, domain: str, number: int) -> None:
    if not stage.length:
        return
    colour = _colour(number)
    axes.axvspan(stage.start, stage.start + stage.length, color=colour, alpha=0.07, linewidth=0)
    axes.text(
        stage.start + stage.length / 2,
        1.02,
        f"learning {_label(domain)}",
        ha="center",
        va="bottom",
        color=INK,
        transform=axes.get_xaxis_transform(),
    )
    points = [
        (stage.start + record["step"], record["reward_mean"])
        for record in stage.train
        if record.get("reward_mean") is not None
    ]
    steps = [step for step, _ in points]
    rewards = [reward for _, reward in points]
    axes.plot(steps, rewards, color=colour, alpha=0.35, linewidth=1)
    window = max(1, round(SMOOTHING_SHARE * len(rewards)))
    axes.plot(steps, _smooth(rewards, window), color=colour, linewidth=2.2)


def _draw_evaluations(axes: Axes, stages: Iterable[_Stage], domain: str, number: int) -> None:
    points = [
        (stage.start + record["step"], record["reward_mean"])
        for stage in stages
        for record in stage.evaluations
        if record["domain"] == domain and record.get("reward_mean") is not None
    ]
    if points:
        axes.plot(
            [step for step, _ in points],
            [score for _, score in points],
            color=_colour(number),
            marker=MARKERS[number % len(MARKERS)],
            markersize=8,
            markeredgecolor="white",
            linestyle=":",
            linewidth=1.2,
            label=f"{_label(domain)}, evaluated",
            clip_on=False,
            zorder=3,
        )


def _draw_score(
    axes: Axes, column: int, row: int, value: float | None, *, is_learned: bool
) -> None:
    shade = mpl.colormaps["Blues"](0.05 + 0.85 * (value or 0.0))
    is_dark = value is not None and value > 0.7
    text = "–" if value is None else f"{value:.2f}"
    axes.add_patch(
        Rectangle(
            (column - 0.48, row - 0.46),
            0.96,
            0.92,
            facecolor=shade if value is not None else "white",
            linewidth=0,
        )
    )
    if is_learned:
        axes.add_patch(
            Rectangle(
                (column - 0.48, row - 0.46),
                0.96,
                0.92,
                fill=False,
                edgecolor="#D55E00",
                linewidth=2.5,
            )
        )
    axes.text(
        column, row, text, ha="center", va="center", color="white" if is_dark else INK, fontsize=13
    )


def _draw_bars(axes: Axes, values: Sequence[float | None], label: str, number: int) -> None:
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    bars = axes.bar(
        [place + 0.38 * (number - 0.5) for place, _ in known],
        [value for _, value in known],
        width=0.36,
        color=_colour(number),
        label=label,
    )
    axes.bar_label(bars, [_signed(value) for _, value in known], padding=3)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _smooth(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last ``window`` values at each place."""
    return [
        sum(values[max(0, end - window) : end]) / min(window, end)
        for end in range(1, len(values) + 1)
    ]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _after(stage: str) -> str:
    return "untrained" if stage == BASE else f"after {_label(stage)}"


def _label(name: str) -> str:
    """A name that leaves room for the figure."""
    shown = "".join(char if char.isprintable() else "?" for char in name)
    return shown if len(shown) <= LABEL_CHARACTERS else f"{shown[: LABEL_CHARACTERS - 1]}…"
