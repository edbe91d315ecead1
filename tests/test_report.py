import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import BASE, Cell, DomainFacts, Drift, RMatrix
from grpo_cl.metrics.tracker import MetricsTracker
from grpo_cl.report import write_report
from grpo_cl.rundir import Journal, RunDir, write_json
from grpo_cl.types import RewardType

PAYLOADS = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</title><svg onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "<a href='https://example.org/'>&amp;</a>",
    "</style><iframe srcdoc='<script>1</script>'>",
)
SCORES = [[0.35, 0.1], [0.8, 0.2], [0.5, 0.7]]
"""Average 0.6, learning accuracy 0.75, backward transfer −0.3, forgetting 0.3, forward 0.1."""


class Page(HTMLParser):
    """The elements, attributes and text of a page, as a browser would take them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def write_run(root: Path, *, domains: tuple[str, str], task: str = "task", **options: Any) -> None:
    run = RunDir(root)
    config = GRPOConfig(task_order=domains, num_steps_per_task=4, log_dir=root, **options)
    run.write_config(config)
    matrix = RMatrix(
        domains=domains,
        facts={domains[0]: DomainFacts(idle=0.35, transfer=0.3, basis=(RewardType.DB,))},
    )
    for after, row in zip((BASE, *domains), SCORES, strict=True):
        for domain, score in zip(domains, row, strict=True):
            tasks = {task: (round(4 * score), 4), f"{task} too": (2, 4)}
            components = {"DB": score, "COMMUNICATE": 0.9, "tool_name": score + 0.1, task: 0.5}
            cell = Cell(mean=score, tasks=tasks, components=components)
            matrix = matrix.with_cell(after, domain, cell)
    write_json(run.r_matrix, matrix.to_json())
    tracker = MetricsTracker(config)
    for index, domain in enumerate(domains):
        for step in range(1, 5):
            numbers = {"reward_mean": step / 4, "tokens": 1000, "step_s": 2.0, "rollout_s": 1.5}
            tracker.log_step(index, step, numbers)
        tracker.log_evaluation(index, 4, domain, {"reward_mean": SCORES[index + 1][index]})
    tracker.log_buffer(1, 4, {domains[0]: {"size": 8, "reward_mean": 0.4375}, task: {"size": 9}})
    tracker.save(root)
    releases = {domains[0]: f"release {task}"}
    run.write_environment(command=["grpo-cl", "train"], task_releases=releases)


def test_the_page_holds_the_numbers_of_the_run(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"), model_name_or_path="tiny")
    file = write_report(tmp_path)
    assert file == RunDir(tmp_path).report
    page = Page(file.read_text())
    for number in ("0.600", "0.750", "−0.300", "+0.300", "+0.100", "0.350", "0.438"):
        assert number in page.text
    for words in (
        "tiny · sequential · airline → retail",
        "does nothing",
        "hands over at once",
        "tool choice",
        "[communication]",
        "pass^4",
        "release task",
        "1 lost, 0 won",
        "4,000",
        "500",
        "training, moving mean",
    ):
        assert words in page.text


def test_the_page_shows_drift_and_stability_gaps(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"))
    assert "evaluation.drift was off" in Page(write_report(tmp_path).read_text()).text
    run = RunDir(tmp_path)
    drift = Drift(
        kl_base=0.25,
        kl_previous=0.125,
        distance_base=1.5,
        distance_previous=0.75,
        start_norm=10.0,
        tokens=1234,
        is_sampled=False,
    )
    cell = Cell(mean=0.5, tasks={}, drift=drift)
    matrix = RMatrix.load(run.r_matrix).with_cell("retail", "airline", cell)
    write_json(run.r_matrix, matrix.to_json())
    tracker = MetricsTracker(GRPOConfig()).load(tmp_path)
    for step, score in ((2, 0.3), (4, 0.5)):
        tracker.log_evaluation(1, step, "airline", {"reward_mean": score})
    tracker.save(tmp_path)
    page = Page(write_report(tmp_path).read_text())
    for words in ("0.2500", "0.1250", "1,234", "15.00%", "7.50%", "played greedily"):
        assert words in page.text
    # Learned at 0.8, and 0.3 in the middle of the next stage.
    assert "0.300\n0.500" in re.sub(r"\n+", "\n", page.text)


def test_the_page_needs_no_network_and_no_script(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"))
    text = write_report(tmp_path).read_text()
    page = Page(text)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert "content=\"default-src 'none'; style-src 'unsafe-inline';" in text
    addresses = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert all(value.startswith("#") for value in addresses)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "url(http" not in text and "@import" not in text


@pytest.mark.parametrize("payload", PAYLOADS)
def test_names_are_shown_and_never_run(payload: str, tmp_path: Path):
    root = tmp_path / re.sub("/", "", payload)
    write_run(root, domains=(payload, "retail"), task=payload, model_name_or_path=payload)
    page = Page(write_report(root).read_text())
    assert payload in page.text
    assert not page.tags & {"script", "iframe", "img", "a"}
    assert not any(name.startswith("on") for name, _ in page.attributes)


def test_characters_that_hide_or_reorder_text_are_made_visible(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"), task="tx\u202egpj\x00")
    text = write_report(tmp_path).read_text()
    assert "tx�gpj�" in text
    assert "\u202e" not in text and "\x00" not in text


def test_a_missing_number_is_shown_as_missing(tmp_path: Path):
    matrix = RMatrix(domains=("airline", "retail"))
    cell = Cell(mean=0.5, tasks={})
    write_json(RunDir(tmp_path).r_matrix, matrix.with_cell("airline", "airline", cell).to_json())
    page = Page(write_report(tmp_path).read_text())
    assert ("title", "not in the run directory") in page.attributes
    assert "0.000" not in page.text
    assert "config.json is missing." in page.text
    assert "environment.json is missing." in page.text
    assert "No buffer statistics were logged." in page.text


def test_a_run_that_has_not_ended_has_a_report(tmp_path: Path):
    run = RunDir(tmp_path)
    config = GRPOConfig(task_order=("airline",))
    run.write_config(config)
    journal = Journal(run.metrics_journal)
    MetricsTracker(config, journal=journal).log_step(0, 1, {"reward_mean": 0.5, "tokens": 123456})
    journal.close()
    page = Page(write_report(tmp_path).read_text())
    assert "123,456" in page.text
    assert "0 of 1 domains" in page.text


def test_the_same_files_give_the_same_page(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"))
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first


def test_no_secret_is_shown(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"))
    write_json(
        RunDir(tmp_path).config,
        {"judge_api_key": "CANARY-1", "model_name_or_path": "https://u:CANARY-2@host/m"},
    )
    assert "CANARY" not in write_report(tmp_path).read_text()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="name a run's directory"):
        write_report(tmp_path)


@pytest.mark.slow
def test_a_browser_shows_the_page_and_runs_nothing(tmp_path: Path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here")
    task = " ".join(PAYLOADS)
    write_run(tmp_path, domains=(task, "retail"), task=task)
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=2000",
            "--dump-dom",
            write_report(tmp_path).as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"<title>grpo-cl: {tmp_path.name}</title>" in done.stdout
    page = Page(done.stdout)
    assert not page.tags & {"script", "iframe", "img", "a"}
    assert task in page.text
