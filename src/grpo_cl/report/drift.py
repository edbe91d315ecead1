"""The parts of the page about how the policy moved: from stage to stage, and within stages."""

from collections.abc import Iterator

from grpo_cl.metrics.curves import evaluation_curve, lowest_score, stability_gap
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.report.html import Html, join, note, number, section, table, tag, words
from grpo_cl.report.run import Run

GREEDY = (
    "The episodes were played greedily, so the divergences are no unbiased estimates: "
    "set evaluation.trials to 2 or more."
)


def drift_section(run: Run) -> Html:
    """Divergence and distance from earlier policies, after each stage and for each domain."""
    rows = list(_drifts(run.matrix))
    if not rows:
        return section("Drift", note("Not measured; evaluation.drift was off."))
    head = ("after", "on", "KL from start", "KL from the stage before", "tokens")
    distances = ("distance from start", "relative", "from the stage before", "relative")
    greedy = [c.drift for row in run.matrix.rows for c in row.cells.values() if c.drift]
    return section(
        "Drift",
        table((*head, *distances), rows),
        note(
            "KL: mean log-ratio per token that the policy of the row wrote in the domain. "
            "Distance: of the weights, and as a share of the norm at the start."
        ),
        "" if all(drift.is_sampled for drift in greedy) else note(GREEDY),
    )


def stability_table(run: Run) -> Html:
    """How low each domain fell after it was learned, also between the ends of stages."""
    rows: list[tuple[Html | str, ...]] = []
    for stage, domain in enumerate(run.matrix.domains[:-1]):
        curve = evaluation_curve(run.metrics, domain)
        lowest = lowest_score(curve, stage)
        if lowest is not None:
            rows.append((domain, number(lowest), number(stability_gap(curve, stage))))
    if not rows:
        return note("Stability gaps are not known: set eval_interval to measure within stages.")
    shown = table(("domain", "lowest since learned", "stability gap"), rows)
    return join([tag("h3", "Stability gap"), shown])


def _drifts(matrix: RMatrix) -> Iterator[tuple[object, ...]]:
    for row in matrix.rows:
        for domain, cell in row.cells.items():
            if cell.drift is not None and row.after in matrix.domains:
                drift = cell.drift
                yield (
                    row.after,
                    words(domain),
                    number(drift.kl_base, ".4f"),
                    number(drift.kl_previous, ".4f"),
                    number(drift.tokens, ",d"),
                    number(drift.distance_base, ".4g"),
                    number(drift.relative_base, ".2%"),
                    number(drift.distance_previous, ".4g"),
                    number(drift.relative_previous, ".2%"),
                )
