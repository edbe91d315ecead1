"""``grpo-cl bench``: train the runs of a campaign and compare them."""

import argparse
from collections.abc import Sequence
from typing import Any

from grpo_cl.campaigns import (
    Campaign,
    FinishedCampaign,
    estimate,
    make_plan,
    read_campaign,
    run_campaign,
)
from grpo_cl.campaigns.components import ComponentChange
from grpo_cl.campaigns.runner import describe
from grpo_cl.cli.output import table
from grpo_cl.metrics.statistics import Interval


def bench(arguments: argparse.Namespace) -> int:
    """Train the unfinished runs of a campaign, and write its results and its page."""
    names = ("out", "workers", "seeds")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    changes = {name: value for name, value in options.items() if value is not None}
    campaign = read_campaign(arguments.file, **changes)
    if arguments.dry_run:
        print(_plan_text(campaign))
        return 0
    finished = run_campaign(
        campaign,
        report=lambda line: print(line, flush=True),
        report_only=arguments.report_only,
    )
    print(_score_table(finished))
    if any(method.component_changes for method in finished.summary.methods):
        print(f"\nbackward transfer by reward component\n{_component_table(finished)}\n")
    for sentence in finished.summary.missing:
        print(f"missing: {sentence}")
    for sentence in finished.summary.remarks:
        print(f"remark: {sentence}")
    print(f"results: {finished.directory.results}\nreport: {finished.directory.report}")
    return 0 if finished.is_complete else 1


def _plan_text(campaign: Campaign) -> str:
    plan = make_plan(campaign)
    episodes = estimate(plan)
    lines = [f"{campaign.name}: {len(plan.runs)} runs into {campaign.out}"]
    lines += [
        f"  {describe(run)}{' (continues a shared stage)' * bool(run.shared_stage)}"
        for run in plan.runs
    ]
    if plan.shared_stages:
        lines.append(f"{len(plan.shared_stages)} first stages trained once for several runs:")
    for stage in plan.shared_stages:
        runs = sum(run.shared_stage == stage.name for run in plan.runs)
        lines.append(f"  {describe(stage)}: {runs} runs")
    lines.append(
        f"episodes: {episodes.training - episodes.shared:,} of training ({episodes.shared:,} saved "
        f"by sharing), {episodes.evaluation:,} of evaluation; algorithms may add some"
    )
    return "\n".join(lines)


def _score_table(finished: FinishedCampaign) -> str:
    names = ("average_performance", "backward_transfer", "forgetting", "forward_transfer")
    primary = finished.summary.primary
    rest = f"{primary} without floor tasks"
    rows: list[Sequence[object]] = [("algorithm", "order", "runs", *names, rest)]
    for method in finished.summary.methods:
        cells = [_number(method.scores[name]) for name in names]
        order = " → ".join(method.order)
        cells.append(_number(method.without_floor_tasks[primary]))
        rows.append((method.label, order, f"{method.finished}/{method.planned}", *cells))
    return table(rows)


def _component_table(finished: FinishedCampaign) -> str:
    methods = finished.summary.methods
    names = sorted({name for method in methods for name in method.component_changes})
    rows: list[Sequence[object]] = [("algorithm", "order", *names)]
    for method in methods:
        cells = [_change(method.component_changes.get(name)) for name in names]
        rows.append((method.label, " → ".join(method.order), *cells))
    return table(rows)


def _change(change: ComponentChange | None) -> str:
    if change is None:
        return "–"
    return _number(change.interval) if change.interval else f"{change.mean:.3f}"


def _number(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    if interval.low == interval.high:
        return f"{interval.estimate:.3f} (no variance)"
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
