"""The report of a run: what its template needs, from the files of the run directory alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cl.errors import GRPOCLError
from grpo_cl.metrics.curves import evaluation_curve, lowest_score, stability_gap
from grpo_cl.metrics.diagnostics import remarks
from grpo_cl.metrics.floors import FLOORS
from grpo_cl.metrics.metrics_tracker import BUFFER
from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.report.charts import ForestPlot, run_chart
from grpo_cl.report.html import TEMPLATES, render
from grpo_cl.report.intervals import cell_interval
from grpo_cl.report.run import Run, read_run
from grpo_cl.report.scores import (
    baseline_rows,
    changed_tasks,
    component_rows,
    floor_rows,
    pass_hat_rows,
    score_cards,
    untrained_average,
)
from grpo_cl.report.times import spending, stage_totals, total
from grpo_cl.report.verdict import Keeping, verdict
from grpo_cl.report.viewer import episode_fragment, write_viewer
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import write_file

MAX_LISTED_TASKS = 200
"""Changed tasks on the page; ``r_matrix.json`` has all of them."""
_SETTINGS = {
    "model_name_or_path": "policy",
    "cl_algorithm": "algorithm",
    "task_order": "order",
    "num_steps_per_task": "steps per domain",
    "num_samples_per_prompt": "episodes per task",
    "learning_rate": "learning rate",
    "kl_coef": "KL coefficient",
    "loss.kind": "loss",
    "rollout.user": "user",
    "tasks.generated": "generated tasks",
    "evaluation.trials": "trials per test task",
    "seed": "seed",
}


class Table(NamedTuple):
    """Column names after the first column, and the rows."""

    heads: list[str]
    rows: list[Any]


class EpisodeLinks(NamedTuple):
    """Addresses in the page of episodes, which is in the directory of the report."""

    file: str
    matrix: RMatrix

    def cell(self, after: str, domain: str) -> str:
        """The episodes of a domain after a stage."""
        fragment = episode_fragment(domain, "").removeprefix("#").rstrip("/")
        return f"{self.file}#?domain={fragment}&stage={self._row(after)}"

    def task(self, domain: str, task: str) -> str:
        """A task just after its domain was learned and at the end, side by side."""
        last = self.matrix.rows[-1].after
        rows = dict.fromkeys((self._row(domain), self._row(last)))
        return f"{self.file}{episode_fragment(domain, task, *rows)}"

    def _row(self, after: str) -> int:
        return self.matrix.stages.index(after)


def write_report(run_root: Path) -> Path:
    """Write ``report.html`` from the other files of a run directory; it needs nothing else.

    If the run kept evaluation episodes, ``episodes.html`` is written beside it.
    """
    files = RunDir(run_root)
    run, links = read_run(run_root), None
    if files.evaluations_after(-1):
        try:
            links = EpisodeLinks(write_viewer(run_root).name, run.matrix)
        except GRPOCLError as error:  # a damaged file: the numbers do not depend on it
            run = run.with_damage(f"The episodes cannot be shown: {error}.")
    write_file(files.report, [page(run, links)])
    return files.report


def page(run: Run, links: EpisodeLinks | None = None) -> str:
    """The HTML document."""
    matrix, totals = run.matrix, stage_totals(run)
    judged = verdict([matrix], [run.metrics])
    earlier = [row for row in judged.domains if row.keeping is not Keeping.LAST]
    drifts = [
        (row.after, domain, cell.drift)
        for row in matrix.rows
        for domain, cell in row.cells.items()
        if cell.drift is not None
    ]
    return render(
        TEMPLATES / "run.html.j2",
        run=run,
        links=links,
        base=BASE,
        stages=matrix.stages,
        verdict=judged,
        cell_interval=cell_interval,
        cards=score_cards(matrix),
        learned=max(0, len(matrix.scores()) - 1),
        remarks=[*run.damage, *remarks(matrix, run.metrics)],
        untrained=untrained_average(matrix.scores()),
        baselines=baseline_rows(matrix),
        floors=floor_rows(matrix),
        floor_titles=FLOORS,
        reliability=pass_hat_rows(matrix),
        chart=run_chart(run.metrics, matrix),
        changes=ForestPlot([(row.domain, row.change) for row in earlier]),
        stability=_stability_rows(run),
        drifts=[row for row in drifts if row[0] != BASE],
        are_drifts_sampled=all(drift.is_sampled for _, _, drift in drifts),
        components=component_rows(matrix),
        changed=changed_tasks(matrix),
        max_listed_tasks=MAX_LISTED_TASKS,
        buffer=_buffer_table(run),
        totals=totals,
        total=total(totals),
        spending=spending(run),
        settings=_SETTINGS,
        config=encode(run.config, indent=2),
    )


def _stability_rows(run: Run) -> list[tuple[str, float, float | None]]:
    """The lowest score of each earlier domain since it was learned, and its stability gap."""
    rows: list[tuple[str, float, float | None]] = []
    for stage, domain in enumerate(run.matrix.domains[:-1]):
        curve = evaluation_curve(run.metrics, domain)
        lowest = lowest_score(curve, stage)
        if lowest is not None:
            rows.append((domain, lowest, stability_gap(curve, stage)))
    return rows


def _buffer_table(run: Run) -> Table:
    """The last logged statistics of the trajectory buffer, with the format of each number."""
    records = run.records(BUFFER)
    domains: Mapping[str, Mapping[str, Any]] = records[-1].get("domains", {}) if records else {}
    columns = list(dict.fromkeys(name for values in domains.values() for name in values))
    rows = [
        (domain, [(value := values.get(name), _number_format(value)) for name in columns])
        for domain, values in domains.items()
    ]
    return Table([name.replace("_", " ") for name in columns], rows)


def _number_format(value: Any) -> str:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return ",.0f" if is_whole else ".3f"
