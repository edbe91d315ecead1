"""HTML by construction: whatever is not ``Html`` is text, and text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any
from unicodedata import category

_INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cs"})
"""Control, format, private and surrogate characters: they can reorder or hide what is read."""

MISSING = "–"
_TEXT_CELL = '<td class="text"'


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value as HTML text; what is HTML already is left alone."""
    if isinstance(value, Html):
        return value
    shown = "".join("�" if category(char) in _INVISIBLE else char for char in str(value))
    return Html(escape(shown))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """One element; ``class_`` stands for ``class``, and an attribute that is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{join(content)}</{name}>")


def join(parts: Iterable[object]) -> Html:
    """Elements and texts in a row."""
    return Html("".join(text(part) for part in parts))


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> Html:
    """A table whose first column names its rows; cells made by ``words`` are set flush left."""
    body = [[_cell(value) for value in row[1:]] for row in rows]
    first = body[0] if body else []
    aligned = ["text" if cell.startswith(_TEXT_CELL) else None for cell in first]
    shades = [None, *(aligned or [None] * (len(head) - 1))]
    heads = [
        tag("th", cell, scope="col", class_=shade) for cell, shade in zip(head, shades, strict=True)
    ]
    lines = [
        tag("tr", tag("th", row[0], scope="row"), *cells)
        for row, cells in zip(rows, body, strict=True)
    ]
    inner = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *lines))
    return tag("div", inner, class_="scroll")


def words(value: object) -> Html:
    """A cell of a table that holds text instead of a number."""
    return tag("td", value, class_="text")


def section(title: str, *content: object) -> Html:
    """A part of the page under a heading."""
    return tag("section", tag("h2", title), *content)


def note(*content: object) -> Html:
    """A remark in small print."""
    return tag("p", *content, class_="note")


def number(value: Any, form: str = ".3f") -> Html:
    """A number for reading, or the sign for one that is missing."""
    if value is None:
        return tag("span", MISSING, class_="missing", title="not in the run directory")
    if not isinstance(value, int | float):
        return text(value)
    return text(format(value, form).replace("-", "−"))


def _cell(value: object) -> Html:
    if isinstance(value, Html) and value.startswith("<td"):
        return value
    return tag("td", value)
