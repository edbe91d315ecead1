"""The learning curves of a run as a file. The only module that imports matplotlib.

A plot uses no global state, and its file depends on its data alone: no dates, no random
identifiers, no markup in texts.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_cl.errors import ConfigError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
"""Okabe and Ito's colour-blind safe palette, darkest first."""
MARKERS = "osD^vPX"
INK = "#222222"
FORMATS = (".png", ".svg")
LABEL_CHARACTERS = 20
SMOOTHING_SHARE = 0.1
"""Window of the moving mean, as a share of a stage's steps."""

STYLE: Any = {
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
"""Settings of matplotlib in which a figure is drawn and saved."""


class _Stage(NamedTuple):
    start: int
    length: int
    train: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]


def learning_curves(metrics: Mapping[str, Sequence[Any]], domains: Sequence[str]) -> Figure:
    """Training reward by step over all stages, with the evaluations of each domain."""
    with mpl.rc_context(STYLE):
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


def save(figure: Figure, path: Path, *, name: str) -> list[Path]:
    """Write to a .png or .svg file, or as ``name`` in both formats into a directory."""
    if path.suffix and path.suffix not in FORMATS:
        raise ConfigError(
            f"cannot plot to {path}; the name must end in .png or .svg, or be a directory"
        )
    files = [path] if path.suffix else [path / f"{name}{form}" for form in FORMATS]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_render(figure, file.suffix))
    return files


def _render(figure: Figure, form: str) -> bytes:
    metadata: dict[str, Any] = (
        {"Date": None, "Creator": None} if form == ".svg" else {"Software": None}
    )
    file = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(file, format=form[1:], metadata=metadata)
    return file.getvalue()


def _stages(metrics: Mapping[str, Sequence[Any]], count: int) -> list[_Stage]:
    train = [metrics.get(f"task_{number}/train", ()) for number in range(count)]
    evaluations = [metrics.get(f"task_{number}/eval", ()) for number in range(count)]
    lengths = [
        max((record["step"] for record in (*steps, *evaluated)), default=0)
        for steps, evaluated in zip(train, evaluations, strict=True)
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


def _smooth(values: Sequence[float], window: int) -> list[float]:
    """The moving mean over the last ``window`` values."""
    return [
        sum(values[max(0, end - window) : end]) / min(window, end)
        for end in range(1, len(values) + 1)
    ]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _label(name: str) -> str:
    """A printable name, shortened to fit the plot."""
    shown = "".join(char if char.isprintable() else "?" for char in name)
    return shown if len(shown) <= LABEL_CHARACTERS else f"{shown[: LABEL_CHARACTERS - 1]}…"
