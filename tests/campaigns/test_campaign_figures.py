"""Figures and tables of benchmarks/campaign_figures.py, from made-up runs."""

import re
from pathlib import Path

import pytest

from bench_campaigns import toy_campaign, write_runs
from campaign_figures import main
from campaign_tables import decimal, p_text
from grpo_cl.campaigns import run_campaign
from grpo_cl.errors import ConfigError

SCORES = {
    "sequential": [[0.2, 0.2], [0.9, 0.2], [0.5, 0.9]],
    "ewc": [[0.2, 0.2], [0.9, 0.2], [0.8, 0.8]],
    "si": [[0.2, 0.2], [0.9, 0.2], [0.4, 0.9]],
}
"""Average performance .7, .8 and .65; backward transfer −.4, −.1 and −.5."""
FIGURES = ("rmatrix", "components", "differences")


@pytest.fixture(scope="module")
def campaign_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("campaign")
    entries = [{"name": label} for label in SCORES]
    campaign = toy_campaign(root, algorithms=entries, seeds=(0, 1, 2))
    write_runs(campaign, SCORES)
    run_campaign(campaign, report=lambda line: None)
    return root


def texts(svg: Path) -> list[str]:
    """The texts of a figure, in the order in which they are drawn."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())


def draw(campaign_dir: Path, out: Path, *options: str) -> dict[str, list[str]]:
    main([str(campaign_dir), "--out", str(out / "toy"), *options])
    return {name: texts(out / f"toy_{name}.svg") for name in FIGURES}


def test_the_r_matrix_shows_the_means_of_the_reference_and_of_the_best(
    campaign_dir: Path, tmp_path: Path
) -> None:
    shown = draw(campaign_dir, tmp_path)["rmatrix"]
    assert "sequential, mean of 3 seeds" in shown and "ewc, mean of 3 seeds" in shown
    assert not any(text.startswith("si") for text in shown)
    assert shown.count("base") == 1 and shown.count("after toy_right") == 1
    # Seeds add 0, .01 and .02, so a mean is .01 above the score.
    cells = [text for text in shown if re.fullmatch(r"\.\d\d", text)]
    assert cells == [
        *(".21", ".21", ".91", ".21", ".51", ".91"),
        *(".21", ".21", ".91", ".21", ".81", ".81"),
    ]


def test_the_algorithms_of_the_r_matrix_are_chosen_by_label(
    campaign_dir: Path, tmp_path: Path
) -> None:
    shown = draw(campaign_dir, tmp_path, "--algorithms", "si")["rmatrix"]
    assert [text for text in shown if "mean of" in text] == ["si, mean of 3 seeds"]
    with pytest.raises(ConfigError, match="'der'; there are sequential, ewc, si"):
        draw(campaign_dir, tmp_path, "--algorithms", "der")


def test_an_order_without_a_finished_run_is_refused(campaign_dir: Path) -> None:
    with pytest.raises(ConfigError, match="no finished run in the order toy_right → toy_left"):
        main([str(campaign_dir), "--markdown", "--order", "toy_right", "toy_left"])


def test_algorithms_are_sorted_by_average_performance(campaign_dir: Path, tmp_path: Path) -> None:
    shown = draw(campaign_dir, tmp_path)
    assert [text for text in shown["components"] if text in SCORES] == ["ewc", "sequential", "si"]
    assert [text for text in shown["differences"] if text in SCORES] == ["ewc", "si"]
    assert "tool choice" in shown["components"] and "database" in shown["components"]
    assert "average performance minus sequential (.710)" in shown["differences"]


def test_the_same_results_give_the_same_bytes(campaign_dir: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        draw(campaign_dir, tmp_path / name)
    for figure in FIGURES:
        first, second = (tmp_path / name / f"toy_{figure}.svg" for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
        assert "<dc:date>" not in first.read_text() and "matplotlib.org/" not in first.read_text()


def test_the_tables_have_the_scores_of_the_campaign(
    campaign_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(campaign_dir), "--markdown"])
    printed = capsys.readouterr().out
    lines = printed.split("\n")
    # t(2) · .01/√3 = .025 to each side; differences have no variance, so no interval.
    assert "| `ewc` | 3 of 3 | .810 [.785, .835] | −.100 | .860 [.835, .885] | +.100 | – |" in lines
    assert "| `sequential` | toy_right | .510 | .910 |" in lines
    assert "| `si` | toy_right" not in printed
    assert "| algorithm | tool choice | database |" in lines
    assert "| `si` | .000 | −.500 |" in lines
    assert "| `sequential` | .700, −.400 | .710, −.400 | .720, −.400 |" in lines
    assert "task orders" not in printed


def test_the_tables_of_several_orders_have_the_scores_over_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = [["toy_left", "toy_right"], ["toy_right", "toy_left"]]
    campaign = toy_campaign(tmp_path, orders=orders)
    write_runs(campaign, SCORES)
    run_campaign(campaign, report=lambda line: None)
    main([str(tmp_path), "--markdown", "--order", *orders[1]])
    printed = capsys.readouterr().out
    assert "| algorithm | after | toy_right | toy_left |" in printed
    over = printed[printed.index("Over all task orders") :]
    assert "| `ewc` | 2 | .805 " in over and "| +.100 | – |" in over


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (0.5034, "", ".503"),
        (-0.0896, "", "−.090"),
        (-0.0001, "", "−.000"),
        (-0.0, "", ".000"),
        (0.057, "+", "+.057"),
        (1.0, "", "1.000"),
        (-10.25, "", "−10.250"),
        (None, "", "–"),
    ],
)
def test_numbers_have_three_digits_and_no_zero_before_the_point(
    value: float | None, sign: str, text: str
) -> None:
    assert decimal(value, sign=sign) == text


def test_small_p_values_are_bounds() -> None:
    assert [p_text(p) for p in (0.0004, 0.0005, 0.049, 1.0, None)] == [
        *("<.001", ".001", ".049", "1.000", "–")
    ]
