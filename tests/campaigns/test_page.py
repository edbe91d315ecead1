import re
from pathlib import Path

import pytest

from bench_campaigns import DOMAINS, toy_campaign, write_runs
from browser import Browser
from browser_checks import check_page
from grpo_cl.campaigns import Campaign, FinishedCampaign, make_plan, run_campaign
from grpo_cl.campaigns.directory import CampaignDir, Outcome
from grpo_cl.campaigns.page import CampaignReport, compared_sentence, page
from grpo_cl.campaigns.results import collect_results
from grpo_cl.campaigns.summary import summarize
from grpo_cl.metrics.comparisons import Comparison
from grpo_cl.metrics.statistics import seed_interval
from html_pages import PAYLOADS, Page

SCORES = {
    "sequential": [[0.2, 0.2], [0.9, 0.2], [0.5, 0.9]],
    "ewc": [[0.2, 0.2], [0.9, 0.2], [0.8, 0.8]],
}
"""Sequential: average 0.7, backward −0.4. EWC: average 0.8, backward −0.1."""


def finished(campaign: Campaign, scores: dict[str, list[list[float]]] = SCORES) -> FinishedCampaign:
    write_runs(campaign, scores)
    return run_campaign(campaign, report=lambda line: None)


def read(done: FinishedCampaign) -> Page:
    return Page(done.directory.report.read_text())


def test_the_page_has_scores_intervals_differences_and_costs(tmp_path: Path) -> None:
    page = read(finished(toy_campaign(tmp_path, seeds=(0, 1, 2))))
    # Seeds 0, 1, 2 score 0.70, 0.71, 0.72: mean 0.71, t(2) · 0.01/√3 = 0.0248 to each side.
    for number in ("0.710", "0.685", "0.735", "−0.400", "+0.100", "+0.300"):
        assert number in page.text
    for words in (
        "6 of 6 runs finished",
        "3 of 3",
        "toy_left → toy_right",
        "weights",
        "t over seeds",
        "p, Holm",
        "sequential, mean of 3",
        "tool choice",
        "simulator calls",
        "Campaign file",
    ):
        assert words in page.text


def test_the_page_has_drift_and_its_regression_on_forgetting(tmp_path: Path) -> None:
    done = finished(toy_campaign(tmp_path))
    page = read(done)
    # Old domain at the end: sequential 0.5, EWC 0.8, so KL is 0.8 and 0.2 and 0.4 and 0.1 are lost.
    fit = {found.predictor: found.fit for found in done.summary.fits}["kl_base_old"]
    assert fit and fit.points == 4
    assert (fit.slope, fit.intercept, fit.r_squared) == pytest.approx((0.5, 0.0, 1.0))
    first = done.summary.methods[0].drift
    assert first["kl_base_old"] == pytest.approx(0.8)
    assert first["relative_base"] == 0.05
    for words in ("0.8000", "5.00%", "Forgetting by drift", "+0.500", "R²", "Descriptive"):
        assert words in page.text


def test_the_page_loads_nothing_and_has_no_script(tmp_path: Path) -> None:
    done = finished(toy_campaign(tmp_path))
    text = done.directory.report.read_text()
    page = Page(text)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert "http://" not in text and "https://" not in text and "url(" not in text
    assert not {name for name, _ in page.attributes} & {"src", "xlink:href"}
    links = {value for name, value in page.attributes if name == "href" and value[0] != "#"}
    assert links == {f"runs/{run.name}/report.html" for run in (tmp_path / "runs").iterdir()}
    assert all((tmp_path / link).is_file() for link in links)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_labels_are_escaped(payload: str, tmp_path: Path) -> None:
    entries = [{"name": "sequential"}, {"name": "ewc", "label": payload}]
    scores = {"sequential": SCORES["sequential"], payload: SCORES["ewc"]}
    page = read(finished(toy_campaign(tmp_path, algorithms=entries, name=payload), scores))
    assert payload in page.text
    assert not page.tags & {"script", "iframe", "img"}
    links = [value for name, value in page.attributes if name == "href"]
    assert all(link.startswith(("#", "runs/")) for link in links)
    assert not any(name.startswith("on") for name, _ in page.attributes)


def test_the_page_has_forgetting_by_component_and_the_floors_of_the_tasks(tmp_path: Path) -> None:
    done = finished(toy_campaign(tmp_path))
    first, second = done.summary.methods
    assert first.component_changes["DB"].mean == pytest.approx(-0.4)
    assert second.component_changes["DB"].mean == pytest.approx(-0.1)
    assert second.component_changes["tool_name"].mean == 0.0
    text = read(done).text
    assert "Forgetting by reward component algorithm reward tool choice database" in " ".join(
        text.split()
    )
    assert "best floor" not in text  # these runs were written without their floors


def test_methods_are_paired_by_seed_even_if_a_run_of_the_reference_failed(tmp_path: Path) -> None:
    """The test follows from the design: seed 0 of the reference is missing, seeds 1 to 3 pair."""
    campaign = toy_campaign(tmp_path, seeds=(0, 1, 2, 3))
    write_runs(campaign, SCORES)
    directory, plan = CampaignDir(tmp_path), make_plan(campaign)
    directory.write_outcome(plan.runs[0], Outcome(error="not enough memory"))
    summary = summarize(campaign, collect_results(campaign, plan, directory))
    found = summary.methods[1].differences["average_performance"]
    assert found is not None
    assert (found.difference.method, found.difference.seeds) == ("paired t over seeds", 3)


def test_algorithms_are_compared_over_all_orders_by_the_means_of_their_seeds(
    tmp_path: Path,
) -> None:
    """Sequential has 0.70, 0.71 and 0.72 in both orders; EWC 0.80, 0.81 and, in one order, 0.94."""
    orders = [list(DOMAINS[:2]), list(reversed(DOMAINS[:2]))]
    campaign = toy_campaign(tmp_path, orders=orders, seeds=(0, 1, 2))
    write_runs(campaign, SCORES)
    plan = make_plan(campaign)
    results = collect_results(campaign, plan, CampaignDir(tmp_path))
    runs = list(results.runs)
    runs[-1] = runs[-1].model_copy(
        update={"scores": {**runs[-1].scores, "average_performance": 0.94}}
    )
    changed = results._replace(runs=runs)
    summary = summarize(campaign, changed)
    reference, other = summary.orders
    assert "+0.120" in Page(page(CampaignReport(campaign, plan, changed, summary))).text
    found = other.differences["average_performance"]
    assert reference.differences["average_performance"] is None
    assert found is not None and found.p_holm is None
    # Means over orders differ by 0.1, 0.1 and 0.16.
    assert found.difference.estimate == pytest.approx(0.12)
    assert found.difference.standard_error == pytest.approx(0.02)
    assert found.difference.method == "paired t over seeds"


def test_the_worst_order_has_the_most_forgetting(tmp_path: Path) -> None:
    orders = [list(DOMAINS[:2]), list(reversed(DOMAINS[:2]))]
    campaign = toy_campaign(tmp_path, orders=orders)
    write_runs(campaign, SCORES)
    plan = make_plan(campaign)
    results = collect_results(campaign, plan, CampaignDir(tmp_path))
    changed = [
        run.model_copy(update={"scores": {**run.scores, "forgetting": 0.9}})
        if run.order[0] == DOMAINS[1]
        else run
        for run in results.runs
    ]
    spread = summarize(campaign, results._replace(runs=changed)).orders[0].spread["forgetting"]
    assert spread is not None
    assert spread.worst == pytest.approx(0.9)


def test_missing_results_are_listed(tmp_path: Path) -> None:
    campaign = toy_campaign(tmp_path)
    write_runs(campaign, SCORES)
    directory, plan = CampaignDir(tmp_path), make_plan(campaign)
    directory.write_outcome(plan.runs[2], Outcome(error="not enough memory"))
    results = collect_results(campaign, plan, directory)
    report = CampaignReport(campaign, plan, results, summarize(campaign, results))
    shown = Page(page(report))
    assert "ewc, toy_left → toy_right, seed 0: not enough memory." in shown.text
    assert "3 of 4 runs finished" in shown.text
    assert "1 of 2" in shown.text
    assert "Few seeds (2): confidence intervals are wide" in shown.text


@pytest.mark.parametrize(
    ("tested", "sentence"),
    [
        ({"ewc": (0.1, 0.01)}, "Better than sequential in average performance: ewc."),
        ({"ewc": (-0.1, 0.01)}, "Worse than sequential in average performance: ewc."),
        (
            {"ewc": (0.1, 0.05)},
            "No algorithm differs from sequential in average performance beyond noise.",
        ),
        ({"ewc": (0.1, None)}, "No difference from sequential can be tested."),
        (
            {"ewc": (0.1, 0.01), "si": (0.3, 0.02), "mas": (0.1, 0.4), "agem": (0.1, None)},
            "Better than sequential in average performance: ewc and si; no difference beyond "
            "noise: mas; not tested: agem.",
        ),
        ({}, ""),
    ],
)
def test_the_verdict_compares_with_the_reference_after_correction(
    tested: dict[str, tuple[float, float | None]], sentence: str, tmp_path: Path
) -> None:
    summary = finished(toy_campaign(tmp_path)).summary
    reference, other = summary.methods
    rows = [reference]
    for label, (difference, p_holm) in tested.items():
        interval = seed_interval([difference, difference], tasks=3)
        found = Comparison(difference=interval, p_value=p_holm, p_holm=p_holm)
        differences = {"average_performance": found}
        rows.append(other.model_copy(update={"label": label, "differences": differences}))
    assert compared_sentence(summary, rows) == sentence


def test_every_table_has_headings_and_every_chart_a_label(tmp_path: Path) -> None:
    text = finished(toy_campaign(tmp_path)).directory.report.read_text()
    assert text.count("<table") == text.count("<thead>")
    assert 'scope="col"' in text and 'scope="row"' in text
    charts = re.findall("<svg[^>]*>", text)
    labels = [chart for chart in charts if 'role="img" aria-label="' in chart]
    assert labels and len(charts) == len(labels) + sum('aria-hidden="true"' in c for c in charts)


@pytest.mark.slow
def test_a_browser_shows_the_page_in_both_widths_and_colour_schemes(tmp_path: Path) -> None:
    orders = [list(DOMAINS), list(reversed(DOMAINS))]
    wide = [[0.2, 0.2, 0.2], [0.9, 0.2, 0.2], [0.5, 0.9, 0.2], [0.4, 0.5, 0.9]]
    settings = {**toy_campaign(tmp_path).base, "task_order": DOMAINS}
    campaign = toy_campaign(tmp_path, orders=orders, base=settings, seeds=(0, 1, 2))
    done = finished(campaign, {"sequential": wide, "ewc": wide})
    with Browser(tmp_path / "profile") as browser:
        check_page(browser, done.directory.report.as_uri(), max_height=12_000)
