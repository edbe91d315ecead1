"""The learning curve of one stage over several seeds, with intervals, as a table and a picture.

    python benchmarks/learning_curve.py RUN RUN … --out curve.svg --line "floor" 0.3

Reads the evaluations within a stage (``eval_interval``) from ``metrics.jsonl`` of every run. A step
that not all runs reached has no interval.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from grpo_cl.cli.output import table
from grpo_cl.metrics.statistics import Interval, seed_interval
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.settings import read_settings
from grpo_cl.storage.journal import read_journal

Curve = dict[int, float]
"""Pass rate on the test tasks by number of steps."""


def read_curve(run: Path, stage: int) -> Curve:
    """The evaluations of a stage's own domain: before it, within it and after it."""
    files = RunDir(run)
    domain = read_settings(files.config).task_order[stage]
    found: Curve = {}
    for line in read_journal(files.metrics_journal):
        if line["series"] == f"task_{stage}/eval" and line["domain"] == domain:
            found[line["step"]] = line["pass_rate"]
    return found


def intervals(curves: Sequence[Curve], *, tasks: int) -> dict[int, Interval]:
    """Mean and t interval over seeds at every step that all runs reached."""
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {step: seed_interval([c[step] for c in curves], tasks=tasks) for step in shared}


def print_table(curves: Sequence[Curve], found: dict[int, Interval], *, tasks: int) -> None:
    """Every evaluation, the mean with its interval, and the gain since the first one."""
    gains: defaultdict[int, str] = defaultdict(str)
    for step in found:
        gain = seed_interval([curve[step] - curve[min(found)] for curve in curves], tasks=tasks)
        gains[step] = (
            f"{gain.estimate:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]" if step > min(found) else ""
        )
    rows: list[Sequence[object]] = [
        ("step", *(f"run {n}" for n in range(len(curves))), "mean", "gain")
    ]
    for step in sorted({step for curve in curves for step in curve}):
        scores = [f"{curve[step]:.3f}" if step in curve else "" for curve in curves]
        rows.append((step, *scores, _text(found.get(step)), gains[step]))
    print(table(rows))


def draw(
    curves: Sequence[Curve], found: dict[int, Interval], lines: Sequence[Sequence[str]]
) -> None:
    """One thin line per run, the mean with its band, and horizontal lines for other policies."""
    _, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for curve in curves:
        axes.plot([*curve], [*curve.values()], color="#7a8fb8", linewidth=0.8)
    means = [each.estimate for each in found.values()]
    axes.plot([*found], means, color="#1f4fa3", linewidth=2, label=f"mean of {len(curves)} seeds")
    low, high = ([getattr(each, end) for each in found.values()] for end in ("low", "high"))
    axes.fill_between([*found], low, high, color="#1f4fa3", alpha=0.15, label="95 % t interval")
    for (name, value), style in zip(lines, ("--", ":", "-."), strict=False):
        axes.axhline(float(value), color="#444444", linestyle=style, linewidth=1, label=name)
    axes.set(xlabel="GRPO steps", ylabel="pass rate on test tasks", ylim=(0, 1))
    axes.grid(visible=True, alpha=0.25)
    axes.legend(loc="lower right", fontsize=8, frameon=False, ncols=2)


def _text(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def main() -> None:
    """Print the table, and write the picture if ``--out`` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=40, help="number of test tasks")
    parser.add_argument("--line", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    curves = [read_curve(run, options.stage) for run in options.runs]
    found = intervals(curves, tasks=options.tasks)
    print_table(curves, found, tasks=options.tasks)
    if options.out is not None:
        draw(curves, found, options.line)
        plt.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
