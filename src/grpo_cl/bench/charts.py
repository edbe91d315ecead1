"""Drawings for the page: SVG by hand, coloured by the page's style, which knows day and night."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.bench.curves import Learning, Point
from grpo_cl.metrics.statistics import Interval
from grpo_cl.report.html import Html, join, number, tag

HUES = 6
"""Colours that the style has."""
_LABELS, _NUMBERS, _PLOT, _ROW = 150, 190, 300, 30
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 420, 210, 34, 24, 8


class Bar(NamedTuple):
    """A row of a forest plot."""

    label: str
    interval: Interval | None


def forest(bars: Sequence[Bar], *, caption: str) -> Html:
    """Differences with their intervals, one row each, around a line at zero."""
    ends = [abs(end) for b in bars if b.interval for end in (b.interval.low, b.interval.high)]
    reach = max([*ends, 0.05]) * 1.1
    height = _ROW * (len(bars) + 1)
    middle = _x(0.0, reach)
    zero = _line(middle, 0, middle, _ROW * len(bars), "zero")
    ticks = [
        _text(_x(value, reach), height - 8, number(value, "+.2f"), "tick", anchor="middle")
        for value in (-reach / 1.1, 0.0, reach / 1.1)
    ]
    rows = [_row(bar, place, reach) for place, bar in enumerate(bars)]
    width = _LABELS + _PLOT + _NUMBERS
    return _svg(width, height, [zero, *rows, *ticks], caption=caption, kind="forest")


def curves(learned: Learning, *, caption: str) -> Html:
    """Training reward by step, and over it each domain's evaluations."""
    end = max([1, *learned.stages])
    grid = [
        join(
            [
                _line(_LEFT, _y(level), _WIDTH, _y(level), "ruler"),
                _text(_LEFT - 5, _y(level) + 4, f"{level:g}", "tick", anchor="end"),
            ]
        )
        for level in (0.0, 0.5, 1.0)
    ]
    stages = [
        _line(_at(s, end), _TOP, _at(s, end), _HEIGHT - _BOTTOM, "ruler") for s in learned.stages
    ]
    steps = [
        _text(_at(step, end), _HEIGHT - 8, step, "tick", anchor="end" if step else "middle")
        for step in (0, *learned.stages)
    ]
    scores = [_domain(p, n, end) for n, p in enumerate(learned.evaluations.values())]
    drawn = [*grid, *stages, *steps, _path(learned.training, end, "training"), *scores]
    return _svg(_WIDTH + 6, _HEIGHT, drawn, caption=caption, kind="curve")


def legend(domains: Sequence[str]) -> Html:
    """Which colour is which domain; the marks have different shapes too."""
    keys = [
        tag(
            "span",
            _svg(14, 14, [_mark(7, 7, place)], caption=None, kind="key"),
            " ",
            domain,
            class_="entry",
        )
        for place, domain in enumerate(domains)
    ]
    return tag("p", *keys, tag("span", "thin line: training reward", class_="entry"), class_="note")


def _row(bar: Bar, place: int, reach: float) -> Html:
    y = _ROW * place + _ROW / 2
    label = _text(0, y + 4, _short(bar.label), "label")
    if bar.interval is None:
        return join([label, _text(_LABELS + _PLOT + 10, y + 4, "missing", "tick")])
    low, mean, high = (
        _x(value, reach) for value in (bar.interval.low, bar.interval.estimate, bar.interval.high)
    )
    words = join(
        [
            number(bar.interval.estimate, "+.3f"),
            " [",
            number(bar.interval.low, "+.3f"),
            ", ",
            number(bar.interval.high, "+.3f"),
            "]",
        ]
    )
    dot = tag("circle", cx=f"{mean:.1f}", cy=f"{y:.1f}", r=5, class_="dot")
    shown = _text(_LABELS + _PLOT + 10, y + 4, words, "label")
    return join([label, _line(low, y, high, y, "whisker"), dot, shown])


def _domain(points: Sequence[Point], place: int, end: int) -> Html:
    marks = [_mark(_at(point.step, end), _y(point.value), place) for point in points]
    return join([_path(points, end, f"score hue{place % HUES}"), *marks])


def _mark(x: float, y: float, place: int) -> Html:
    hue = f"mark hue{place % HUES}"
    if place % 3 == 0:
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4.5, class_=hue)
    if place % 3 == 1:
        return tag("rect", x=f"{x - 4:.1f}", y=f"{y - 4:.1f}", width=8, height=8, class_=hue)
    corners = f"{x:.1f},{y - 5:.1f} {x + 5:.1f},{y + 4:.1f} {x - 5:.1f},{y + 4:.1f}"
    return tag("polygon", points=corners, class_=hue)


def _path(points: Sequence[Point], end: int, kind: str) -> Html:
    places = " ".join(f"{_at(p.step, end):.1f},{_y(p.value):.1f}" for p in points)
    return tag("polyline", points=places, class_=kind)


def _x(value: float, reach: float) -> float:
    return _LABELS + _PLOT * (value + reach) / (2 * reach)


def _at(step: int, end: int) -> float:
    return _LEFT + (_WIDTH - _LEFT) * step / end


def _y(value: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, max(0.0, value)))


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return tag("line", **{name: f"{value:.1f}" for name, value in ends.items()}, class_=kind)


def _text(x: float, y: float, content: object, kind: str, anchor: str | None = None) -> Html:
    return tag("text", content, x=f"{x:.1f}", y=f"{y:.1f}", class_=kind, text_anchor=anchor)


def _short(label: str) -> str:
    return label if len(label) <= 20 else f"{label[:19]}…"


def _svg(width: int, height: int, parts: Sequence[Html], *, caption: str | None, kind: str) -> Html:
    return tag(
        "svg",
        tag("title", caption) if caption else "",
        *parts,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img" if caption else None,
        aria_label=caption,
        aria_hidden=None if caption else "true",
        class_=kind,
    )
