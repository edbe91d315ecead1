from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import rcParams

from grpo_cl.errors import ConfigError
from grpo_cl.metrics import plots
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix

HOSTILE = "$x_<script>&\"'"
SVG = "{http://www.w3.org/2000/svg}"


def matrix(domains: tuple[str, ...] = ("airline", HOSTILE)) -> RMatrix:
    found = RMatrix(domains=domains)
    for after, score in ((BASE, 0.1), (domains[0], 0.8), (domains[1], 0.43)):
        found = found.with_cell(after, domains[0], Cell(mean=score, tasks={}))
    return found


def metrics() -> dict[str, list[Any]]:
    return {
        "task_0/train": [{"step": step, "reward_mean": step / 10} for step in range(10)],
        "task_1/train": [{"step": 0, "reward_mean": None}, {"step": 1}],
        "task_0/eval": [{"step": 10, "domain": "airline", "reward_mean": 0.5}],
    }


def test_every_figure_is_drawn_in_both_formats_and_the_same_again(tmp_path: Path):
    first = plots.save_all(tmp_path / "a", metrics(), matrix())
    second = plots.save_all(tmp_path / "b", metrics(), matrix())
    assert [file.name for file in first] == [
        f"{name}{form}"
        for name in ("learning_curves", "r_matrix", "forgetting")
        for form in (".png", ".svg")
    ]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_names_are_drawn_as_they_are_written():
    drawn = plots.inline_svg(plots.heat_map(matrix()))
    texts = [element.text for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
    assert f"after {HOSTILE}" in texts
    assert "0.80" in texts
    assert "<script" not in drawn


def test_cells_that_were_not_measured_are_drawn_as_a_dash():
    drawn = plots.inline_svg(plots.heat_map(matrix()))
    texts = [element.text for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
    assert texts.count("–") == 3


def test_inline_figures_keep_only_the_identifiers_they_use():
    drawn = plots.inline_svg(plots.learning_curves(metrics(), ("airline", "retail")))
    assert drawn.startswith("<svg")
    assert 'id="figure_1"' not in drawn
    for element in ElementTree.fromstring(drawn).iter():
        name = element.get("id")
        assert name is None or f"#{name}" in drawn


def test_forgetting_bars_show_both_changes():
    drawn = plots.inline_svg(plots.forgetting_bars(matrix()))
    texts = [element.text for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
    assert texts.count("−0.37") == 2


@pytest.mark.parametrize("found", [RMatrix(domains=("a",)), RMatrix(domains=("a", "b"))])
def test_a_run_that_measured_nothing_can_be_drawn(found: RMatrix, tmp_path: Path):
    assert len(plots.save_all(tmp_path, {}, found)) == 6


def test_drawing_touches_no_global_style():
    before = dict(rcParams)
    plots.inline_svg(plots.heat_map(matrix()))
    assert dict(rcParams) == before


def test_an_unknown_format_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        plots.save(plots.heat_map(matrix()), tmp_path / "figure.pdf", name="r_matrix")
