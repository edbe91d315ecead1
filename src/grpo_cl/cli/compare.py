"""``grpo-cl compare``: differences of runs from a baseline, paired over tasks."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from grpo_cl.cli import values
from grpo_cl.cli.parser import Parser, command

if TYPE_CHECKING:
    from grpo_cl.campaigns.run_comparison import ComparedRun, RunComparison, TaskDifference
    from grpo_cl.metrics.comparisons import Comparison
    from grpo_cl.metrics.statistics import Interval

SHOWN_TASKS = 8
"""Task names in a line of the text; ``--json`` has all."""


def add_options(parser: Parser) -> None:
    """Add the options of ``compare``."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=values.input_dir,
        metavar="RUN",
        help="directories of finished runs; the others are compared with the first",
    )
    parser.add("--json", action="store_true", help="print everything as one JSON object")
    parser.set_defaults(run=command("compare", "compare"))


def compare(arguments: argparse.Namespace) -> int:
    """Print scores, differences with intervals, and the tasks that were won and lost."""
    from grpo_cl.campaigns.run_comparison import compare_runs

    comparison = compare_runs(arguments.runs)
    if arguments.json:
        print(comparison.model_dump_json(indent=1))
        return 0
    print("\n".join(_lines(comparison)))
    return 0


def _lines(comparison: "RunComparison") -> Iterator[str]:
    from grpo_cl.cli.output import printable, table

    rows: list[Sequence[str]] = [
        ("score", comparison.baseline, "run", "its score", "difference", "p (Holm)")
    ]
    for score, value in comparison.scores.items():
        own = _score(value, comparison.intervals[score])
        for run in comparison.runs:
            other = _score(run.scores[score], run.intervals[score])
            rows.append((score, own, run.name, other, *_difference(run.differences[score])))
    yield printable(table(rows))
    for run in comparison.runs:
        yield printable("\n".join(["", f"{run.name} minus {comparison.baseline}:", *_details(run)]))
    yield (
        "\nIn brackets: 95 % intervals over tasks, each task paired with itself. These and the "
        "p-values are about\nthe given policies, not about the methods that trained them: the "
        "variance between seeds is unknown.\n`grpo-cl bench` trains and compares several seeds."
    )


def _details(run: "ComparedRun") -> Iterator[str]:
    from grpo_cl.cli.output import table

    for name, (before, after) in run.settings.items():
        yield f"  {name}: {before} → {after}"
    domains = list(dict.fromkeys(cell.domain for cell in run.cells))
    cells = {(cell.after, cell.domain): cell for cell in run.cells}
    rows: list[Sequence[str]] = [("after", *domains)]
    for after in dict.fromkeys(cell.after for cell in run.cells):
        found = [cells.get((after, domain)) for domain in domains]
        rows.append(
            (
                after,
                *(
                    "–" if cell is None else _signed(cell.difference, cell.interval)
                    for cell in found
                ),
            )
        )
    yield from (f"  {line}" for line in table(rows).splitlines())
    for domain in domains:
        yield f"  {domain} at the end: {_tasks([t for t in run.tasks if t.domain == domain])}"


def _tasks(differences: Sequence["TaskDifference"]) -> str:
    won = [each.task for each in differences if each.is_won]
    lost = [each.task for each in differences if not each.is_won]
    return f"{_names('won', won)}; {_names('lost', lost)}"


def _names(outcome: str, tasks: Sequence[str]) -> str:
    more = f" and {len(tasks) - SHOWN_TASKS} more" if len(tasks) > SHOWN_TASKS else ""
    listed = f": {', '.join(tasks[:SHOWN_TASKS])}{more}" if tasks else ""
    return f"{outcome} {len(tasks)}{listed}"


def _score(value: float | None, interval: "Interval | None") -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + (f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else "")


def _difference(comparison: "Comparison | None") -> tuple[str, str]:
    if comparison is None:
        return "–", "–"
    p_holm = comparison.p_holm
    shown = _signed(comparison.difference.estimate, comparison.difference)
    return shown, "–" if p_holm is None else f"{p_holm:.3f}"


def _signed(value: float, interval: "Interval | None") -> str:
    return f"{value:+.3f}" + (f" [{interval.low:+.3f}, {interval.high:+.3f}]" if interval else "")
