"""``grpo-cl power``: power analysis of a planned campaign."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_cl.cli.output import table
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.power import (
    Design,
    Precision,
    estimate_design,
    precision_of_average,
    precision_of_backward_transfer,
    precision_of_cell,
    seeds_needed,
)
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.layout import RunDir

_HEAD = ("score", "SE one run", "SE method", "SE difference", "95 % of method", "detectable")
_TESTS = {
    "welch": "Welch's t-test over seeds",
    "paired": "a t-test paired by seed",
    "pooled": "a t-test paired by seed with a variance pooled over all methods",
}
_SCORES = {
    "average performance": precision_of_average,
    "backward transfer": precision_of_backward_transfer,
}


def power(arguments: argparse.Namespace) -> int:
    """Print the standard errors and the minimum detectable differences of a design."""
    estimates = _estimates(arguments.runs)
    design = _design(estimates, arguments)
    precisions = dict(_precisions(design))
    needed = {} if arguments.effect is None else _seeds_needed(design, arguments.effect)
    if arguments.json:
        scores = {name: precision._asdict() for name, precision in precisions.items()}
        print(json.dumps({"design": design.model_dump(), "scores": scores, "seeds": needed}))
        return 0
    print(_assumptions(design))
    if estimates:
        print(f"Estimated from the runs unless given: {', '.join(estimates)}.")
    rows = [(name, *map(_number, precision)) for name, precision in precisions.items()]
    print("", table([_HEAD, *rows]), "", _explanation(design), sep="\n")
    for name, seeds in needed.items():
        count = f"{seeds} seeds of each method" if seeds else "more than a thousand seeds"
        print(f"A difference of {arguments.effect:g} in {name} needs {count}.")
    return 0


def _estimates(runs: Sequence[Path]) -> dict[str, Any]:
    """Parameters of the design estimated from past runs."""
    if not runs:
        return {}
    estimates = estimate_design([RMatrix.load(_matrix_file(path)) for path in runs])
    return {name: value for name, value in estimates._asdict().items() if value is not None}


def _design(estimates: Mapping[str, Any], arguments: argparse.Namespace) -> Design:
    options = {name: vars(arguments)[name] for name in Design.model_fields}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return Design.model_validate({**estimates, **given})
    except ValidationError as error:
        lines = [
            f"--{entry['loc'][0]}: {entry['msg']} (got {entry['input']!r})"
            for entry in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from None


def _matrix_file(path: Path) -> Path:
    return path if path.suffix == ".json" else RunDir(path).r_matrix


def _precisions(design: Design) -> Iterator[tuple[str, Precision]]:
    for tasks in sorted(set(design.tasks)):
        yield f"a cell of {tasks} tasks", precision_of_cell(design, tasks)
    for name, precision in _SCORES.items():
        result = precision(design)
        if result is not None:
            yield name, result


def _seeds_needed(design: Design, effect: float) -> dict[str, int | None]:
    return {
        name: seeds_needed(design, effect, precision)
        for name, precision in _SCORES.items()
        if precision(design) is not None
    }


def _assumptions(design: Design) -> str:
    tasks = ", ".join(str(count) for count in design.tasks)
    return (
        f"{design.seeds} seed(s) of each method, {design.trials} trial(s) of {tasks} test tasks.\n"
        f"Assumed: scores near {design.level:.2f}, {design.task_spread:.0%} of a trial's variance "
        f"between tasks, a standard deviation of {design.seed_sd:.3f} between seeds, correlated by "
        f"{design.domain_correlation:.2f} over domains (design effect {design.design_effect:.2f} "
        f"on average performance){_pairs(design)}."
    )


def _pairs(design: Design) -> str:
    if design.test == "welch":
        return ""
    return f", runs of one seed correlated by {design.pair_correlation:.2f}"


def _explanation(design: Design) -> str:
    if design.seeds == 1:
        return (
            "With one seed no difference between methods is detectable: their standard errors rest "
            "on the assumed standard deviation between seeds alone."
        )
    count = design.comparisons
    corrected = f", divided by {count} comparisons (Holm's first step)" if count > 1 else ""
    return (
        f"Detectable: with a power of {design.power:.0%} by {_TESTS[design.test]} at the 5 % "
        f"level{corrected}, on these test tasks."
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
