"""The parts of the page about what the run kept and what it cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_cl.metrics.names import numbers
from grpo_cl.metrics.tracker import BUFFER
from grpo_cl.report.html import Html, note, number, section, table
from grpo_cl.report.run import Run

SECONDS = "_s"
"""Names of times end so."""


def buffer_section(run: Run) -> Html:
    """What the trajectory buffer held at last."""
    records = run.records(BUFFER)
    held: Mapping[str, Mapping[str, Any]] = records[-1].get("domains", {}) if records else {}
    if not held:
        return section("Trajectory buffer", note("No buffer statistics were logged."))
    columns = list(dict.fromkeys(name for domain in held.values() for name in domain))
    rows = [
        (domain, *(_count_or_share(values.get(name)) for name in columns))
        for domain, values in held.items()
    ]
    return section("Trajectory buffer", table(("domain", *map(_words, columns)), rows))


def effort_section(run: Run) -> Html:
    """Steps, tokens and seconds of each stage."""
    stages = [
        (domain, [numbers(record) for record in run.records(f"task_{index}/train")])
        for index, domain in enumerate(run.matrix.domains)
    ]
    names = {name for _, records in stages for record in records for name in record}
    times = sorted(name for name in names if name.endswith(SECONDS))
    rows = [(domain, *_effort(records, times)) for domain, records in stages]
    head = ("stage", "steps", "tokens", "tokens/s", *map(_words, times))
    return section(
        "Time and tokens", table(head, rows), note("Sums over the training steps of a stage.")
    )


def _effort(records: Sequence[Mapping[str, float]], times: Sequence[str]) -> list[Html]:
    tokens = _sum(records, "tokens")
    seconds = _sum(records, "step_s")
    speed = tokens / seconds if tokens is not None and seconds else None
    sums = [number(_sum(records, name), ",.1f") for name in times]
    return [number(len(records), ",d"), number(tokens, ",.0f"), number(speed, ",.0f"), *sums]


def _sum(records: Sequence[Mapping[str, float]], name: str) -> float | None:
    known = [record[name] for record in records if name in record]
    return sum(known) if known else None


def _count_or_share(value: Any) -> Html:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return number(value, ",.0f" if is_whole else ".3f")


def _words(name: str) -> str:
    """A logged name as a heading."""
    bare = name.rsplit("/", 1)[-1]
    return f"{bare.removesuffix(SECONDS)}, s" if bare.endswith(SECONDS) else bare.replace("_", " ")
