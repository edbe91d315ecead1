"""The R-matrices of a campaign on τ²-bench's own tasks and on generated ones, and how they agree.

    python benchmarks/tau2_rmatrix.py CAMPAIGN_DIR --generated DIR --out tau2_rmatrix.svg

Reads the ``r_matrix.json`` of every run, finished or not, and from ``DIR`` what ``grpo-cl evaluate
RUN/checkpoint_task_N --evaluation.generated COUNT --out DIR/ALGORITHM.N.json`` wrote; ``base.json``
has the initial policy. Where all algorithms share their first stage, one has stage 0 for all.
Tables of scores and differences have finished runs only.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import StatisticsError, correlation, fmean
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from campaign_tables import decimal, interval_text
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.plan.records import Evaluation
from grpo_cl.metrics.bootstrap import Score, bootstrap_interval
from grpo_cl.metrics.comparisons import score_interval
from grpo_cl.metrics.continual import (
    Scores,
    average_performance,
    backward_transfer,
    mean_or_none,
)
from grpo_cl.metrics.floors import FLOORS, without_floor_tasks
from grpo_cl.metrics.plots import COLOURS, MARKERS, STYLE, save
from grpo_cl.metrics.rmatrix import BASE, Cell, DomainFacts, RMatrix
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.settings import read_settings
from grpo_cl.trainer.evaluate import domain_facts

WIDTH = 700 / 96
"""Inches; browsers show 96 pixels per inch."""
MIN_PAIRS = 3
SETS = ("τ²", "generated")
REFERENCE = "sequential"


class Matrices(NamedTuple):
    """One algorithm's R-matrices on τ²-bench's test tasks and on generated ones."""

    algorithm: str
    tau2: RMatrix
    generated: RMatrix


class Pair(NamedTuple):
    """The scores of one policy on both sets of tasks of a domain."""

    domain: str
    tau2: float
    generated: float


def read_campaign(root: Path, generated: Path) -> list[Matrices]:
    """The matrices of every run that has a finished evaluation."""
    runs = [RunDir(path.parent) for path in sorted((root / "runs").glob("*/r_matrix.json"))]
    if not runs:
        raise ConfigError(f"{root} has no runs/*/r_matrix.json; grpo-cl bench writes them")
    configs = [read_settings(run.config) for run in runs]
    counts = Counter(config.cl_algorithm for config in configs)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(
            f"{root}/runs has several runs of {', '.join(repeated)}, and the tables have one of "
            "each algorithm; name a campaign with one seed and one order"
        )
    rows = {path.stem: Evaluation.load(path).cells for path in sorted(generated.glob("*.*.json"))}
    rows["base"] = Evaluation.load(generated / "base.json").cells
    facts = generated_facts(configs[0], rows["base"])
    found = [
        Matrices(
            config.cl_algorithm,
            RMatrix.load(run.r_matrix),
            generated_matrix(config, rows, facts),
        )
        for run, config in zip(runs, configs, strict=True)
    ]
    return sorted(found, key=lambda each: (each.algorithm != REFERENCE, each.algorithm))


def generated_facts(config: GRPOConfig, cells: Mapping[str, Cell]) -> dict[str, DomainFacts]:
    """The floors of the generated tasks, which are drawn again."""
    facts: dict[str, DomainFacts] = {}
    for domain, cell in cells.items():
        section = config.evaluation.model_copy(
            update={"generated": len(cell.tasks), "max_tasks": None}
        )
        loader = TaskDataLoader(config.model_copy(update={"evaluation": section}))
        drawn = {task.id for task in loader.evaluation_tasks(domain)}
        if drawn != set(cell.tasks):
            raise ConfigError(
                f"the {len(cell.tasks)} tasks of {domain} are not those that this version draws; "
                "use the version that evaluated them"
            )
        facts[domain] = domain_facts(domain, loader)
    return facts


def generated_matrix(
    config: GRPOConfig,
    rows: Mapping[str, Mapping[str, Cell]],
    facts: Mapping[str, DomainFacts],
) -> RMatrix:
    """The matrix of one algorithm from the evaluations of its stages."""
    matrix = RMatrix(domains=config.task_order, facts=dict(facts))
    shared = [cells for name, cells in rows.items() if name.endswith(".0")]
    for stage, after in enumerate((BASE, *config.task_order), start=-1):
        own = rows.get("base" if after == BASE else f"{config.cl_algorithm}.{stage}")
        found = own or (shared[0] if stage == 0 and len(shared) == 1 else {})
        for domain, cell in found.items():
            matrix = matrix.with_cell(after, domain, cell)
    return matrix


def pairs(algorithms: Sequence[Matrices]) -> list[Pair]:
    """The cells that both matrices have; those of shared policies count once."""
    found: dict[tuple[object, ...], Pair] = {}
    for each in algorithms:
        for index, after in enumerate(each.tau2.stages):
            first = _first_equal(algorithms, each, after) if index == 1 else each.algorithm
            policy = after if index == 0 else (first, after)
            for domain in each.tau2.domains:
                own, other = each.tau2.cell(after, domain), each.generated.cell(after, domain)
                if own and other:
                    pair = Pair(domain, own.mean, other.mean)
                    found.setdefault((policy, domain), pair)
    return list(found.values())


def _first_equal(algorithms: Sequence[Matrices], each: Matrices, after: str) -> str:
    """The first algorithm with the same results after a stage: they share the stage."""
    return next(o.algorithm for o in algorithms if _results(o, after) == _results(each, after))


def _results(each: Matrices, after: str) -> list[object]:
    cells = [matrix.cell(after, d) for d in each.tau2.domains for matrix in each[1:]]
    return [cell and cell.tasks for cell in cells]


def pearson(found: Sequence[Pair]) -> float | None:
    """Pearson's correlation; None with too few pairs or if one score is constant."""
    if len(found) < MIN_PAIRS:
        return None
    try:
        return correlation([pair.tau2 for pair in found], [pair.generated for pair in found])
    except StatisticsError:
        return None


def centred(found: Sequence[Pair]) -> list[Pair]:
    """The scores around their domain's means: whether both move together in training."""
    return [
        pair._replace(
            tau2=pair.tau2 - fmean(p.tau2 for p in found if p.domain == pair.domain),
            generated=pair.generated - fmean(p.generated for p in found if p.domain == pair.domain),
        )
        for pair in found
    ]


def matrix_rows(algorithms: Sequence[Matrices]) -> Iterator[Sequence[object]]:
    """Every stage of every algorithm, each domain with both scores."""
    domains = algorithms[0].tau2.domains
    yield ("algorithm", "after", *(f"{domain} {kind}" for domain in domains for kind in SETS))
    for each in algorithms:
        for after in each.tau2.stages:
            cells = [m.cell(after, d) for d in domains for m in (each.tau2, each.generated)]
            if any(cells):
                scores = [decimal(cell.mean if cell else None) for cell in cells]
                yield (f"`{each.algorithm}`", after, *scores)


def rest_only(algorithms: Sequence[Matrices]) -> list[Matrices]:
    """The matrices on the tasks that no floor policy solves, where these tasks are known."""
    return [
        Matrices(each.algorithm, tau2, generated)
        for each in algorithms
        if (tau2 := without_floor_tasks(each.tau2))
        and (generated := without_floor_tasks(each.generated))
    ]


def finished(algorithms: Sequence[Matrices]) -> list[Matrices]:
    """The algorithms of which both matrices have the last stage."""
    return [
        each
        for each in algorithms
        if all(matrix.evaluated_stages == matrix.stages for matrix in each[1:])
    ]


def floor_rows(each: Matrices) -> Iterator[Sequence[object]]:
    """The floors of both sets of tasks, and how many tasks a floor policy solves."""
    domains = each.tau2.domains
    yield ("policy", *(f"{domain} {kind}" for domain in domains for kind in SETS))
    facts = [matrix.facts.get(d) for d in domains for matrix in (each.tau2, each.generated)]
    for key, name in FLOORS.items():
        yield (name, *(decimal(getattr(fact, key)) if fact else "" for fact in facts))
    tasks = [matrix.cell(BASE, d) for d in domains for matrix in (each.tau2, each.generated)]
    counts = [
        f"{len(fact.floor_tasks or ())} of {len(cell.tasks)}" if fact and cell else ""
        for fact, cell in zip(facts, tasks, strict=True)
    ]
    yield ("tasks that one of them solves", *counts)


def score_rows(algorithms: Sequence[Matrices]) -> Iterator[Sequence[object]]:
    """Average performance, its gain and backward transfer, with intervals over tasks."""
    yield ("algorithm", *(f"{name} {kind}" for name in SCORES for kind in SETS))
    for each in algorithms:
        intervals = [
            score_interval([matrix], score, rng=Random(name))
            for name, score in SCORES.items()
            for matrix in (each.tau2, each.generated)
        ]
        yield (f"`{each.algorithm}`", *map(interval_text, intervals))


def difference_rows(algorithms: Sequence[Matrices]) -> Iterator[Sequence[object]]:
    """Scores minus those of the first algorithm, paired over tasks.

    All start from the same policy, so the difference of the gain is that of the performance.
    """
    first, *others = algorithms
    scores = {name: score for name, score in SCORES.items() if score is not average_gain}
    yield (
        f"minus `{first.algorithm}`",
        *(f"{name} {kind}" for name in scores for kind in SETS),
    )
    for each in others:
        intervals = [
            bootstrap_interval([matrix], score, rng=Random(name), baseline=[reference])
            for name, score in scores.items()
            for matrix, reference in zip(each[1:], first[1:], strict=True)
        ]
        yield (f"`{each.algorithm}`", *(interval_text(found, sign="+") for found in intervals))


def change_rows(algorithms: Sequence[Matrices]) -> Iterator[Sequence[object]]:
    """The change of each domain in its own stage and since, paired over tasks."""
    domains = algorithms[0].tau2.domains
    yield ("algorithm", "change", *(f"{domain} {kind}" for domain in domains for kind in SETS))
    last = len(domains)
    changes = {
        "in its stage": [partial(_change, j, before=j, after=j + 1) for j in range(last)],
        "since": [partial(_change, j, before=j + 1, after=last) for j in range(last)],
    }
    for each in algorithms:
        for name, of_domains in changes.items():
            intervals = [
                bootstrap_interval([matrix], change, rng=Random(name))
                for change in of_domains
                for matrix in (each.tau2, each.generated)
            ]
            texts = [interval_text(found, sign="+") for found in intervals]
            yield (f"`{each.algorithm}`", name, *texts)


def average_gain(scores: Scores) -> float | None:
    """The mean over domains after the last stage, minus that of the initial policy."""
    last, base = average_performance(scores), mean_or_none(scores[0])
    return None if last is None or base is None else last - base


def _change(index: int, scores: Scores, *, before: int, after: int) -> float | None:
    """The change of a domain between two rows; None if a cell is missing or no stage between."""
    if after >= len(scores) or before == after:
        return None
    first, last = scores[before][index], scores[after][index]
    return None if first is None or last is None else last - first


def agreement_rows(found: Sequence[Pair]) -> Iterator[Sequence[object]]:
    """Correlation and gap of the two scores, over all pairs and in each domain."""
    yield ("cells", "n", "Pearson", "mean of generated minus τ²")
    domains = list(dict.fromkeys(pair.domain for pair in found))
    kinds = {"all": found, "all, around domain means": centred(found)}
    kinds |= {domain: [pair for pair in found if pair.domain == domain] for domain in domains}
    for name, chosen in kinds.items() if found else ():
        gap = fmean(pair.generated - pair.tau2 for pair in chosen)
        yield (name, len(chosen), decimal(pearson(chosen)), decimal(gap, sign="+"))


def markdown(title: str, rows: Iterator[Sequence[object]]) -> str:
    """A Markdown table under its title; the first row is the header."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    rule = f"|{'---|' * (lines[0].count('|') - 1)}"
    return "\n".join([f"{title}:", "", lines[0], rule, *lines[1:], ""])


SCORES: dict[str, Score] = {
    "average performance": average_performance,
    "its gain": average_gain,
    "backward transfer": backward_transfer,
}


def draw(found: Sequence[Pair]) -> Figure:
    """One point per cell: the score on generated tasks and that on τ²-bench's."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    domains = list(dict.fromkeys(pair.domain for pair in found))
    if len(domains) > len(COLOURS):
        raise ConfigError(
            f"{len(domains)} domains in a picture with {len(COLOURS)} colours; leave --out out"
        )
    for domain, colour, marker in zip(domains, COLOURS, MARKERS, strict=False):
        chosen = [pair for pair in found if pair.domain == domain]
        axes.scatter(
            [pair.generated for pair in chosen],
            [pair.tau2 for pair in chosen],
            color=colour,
            marker=marker,
            label=domain,
        )
    axes.axline((0, 0), slope=1, color="#888888", linewidth=1, linestyle="--")
    axes.set(
        xlabel="pass rate on generated test tasks",
        ylabel="pass rate on τ²-bench's test tasks",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables, and write the picture if ``--out`` is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", type=Path)
    parser.add_argument("--generated", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    algorithms = read_campaign(options.campaign, options.generated)
    found, rest = pairs(algorithms), rest_only(algorithms)
    print(markdown("All tasks", matrix_rows(algorithms)))
    print(markdown("Floors", floor_rows(algorithms[0])))
    if rest:
        print(markdown("Tasks that no floor policy solves", matrix_rows(rest)))
    for title, chosen in (
        ("all tasks", finished(algorithms)),
        ("without floor tasks", finished(rest)),
    ):
        if chosen:
            print(markdown(f"Scores with 95 % intervals over tasks, {title}", score_rows(chosen)))
            print(markdown(f"Differences, {title}", difference_rows(chosen)))
    print(markdown("Changes of each domain, all tasks", change_rows(algorithms)))
    print(markdown("Agreement, all tasks", agreement_rows(found)))
    if rest:
        print(markdown("Agreement, without floor tasks", agreement_rows(pairs(rest))))
    if options.out is not None:
        with mpl.rc_context(STYLE):
            save(draw(found), options.out, name="tau2_rmatrix")


if __name__ == "__main__":
    main()
