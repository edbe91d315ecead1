"""HTML pages from Jinja templates, which escape every value."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unicodedata import category

import jinja2

from grpo_cl.report.intervals import is_beyond_noise
from grpo_cl.report.times import duration

TEMPLATES = Path(__file__).parent / "templates"
"""The base template, the stylesheet and the macros that all pages share."""
Colour = tuple[int, int, int]
_RAMPS: dict[str, tuple[Colour, Colour]] = {
    "light": ((237, 243, 250), (8, 69, 130)),
    "dark": ((34, 41, 48), (126, 196, 250)),
}
"""The colours of the scores 0 and 1 in each colour scheme."""
_INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cs"})
"""Control, format, private and surrogate characters: they can reorder or hide text."""


def render(template: Path, **values: Any) -> str:
    """The page that a template makes of ``values``; the shared templates are found by name."""

    def visible(value: object) -> object:
        return _visible(value) if type(value) is str else value  # markup is a subclass of str

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        finalize=visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = environment.filters
    filters.update(
        duration=duration, formatted=_formatted, gradient=_gradient, one_line=_one_line, shade=shade
    )
    tests: dict[str, Any] = environment.tests
    tests["beyond_noise"] = is_beyond_noise
    return environment.get_template(template.name).render(values)


def _visible(text: str) -> str:
    return "".join(
        "�" if category(char) in _INVISIBLE and char not in "\n\t" else char for char in text
    )


def _formatted(value: float, form: str) -> str:
    return format(value, form).replace("-", "−")


def _one_line(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {entry}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return " ".join(str(entry) for entry in value)
    return str(value)


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio of two colours by WCAG 2.2; text needs 4.5 (level AA)."""
    darker, lighter = sorted(_luminance(colour) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def shade(score: float) -> str:
    """The style of a table cell: the further from the page's colour, the higher the score."""
    papers = [_mix(*ramp, min(1.0, max(0.0, score))) for ramp in _RAMPS.values()]
    inks = [
        max(((0, 0, 0), (255, 255, 255)), key=lambda ink, p=p: contrast(ink, p)) for p in papers
    ]
    return f"background: {_light_dark(*papers)}; color: {_light_dark(*inks)}"


def _gradient(_: object) -> str:
    """The style of the heat map's legend."""
    ends = [_light_dark(*(ramp[end] for ramp in _RAMPS.values())) for end in (0, 1)]
    return f"background: linear-gradient(to right, {', '.join(ends)})"


def _light_dark(light: Colour, dark: Colour) -> str:
    return f"light-dark(rgb{light}, rgb{dark})"


def _mix(start: Colour, end: Colour, share: float) -> Colour:
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(start, end, strict=True))
    return red, green, blue


def _luminance(colour: Colour) -> float:
    shares = [part / 255 for part in colour]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
