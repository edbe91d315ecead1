from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import rcParams

from grpo_cl.errors import ConfigError
from grpo_cl.metrics import plots

HOSTILE = "$x_<script>&\"'"
SVG = "{http://www.w3.org/2000/svg}"


def metrics() -> dict[str, list[Any]]:
    return {
        "task_0/train": [{"step": step, "reward_mean": step / 10} for step in range(10)],
        "task_1/train": [{"step": 0, "reward_mean": None}, {"step": 1}],
        "task_0/eval": [{"step": 10, "domain": "airline", "reward_mean": 0.5}],
    }


def save(path: Path) -> list[Path]:
    return plots.save(plots.learning_curves(metrics(), ("airline", HOSTILE)), path, name="curves")


def test_a_plot_is_written_in_both_formats_reproducibly(tmp_path: Path):
    first, second = save(tmp_path / "a"), save(tmp_path / "b")
    assert [file.name for file in first] == ["curves.png", "curves.svg"]
    for file, repeated in zip(first, second, strict=True):
        assert file.read_bytes() == repeated.read_bytes()


def test_names_are_plotted_literally(tmp_path: Path):
    [file] = save(tmp_path / "curves.svg")
    texts = [element.text for element in ElementTree.parse(file).iter(f"{SVG}text")]
    assert f"learning {HOSTILE}" in texts
    assert "airline, evaluated" in texts
    assert "<script" not in file.read_text()


@pytest.mark.parametrize("domains", [(), ("a",), ("a", "b")])
def test_a_run_without_metrics_can_be_plotted(domains: tuple[str, ...], tmp_path: Path):
    [file] = plots.save(plots.learning_curves({}, domains), tmp_path / "empty.svg", name="empty")
    assert file.stat().st_size > 0


def test_plotting_does_not_change_the_global_style(tmp_path: Path):
    before = dict(rcParams)
    save(tmp_path)
    assert dict(rcParams) == before


def test_an_unknown_format_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        save(tmp_path / "figure.pdf")
