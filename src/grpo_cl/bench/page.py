"""A campaign as one page that needs no other file and no network."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from grpo_cl.bench.campaign import Campaign
from grpo_cl.bench.charts import Bar, curves, forest, legend
from grpo_cl.bench.curves import learning
from grpo_cl.bench.plan import Plan
from grpo_cl.bench.results import Gathered
from grpo_cl.bench.style import CSS
from grpo_cl.bench.summary import MethodScores, Summary
from grpo_cl.bench.tables import (
    PARTS,
    TITLES,
    component_table,
    cost_table,
    difference_table,
    drift_table,
    fit_table,
    matrix_table,
    order_table,
    score_table,
    spent_table,
)
from grpo_cl.report.html import Html, join, note, section, tag
from grpo_cl.report.scores import COMPONENTS
from grpo_cl.report.style import POLICY
from grpo_cl.rundir import encode

COMPARED = ("average_performance", "backward_transfer")
FEW_SEEDS = 5


class Told(NamedTuple):
    """Everything a page tells."""

    campaign: Campaign
    plan: Plan
    gathered: Gathered
    summary: Summary

    @property
    def orders(self) -> list[tuple[str, ...]]:
        """Every order, that of the first algorithm first."""
        return list(dict.fromkeys(row.order for row in self.summary.methods))

    def rows(self, order: Sequence[str]) -> list[MethodScores]:
        """The algorithms that were run in an order."""
        return [row for row in self.summary.methods if row.order == tuple(order)]

    def seconds(self, order: Sequence[str]) -> dict[str, float]:
        """Mean training time of each algorithm, a shared stage counted as its own."""
        found: dict[str, list[float]] = {}
        for job in self.plan.runs:
            if job.entry and job.name in self.gathered.times and job.config.task_order == order:
                spent = self.gathered.times[job.name]["training"]
                found.setdefault(job.entry.title, []).append(spent)
        return {label: fmean(values) for label, values in found.items()}


def page(told: Told) -> Html:
    """The whole document."""
    head = tag(
        "head",
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", f"grpo-cl campaign: {told.campaign.name}"),
        tag("style", Html(CSS)),
    )
    parts = [part for order in told.orders for part in _order_sections(told, order)]
    body = tag(
        "body",
        _header(told),
        tag(
            "main", _missing(told), *parts, _orders(told), _fits(told), _spent(told), _set_up(told)
        ),
        tag("footer", "Made by grpo-cl from the files of the campaign; nothing else was read."),
    )
    return join([Html("<!doctype html>\n"), tag("html", head, body, lang="en"), Html("\n")])


def _header(told: Told) -> Html:
    finished = sum(run.error is None for run in told.gathered.runs)
    about = f"{finished} of {len(told.gathered.runs)} runs finished"
    labels = ", ".join(method.label for method in told.gathered.methods)
    seeds = ", ".join(map(str, told.campaign.seeds))
    return tag(
        "header",
        tag("h1", told.campaign.name),
        tag("p", f"{about} · {labels} · seeds {seeds}", class_="lead"),
    )


def _missing(told: Told) -> Html:
    sentences = list(told.summary.missing)
    seeds = len(told.campaign.seeds)
    if seeds < FEW_SEEDS:
        sentences.append(
            f"{seeds} seed(s): intervals are wide, and a difference that is not shown may be there."
        )
    trials = told.plan.runs[0].config.evaluation.trials
    if trials == 1:
        sentences.append("Each test task was played once, greedily: pass^k is not known.")
    whole = "Nothing: every planned run finished, and every score is known."
    told_so = tag("ul", *(tag("li", text) for text in sentences)) if sentences else tag("p", whole)
    return section("What is missing", told_so)


def _order_sections(told: Told, order: tuple[str, ...]) -> list[Html]:
    rows, name = told.rows(order), " → ".join(order)
    seconds = told.seconds(order)
    others = [row for row in rows if row.label != told.summary.reference]
    parts = component_table(rows, COMPONENTS)
    return [
        section(
            f"Scores: {name}",
            score_table(rows, told.gathered, seconds),
            note(_covered(rows)),
            note(
                "rollouts and seconds: of training, mean per run, a shared first stage counted as "
                "the run's own. ",
                "is told the domain: it would not work where the domain is unknown.",
            ),
        ),
        section(f"Against {told.summary.reference}: {name}", *_against(others)),
        section(f"R-matrices: {name}", _matrices(told, order)),
        section(f"Learning curves: {name}", _curves(told, order)),
        section(
            f"What was forgotten: {name}",
            parts or note("No components were measured."),
            note("Backward transfer of each part of the reward, mean over seeds."),
        ),
        section(
            f"Drift: {name}",
            drift_table(rows) or note("Not measured: evaluation.drift and eval_interval are off."),
            note(
                "After the last stage, means over runs. KL: per generated token, in nats, of the "
                "policy measured on a domain from an earlier one. Distance: of the weights, and as "
                "a share of their norm at the start."
            ),
        ),
        section(
            f"Costs of training: {name}",
            cost_table(rows, told.gathered, seconds),
            note(
                f"Declared equal: {told.summary.compute}. matched: within 2 % of "
                f"{told.summary.reference}. Evaluation is counted apart, below."
            ),
        ),
    ]


def _covered(rows: Sequence[MethodScores]) -> str:
    found = [i for row in rows for i in row.scores.values() if i is not None]
    ways = dict.fromkeys(f"{i.method}; it covers {i.covers}" for i in found if i.degrees)
    return f"In brackets: 95 % interval ({' / '.join(ways)})." if ways else "No interval is known."


def _against(rows: Sequence[MethodScores]) -> list[Html]:
    if not any(row.differences for row in rows):
        return [note("Nothing to compare.")]
    plots = [_forest(rows, name) for name in COMPARED]
    return [
        difference_table(rows, COMPARED),
        note("p, Holm: corrected for the number of algorithms compared in this column."),
        *plots,
    ]


def _forest(rows: Sequence[MethodScores], name: str) -> Html:
    found = [(row.label, row.differences.get(name)) for row in rows]
    bars = [
        Bar(label, comparison.difference if comparison else None) for label, comparison in found
    ]
    caption = f"Difference in {TITLES[name]}, with 95 % intervals; right is better"
    drawn = tag("div", forest(bars, caption=caption), class_="scroll")
    return tag("figure", drawn, tag("figcaption", caption, class_="note"))


def _matrices(told: Told, order: tuple[str, ...]) -> Html:
    shown = [
        matrix_table(row.label, told.gathered.finished(row.label, order))
        for row in told.rows(order)
        if row.finished
    ]
    remark = note("Mean reward; rows: when it was measured; framed: just learned.")
    return join([tag("div", *shown, class_="grid"), remark])


def _curves(told: Told, order: tuple[str, ...]) -> Html:
    figures: list[Html] = []
    for row in told.rows(order):
        jobs = [
            job
            for job in told.plan.runs
            if job.entry and job.entry.title == row.label and job.config.task_order == order
        ]
        finished = [job for job in jobs if job.name in told.gathered.times]
        steps = jobs[0].config.num_steps_per_task
        learned = learning([job.config.log_dir for job in finished], steps_per_task=steps)
        if learned:
            drawn = curves(learned, caption=f"Rewards of {row.label} by step")
            figures.append(tag("figure", drawn, tag("figcaption", row.label, class_="note")))
    return join([legend(order), tag("div", *figures, class_="grid")])


def _orders(told: Told) -> Html:
    if not told.summary.orders:
        return Html("")
    remark = note("Mean over orders within each seed, then over seeds; only seeds with all orders.")
    return section("Over all orders", order_table(told.summary.orders, PARTS), remark)


def _fits(told: Told) -> Html:
    if not told.summary.fits:
        return Html("")
    remark = note(
        "Descriptive: least squares over all runs, one point per run and old domain. Points of a "
        "run share its policy, and algorithms differ in more than their drift, so neither "
        "significance nor cause can be read from R²."
    )
    return section("Forgetting by drift", fit_table(told.summary.fits), remark)


def _spent(told: Told) -> Html:
    return section(
        "What the campaign spent",
        spent_table(told.gathered),
        note("Every process once; what was repeated after a kill is in the seconds alone."),
    )


def _set_up(told: Told) -> Html:
    described = encode(told.campaign.model_dump(mode="json", exclude={"out"}), indent=2)
    shown = tag("details", tag("summary", "The campaign as it was read"), tag("pre", described))
    return section("Set-up", shown)
