import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from browser import Browser
from browser_checks import WIDE, check_page
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.metrics_tracker import MetricsTracker
from grpo_cl.metrics.rmatrix import BASE, Cell, DomainFacts, Drift, RMatrix
from grpo_cl.report import write_report
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import write_json
from grpo_cl.storage.journal import Journal
from grpo_cl.types import RewardType
from html_pages import PAYLOADS, Page
from toy_runs import toy_run

SCORES = [[0.35, 0.1], [0.8, 0.2], [0.5, 0.7]]
"""Average 0.6, learning accuracy 0.75, backward transfer −0.3, forgetting 0.3, forward 0.1."""


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
            numbers = {"reward_mean": step / 4, "tokens": 1000, "step_s": 2.0, "update_s": 0.4}
            tracker.log_step(index, step, numbers)
        tracker.log_evaluation(index, 4, domain, {"reward_mean": SCORES[index + 1][index]})
    tracker.log_buffer(1, 4, {domains[0]: {"size": 8, "reward_mean": 0.4375}, task: {"size": 9}})
    tracker.save(root)
    releases = {domains[0]: f"release {task}"}
    run.write_environment(command=["grpo-cl", "train"], task_releases=releases)


def test_the_page_has_the_numbers_of_the_run(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"), model_name_or_path="tiny")
    file = write_report(tmp_path)
    assert file == RunDir(tmp_path).report
    page = Page(file.read_text())
    for number in ("0.600", "0.750", "−0.300", "+0.300", "+0.100", "0.350", "0.438"):
        assert number in page.text
    for words in (
        "tiny · sequential · airline → retail",
        "floor: does nothing",
        "floor: transfers at once",
        "tool choice",
        "[communication]",
        "pass^4",
        "release task",
        "1 lost, 0 gained",
        "4,000",
        "2,500",
        "Training reward",
    ):
        assert words in page.text


def test_a_change_without_an_interval_is_not_coloured_as_beyond_noise(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"))
    page = write_report(tmp_path).read_text()
    components = page.partition('aria-label="Reward components"')[2].partition("</table>")[0]
    assert "−0.300" in components
    assert 'class="worse"' not in components and 'class="better"' not in components


def test_reward_components_and_their_changes_have_intervals_over_tasks(tmp_path: Path):
    """Sixteen tasks: DB is 1 on all of them when learned, and on none after the next stage."""
    matrix = RMatrix(domains=("airline", "retail"))
    tasks = {str(index): (0, 1) for index in range(16)}
    for after, database in ((BASE, 0.0), ("airline", 1.0), ("retail", 0.0)):
        spoken = {task: float(index < 8) for index, task in enumerate(tasks)}
        by_task = {"DB": dict.fromkeys(tasks, database), "COMMUNICATE": spoken}
        means = {"DB": database, "COMMUNICATE": 0.5}
        cell = Cell(mean=0.0, tasks=tasks, components=means, component_tasks=by_task)
        matrix = matrix.with_cell(after, "airline", cell).with_cell(after, "retail", cell)
    write_json(RunDir(tmp_path).r_matrix, matrix.to_json())
    page = write_report(tmp_path).read_text()
    table = page.partition('aria-label="Reward components"')[2].partition("</table>")[0]
    rows = [" ".join(Page(row).text.split()) for row in table.split("<tr>")]
    # Clopper and Pearson: 0 of 16 reach up to 1 - 0.025^(1/16), 8 of 16 from 0.247 to 0.753.
    database = "0.000[0.000, 0.206] 1.000[0.794, 1.000] 0.000[0.000, 0.206] −1.000no variance"
    spoken = "0.500[0.247, 0.753]"
    text = " ".join(rows).replace(" [", "[").replace(" no", "no")
    assert f"airline database {database}" in text
    assert f"airline communication {spoken} {spoken} {spoken} +0.000no variance" in text
    assert table.count('class="worse"') == 1  # the database of airline
    assert text.rstrip().endswith(f"{spoken} {spoken} {spoken} –")  # retail: no later stage


def write_floors(root: Path, *, solved: tuple[str, ...]) -> None:
    """A run in a domain of ten tasks; policies without skill solve some of them."""
    matrix = RMatrix(domains=("shop",), facts={"shop": DomainFacts(floor_tasks=solved)})
    for after, wins in ((BASE, 2), ("shop", 8)):
        tasks = {f"t{index}": (int(index < wins), 1) for index in range(10)}
        matrix = matrix.with_cell(after, "shop", Cell(mean=wins / 10, tasks=tasks))
    write_json(RunDir(root).r_matrix, matrix.to_json())


def test_pass_rates_without_floor_tasks_have_intervals(tmp_path: Path):
    write_floors(tmp_path, solved=("t0", "t1"))
    page = write_report(tmp_path).read_text()
    table = page.partition('aria-label="Scores without floor tasks"')[2].partition("</table>")[0]
    cells = " ".join(Page(table).text.split())
    assert "2 of 10" in cells
    assert "0.750 [" in cells  # six of the eight tasks that remain


def test_floors_without_reward_are_one_sentence(tmp_path: Path):
    write_floors(tmp_path, solved=())
    text = Page(write_report(tmp_path).read_text()).text
    assert "repeats reads, spams writes) get no reward on these test tasks." in text
    assert "tasks they solve" not in text


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
    for words in ("0.2500", "0.1250", "1,234", "15.00%", "7.50%", "decoded greedily"):
        assert words in page.text
    # Learned at 0.8, and 0.3 in the middle of the next stage.
    assert "0.300\n0.500" in re.sub(r"\n+", "\n", page.text)


def test_the_page_names_the_problems_of_a_run_that_cannot_learn(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"))
    assert "Problems of this run" not in write_report(tmp_path).read_text()
    run = RunDir(tmp_path)
    matrix = RMatrix.load(run.r_matrix)
    for domain, signs in (
        ("airline", {"no_tool_call": 8}),
        ("retail", {"context_window_exceeded": 8}),
    ):
        cell = matrix.cell(BASE, domain)
        assert cell is not None
        matrix = matrix.with_cell(BASE, domain, cell.model_copy(update=signs))
    write_json(run.r_matrix, matrix.to_json())
    tracker = MetricsTracker(GRPOConfig()).load(tmp_path)
    flat = {"groups": 4.0, "zero_variance_groups": 4.0}
    tracker.metrics["task_0/train"] = [{"step": step, **flat} for step in range(6)]
    tracker.save(tmp_path)
    text = Page(write_report(tmp_path).read_text()).text
    assert "Problems of this run" in text
    assert "Evaluation before training, airline: no reply in 8 episodes was a tool call" in text
    assert "retail: 8 of 8 episodes ended with a full context" in text
    assert "Training on airline: in 6 of 6 steps, one after another, all groups had equal" in text


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
def test_names_are_escaped(payload: str, tmp_path: Path):
    root = tmp_path / re.sub("/", "", payload)
    write_run(root, domains=(payload, "retail"), task=payload, model_name_or_path=payload)
    page = Page(write_report(root).read_text())
    assert payload in page.text
    assert not page.tags & {"script", "iframe", "img"}
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    assert not any(name.startswith("on") for name, _ in page.attributes)


def test_invisible_characters_are_replaced(tmp_path: Path):
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


def test_an_unfinished_run_has_a_report(tmp_path: Path):
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


def test_secrets_are_redacted(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"))
    write_json(
        RunDir(tmp_path).config,
        {"judge_api_key": "CANARY-1", "model_name_or_path": "https://u:CANARY-2@host/m"},
    )
    assert "CANARY" not in write_report(tmp_path).read_text()


def test_the_configuration_keeps_its_line_breaks(tmp_path: Path):
    write_run(tmp_path, domains=("airline", "retail"), model_name_or_path="tiny")
    assert '\n  "model_name_or_path": "tiny",\n' in Page(write_report(tmp_path).read_text()).text


def test_a_directory_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="give a run directory"):
        write_report(tmp_path)


@pytest.mark.slow
def test_a_browser_shows_the_page_of_a_run_and_leads_to_its_episodes(tmp_path: Path):
    root = tmp_path / "run"
    toy_run(root, num_steps_per_task=8, eval_interval=2)
    address = write_report(root).as_uri()
    with Browser(tmp_path / "profile") as browser:
        check_page(browser, address, max_height=5000)
        for selector in ("table.matrix td a", "#tasks td a"):
            browser.show(address, width=WIDE)
            target = browser.value(f"document.querySelector('{selector}').href")
            assert target.startswith(RunDir(root).viewer.as_uri() + "#")
            browser.show("about:blank", width=WIDE)
            browser.show(target, width=WIDE)
            assert "episodes" in browser.value("document.title")
            assert not browser.events_of("Runtime.exceptionThrown")


@pytest.mark.slow
def test_a_browser_runs_no_script_of_a_name(tmp_path: Path):
    root, task = tmp_path / "run", " ".join(PAYLOADS)
    write_run(root, domains=(task, "retail"), task=task)
    with Browser(tmp_path / "profile") as browser:
        browser.show(write_report(root).as_uri(), width=WIDE)
        assert browser.value("document.title") == "grpo-cl: run"
        page = Page(browser.value("document.documentElement.outerHTML"))
    assert not page.tags & {"script", "iframe", "img"}
    assert task in page.text


def test_the_page_links_to_the_episodes_of_changed_tasks(tmp_path: Path):
    toy_run(tmp_path, num_steps_per_task=8)
    text = write_report(tmp_path).read_text()
    assert RunDir(tmp_path).viewer.exists()
    fragments = re.findall(r'href="episodes\.html#(toy_left/[^"]*)"', text)
    matrix = RMatrix.load(RunDir(tmp_path).r_matrix)
    learned, last = (matrix.cell(after, "toy_left") for after in matrix.domains)
    assert fragments and learned and last
    for fragment in fragments:
        task, _, rows = unquote(fragment).removeprefix("toy_left/").rpartition("/")
        assert rows == "1,2"
        assert learned.tasks[task] != last.tasks[task]


def test_damaged_episodes_are_a_remark_of_the_page(tmp_path: Path):
    toy_run(tmp_path, num_steps_per_task=1)
    file = RunDir(tmp_path).evaluation_episodes(0, "toy_left")
    file.write_bytes(file.read_bytes()[:-20])
    page = Page(write_report(tmp_path).read_text())
    assert "The episodes cannot be shown" in page.text
    assert "R-matrix" in page.text
