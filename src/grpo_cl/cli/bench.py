"""``grpo-cl bench``: a campaign of runs, their results and their page."""

import argparse
from collections.abc import Sequence
from typing import Any

from grpo_cl.bench import Campaign, Conducted, conduct, estimate, make_plan, read_campaign
from grpo_cl.bench.runner import describe
from grpo_cl.cli.world import table
from grpo_cl.metrics.statistics import Interval


def bench(arguments: argparse.Namespace) -> int:
    """Train the runs of a campaign that are missing, and write results and page."""
    changes: dict[str, Any] = {"out": arguments.out, "workers": arguments.workers}
    given = {name: value for name, value in changes.items() if value is not None}
    campaign = read_campaign(arguments.file, **given)
    if arguments.dry_run:
        print(_described(campaign))
        return 0
    done = conduct(campaign, say=lambda line: print(line, flush=True))
    print(_shown(done))
    for sentence in done.summary.missing:
        print(f"missing: {sentence}")
    print(f"results: {done.folder.results}\nreport: {done.folder.report}")
    return 0 if done.is_complete else 1


def _described(campaign: Campaign) -> str:
    plan = make_plan(campaign)
    found = estimate(plan)
    lines = [f"{campaign.name}: {len(plan.runs)} runs into {campaign.out}"]
    lines += [
        f"  {describe(run)}{' (goes on from a shared stage)' * bool(run.trunk)}"
        for run in plan.runs
    ]
    lines += [f"{len(plan.trunks)} first stages trained once for several runs:"] * bool(plan.trunks)
    for trunk in plan.trunks:
        runs = sum(run.trunk == trunk.name for run in plan.runs)
        lines.append(f"  {describe(trunk)}: {runs} runs")
    lines.append(
        f"episodes: {found.training - found.shared:,} of training ({found.shared:,} saved by "
        f"sharing), {found.evaluation:,} of evaluation; algorithms may add some"
    )
    return "\n".join(lines)


def _shown(done: Conducted) -> str:
    names = ("average_performance", "backward_transfer", "forgetting", "forward_transfer")
    rows: list[Sequence[object]] = [("algorithm", "order", "runs", *names)]
    for found in done.summary.methods:
        cells = [_number(found.scores[name]) for name in names]
        order = " → ".join(found.order)
        rows.append((found.label, order, f"{found.finished}/{found.planned}", *cells))
    return table(rows)


def _number(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
