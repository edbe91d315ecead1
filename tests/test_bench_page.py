from pathlib import Path

import pytest

from bench_campaigns import DOMAINS, toy_campaign, write_runs
from browser import Browser
from grpo_cl.bench import Campaign, Conducted, conduct, make_plan
from grpo_cl.bench.folder import CampaignDir, Outcome
from grpo_cl.bench.page import Told, page
from grpo_cl.bench.results import gather
from grpo_cl.bench.summary import summarize
from test_report import PAYLOADS, Page

SCORES = {
    "sequential": [[0.2, 0.2], [0.9, 0.2], [0.5, 0.9]],
    "ewc": [[0.2, 0.2], [0.9, 0.2], [0.8, 0.8]],
}
"""Sequential: average 0.7, backward −0.4. EWC: average 0.8, backward −0.1."""


def made(campaign: Campaign, scores: dict[str, list[list[float]]] = SCORES) -> Conducted:
    write_runs(campaign, scores)
    return conduct(campaign, say=lambda line: None)


def read(done: Conducted) -> Page:
    return Page(done.folder.report.read_text())


def test_the_page_holds_scores_intervals_differences_and_costs(tmp_path: Path) -> None:
    page = read(made(toy_campaign(tmp_path, seeds=(0, 1, 2))))
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
        "The campaign as it was read",
    ):
        assert words in page.text


def test_the_page_sets_drift_beside_forgetting(tmp_path: Path) -> None:
    done = made(toy_campaign(tmp_path))
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


def test_the_page_fetches_nothing_and_runs_nothing(tmp_path: Path) -> None:
    done = made(toy_campaign(tmp_path))
    text = done.folder.report.read_text()
    page = Page(text)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert "http://" not in text and "https://" not in text and "url(" not in text
    assert not {name for name, _ in page.attributes} & {"href", "src", "xlink:href"}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_labels_are_shown_and_never_run(payload: str, tmp_path: Path) -> None:
    entries = [{"name": "sequential"}, {"name": "ewc", "label": payload}]
    scores = {"sequential": SCORES["sequential"], payload: SCORES["ewc"]}
    page = read(made(toy_campaign(tmp_path, algorithms=entries, name=payload), scores))
    assert payload in page.text
    assert not page.tags & {"script", "iframe", "img", "a"}
    assert not any(name.startswith("on") for name, _ in page.attributes)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    campaign = toy_campaign(tmp_path)
    write_runs(campaign, SCORES)
    folder, plan = CampaignDir(tmp_path), make_plan(campaign)
    folder.write_outcome(plan.runs[2], Outcome(error="not enough memory"))
    gathered = gather(campaign, plan, folder)
    told = Told(campaign, plan, gathered, summarize(campaign, gathered))
    shown = Page(page(told))
    assert "ewc, toy_left → toy_right, seed 0: not enough memory." in shown.text
    assert "3 of 4 runs finished" in shown.text
    assert "1 of 2" in shown.text
    assert "2 seed(s): intervals are wide" in shown.text


def test_every_table_has_headings_and_every_drawing_a_name(tmp_path: Path) -> None:
    text = made(toy_campaign(tmp_path)).folder.report.read_text()
    assert text.count("<table") == text.count("<thead>")
    assert 'scope="col"' in text and 'scope="row"' in text
    drawings = text.count("<svg")
    assert drawings == text.count('role="img" aria-label=') + text.count('aria-hidden="true"') > 0


@pytest.mark.slow
def test_a_browser_shows_the_page_on_a_phone_and_at_night(tmp_path: Path) -> None:
    orders = [list(DOMAINS), list(reversed(DOMAINS))]
    wide = [[0.2, 0.2, 0.2], [0.9, 0.2, 0.2], [0.5, 0.9, 0.2], [0.4, 0.5, 0.9]]
    settings = {**toy_campaign(tmp_path).base, "task_order": DOMAINS}
    campaign = toy_campaign(tmp_path, orders=orders, base=settings, seeds=(0, 1, 2))
    done = made(campaign, {"sequential": wide, "ewc": wide})
    with Browser(tmp_path / "profile") as browser:
        for width in (375, 1280):
            browser.show(done.folder.report.as_uri(), width=width)
            assert browser.value("document.documentElement.scrollWidth") <= width
            assert browser.value("document.querySelectorAll('section').length") >= 9
            tables = "[...document.querySelectorAll('table')]"
            inside = f"{tables}.every(t => t.parentElement.classList.contains('scroll'))"
            assert browser.value(inside)
            asked = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
            assert asked == [done.folder.report.as_uri()]
            assert not browser.seen("Log.entryAdded")
            assert not browser.seen("Runtime.exceptionThrown")
        ink = "getComputedStyle(document.body).color"
        paper = "getComputedStyle(document.body).backgroundColor"
        day = (browser.value(ink), browser.value(paper))
        browser.show(done.folder.report.as_uri(), width=375, scheme="dark")
        night = (browser.value(ink), browser.value(paper))
        assert day == ("rgb(34, 34, 34)", "rgb(255, 255, 255)")
        assert night == ("rgb(232, 232, 232)", "rgb(22, 24, 27)")
