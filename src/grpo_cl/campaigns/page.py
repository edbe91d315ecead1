"""The HTML page of a campaign: one file that opens without a network."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple
from urllib.parse import quote

from grpo_cl.campaigns.campaign import Campaign
from grpo_cl.campaigns.drift import PREDICTORS
from grpo_cl.campaigns.plan import Job, Plan
from grpo_cl.campaigns.results import CampaignResults, Method
from grpo_cl.campaigns.summary import MethodScores, Summary
from grpo_cl.metrics.floors import FLOORS
from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.metrics.statistics import Interval
from grpo_cl.report.charts import CurveChart, ForestPlot, mean_chart
from grpo_cl.report.html import render
from grpo_cl.report.intervals import mean_interval
from grpo_cl.report.scores import COMPONENTS, baseline_rows
from grpo_cl.report.verdict import Verdict, listed, verdict
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.encoding import encode

SIGNIFICANT = 0.05
"""The level of a test, after Holm's correction."""
SHOWN_AT_ONCE = 6
"""Algorithms whose matrices and curves are shown; those of the others unfold."""
FEW_SEEDS = 5
"""Below this the page warns that confidence intervals are wide."""
_TEMPLATE = Path(__file__).parent / "templates" / "campaign.html.j2"
TITLES = {
    "average_performance": "average performance",
    "learning_accuracy": "learning accuracy",
    "backward_transfer": "backward transfer",
    "forgetting": "forgetting",
    "forward_transfer": "forward transfer",
}
"""The scores in words."""
_SIGNED = {"backward_transfer", "forgetting", "forward_transfer"}
_COMPARED = ("average_performance", "backward_transfer")
_ORDER_SCORES = ("average_performance", "backward_transfer", "forgetting")
_COSTS = {
    "steps": "updates",
    "rollouts": "rollouts",
    "turns": "turns",
    "environment_steps": "environment steps",
    "generated_tokens": "generated tokens",
    "trained_tokens": "trained tokens",
    "simulator_calls": "simulator calls",
}
_DRIFT = {
    "kl_base_old": ("KL from start, old domains", ".4f"),
    "kl_base_new": ("new domain", ".4f"),
    "kl_previous_old": ("KL from previous stage, old domains", ".4f"),
    "kl_previous_new": ("new domain", ".4f"),
    "distance_base": ("distance from start", ".4g"),
    "relative_base": ("relative", ".2%"),
    "distance_previous": ("from previous stage", ".4g"),
    "relative_previous": ("relative", ".2%"),
    "stability_gap": ("stability gap", ".3f"),
    "worst_case_performance": ("worst-case performance", ".3f"),
}


class Means(NamedTuple):
    """The mean rewards of a cell of the R-matrix, one per run, and their mean."""

    values: list[float]
    mean: float | None
    interval: Interval | None


class CampaignReport(NamedTuple):
    """The results of a campaign as its template reads them."""

    campaign: Campaign
    plan: Plan
    results: CampaignResults
    summary: Summary

    @property
    def orders(self) -> list[tuple[str, ...]]:
        """Every task order, that of the first algorithm first."""
        return list(dict.fromkeys(row.order for row in self.summary.methods))

    @property
    def caveats(self) -> list[str]:
        """A sentence for every missing result, gain without skill and limit of the design."""
        sentences = [*self.summary.missing, *self.summary.remarks]
        seeds = len(self.campaign.seeds)
        if seeds < FEW_SEEDS:
            sentences.append(
                f"Few seeds ({seeds}): confidence intervals are wide, and a real difference may "
                "not be significant."
            )
        if self.plan.runs[0].config.evaluation.trials == 1:
            sentences.append("Each test task had one greedy trial: pass^k is unknown.")
        return sentences

    @property
    def compared(self) -> list[str]:
        """The scores by which algorithms are compared, the primary one first."""
        return list(dict.fromkeys((self.summary.primary, *_COMPARED)))

    @property
    def verdict(self) -> list[str]:
        """What the differences from the reference say, one sentence for each task order."""
        many = len(self.orders) > 1
        return [
            f"{' → '.join(order)}: {sentence}" if many else sentence
            for order in self.orders
            if (sentence := compared_sentence(self.summary, self.rows(order)))
        ]

    @property
    def difference_heads(self) -> list[str]:
        """The columns of the table of differences."""
        return [
            head
            for name in self.compared
            for head in (f"Δ {TITLES[name]}", "p, Holm" if name == self.summary.primary else "p")
        ]

    @property
    def order_heads(self) -> list[str]:
        """The columns of the table over task orders."""
        spread = ("sd over orders", "worst order", "range")
        return [head for name in _ORDER_SCORES for head in (TITLES[name], *spread)]

    def rows(self, order: tuple[str, ...]) -> list[MethodScores]:
        """The algorithms that were run in a task order."""
        return [row for row in self.summary.methods if row.order == order]

    def method(self, label: str) -> Method:
        """The description of an algorithm."""
        return next(method for method in self.results.methods if method.label == label)

    def seconds(self, order: tuple[str, ...]) -> dict[str, float]:
        """Mean training time of each algorithm, including a shared first stage."""
        times: dict[str, list[float]] = {}
        for job in self.plan.runs:
            if job.entry and job.name in self.results.times and job.config.task_order == order:
                spent = self.results.times[job.name]["training"]
                times.setdefault(job.entry.title, []).append(spent)
        return {label: fmean(values) for label, values in times.items()}

    def interval_note(self, rows: Sequence[MethodScores]) -> str:
        """How the confidence intervals were computed."""
        intervals = [interval for row in rows for interval in row.scores.values() if interval]
        methods = dict.fromkeys(f"{i.method}; it covers {i.covers}" for i in intervals if i.degrees)
        if not methods:
            return "No confidence interval is known."
        return f"In brackets: 95 % confidence interval ({' / '.join(methods)})."

    def forest_plot(self, rows: Sequence[MethodScores], score: str) -> ForestPlot:
        """The differences of a score from the reference."""
        comparisons = [(row.label, row.differences.get(score)) for row in rows]
        return ForestPlot([(label, c.difference if c else None) for label, c in comparisons])

    def matrices(self, row: MethodScores) -> list[RMatrix]:
        """The R-matrices of an algorithm's finished runs."""
        runs = self.results.finished(row.label, row.order)
        return [run.r_matrix for run in runs if run.r_matrix]

    def means(self, matrices: Sequence[RMatrix], after: str, domain: str) -> Means:
        """One cell of several R-matrices."""
        cells = [cell for matrix in matrices if (cell := matrix.cell(after, domain))]
        values = [cell.mean for cell in cells]
        return Means(values, fmean(values) if values else None, mean_interval(cells))

    def baselines(self, matrices: Sequence[RMatrix]) -> list[tuple[str, list[float | None]]]:
        """The floors of the evaluation tasks, which are the same in all runs."""
        return baseline_rows(matrices[0])

    def _jobs(self, row: MethodScores) -> list[Job]:
        """The finished runs of an algorithm in a task order."""
        return [
            job
            for job in self.plan.runs
            if job.entry
            and job.entry.title == row.label
            and job.config.task_order == row.order
            and job.name in self.results.times
        ]

    def curve_chart(self, row: MethodScores) -> CurveChart | None:
        """The learning curves of an algorithm; None without a finished run."""
        roots = [job.config.log_dir for job in self._jobs(row)]
        runs = [RunDir(root).read_metrics() for root in roots]
        return mean_chart(runs, row.order) if runs else None

    def links(self, row: MethodScores) -> list[tuple[int, str]]:
        """The seeds of an algorithm's finished runs, and the addresses of their reports."""
        reports = {job.config.seed: RunDir(job.config.log_dir).report for job in self._jobs(row)}
        return [
            (seed, quote(file.relative_to(self.campaign.out).as_posix()))
            for seed, file in reports.items()
        ]

    def judge(self, row: MethodScores) -> Verdict:
        """What an algorithm learned and kept."""
        return verdict(self.matrices(row))

    def tokens_per_s(self, row: MethodScores, seconds: float | None) -> float | None:
        """Tokens generated per second of training."""
        tokens = row.costs.get("generated_tokens")
        return tokens / seconds if tokens is not None and seconds else None

    def components(self, rows: Sequence[MethodScores]) -> dict[str, str]:
        """The reward components of earlier domains, and their titles."""
        present = list(dict.fromkeys(name for row in rows for name in row.component_changes))
        ordered = [name for name in COMPONENTS if name in present]
        ordered += [name for name in present if name not in COMPONENTS]
        return {name: COMPONENTS.get(name, name) for name in ordered}


def compared_sentence(summary: Summary, rows: Sequence[MethodScores]) -> str:
    """Which algorithms differ from the reference beyond noise; empty without another algorithm.

    Only the primary score decides: its p-values are corrected for the number of comparisons.
    """
    others = [row for row in rows if row.label != summary.reference]
    title = TITLES[summary.primary]
    sign = -1 if summary.primary == "forgetting" else 1
    groups: dict[str, list[str]] = {"better": [], "worse": [], "same": [], "unknown": []}
    for row in others:
        tested = row.differences.get(summary.primary)
        if tested is None or tested.p_holm is None:
            groups["unknown"].append(row.label)
        elif tested.p_holm >= SIGNIFICANT:
            groups["same"].append(row.label)
        else:
            is_better = sign * tested.difference.estimate > 0
            groups["better" if is_better else "worse"].append(row.label)
    if len(groups["unknown"]) == len(others):
        return f"No difference from {summary.reference} can be tested." if others else ""
    if len(groups["same"]) == len(others):
        return f"No algorithm differs from {summary.reference} in {title} beyond noise."
    words = {
        "better": f"better than {summary.reference} in {title}",
        "worse": f"worse than {summary.reference} in {title}",
        "same": "no difference beyond noise",
        "unknown": "not tested",
    }
    found = "; ".join(f"{words[kind]}: {listed(names)}" for kind, names in groups.items() if names)
    return f"{found[0].upper()}{found[1:]}."


def page(report: CampaignReport) -> str:
    """The HTML document."""
    return render(
        _TEMPLATE,
        report=report,
        base=BASE,
        titles=TITLES,
        signed=_SIGNED,
        compared=report.compared,
        floor_titles=FLOORS,
        shown_at_once=SHOWN_AT_ONCE,
        order_scores=_ORDER_SCORES,
        cost_columns=_COSTS,
        drift_columns=_DRIFT,
        predictors=PREDICTORS,
        config=encode(report.campaign.model_dump(mode="json", exclude={"out"}), indent=2),
    )
