"""``grpo-cl power``: what difference a campaign can detect, before it is run."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_cl.cli.world import table
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.power import (
    Design,
    Precision,
    habits,
    precision_of_average,
    precision_of_backward_transfer,
    precision_of_cell,
    seeds_needed,
)
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.rundir import RunDir

_HEAD = ("score", "SE one run", "SE method", "SE difference", "95 % of method", "detectable")
_WANTED = {
    "average performance": precision_of_average,
    "backward transfer": precision_of_backward_transfer,
}


def power(arguments: argparse.Namespace) -> int:
    """Print how well the planned campaign will know its scores."""
    past = _past(arguments.runs)
    design = _design(past, arguments)
    found = dict(_precisions(design))
    needed = {} if arguments.effect is None else _needed(design, arguments.effect)
    if arguments.json:
        scores = {name: precision._asdict() for name, precision in found.items()}
        print(json.dumps({"design": design.model_dump(), "scores": scores, "seeds": needed}))
        return 0
    print(_premises(design))
    if past:
        print(f"Taken from the runs unless given: {', '.join(past)}.")
    rows = [(name, *map(_number, precision)) for name, precision in found.items()]
    print("", table([_HEAD, *rows]), "", _reading(design), sep="\n")
    for name, seeds in needed.items():
        answer = f"{seeds} seeds of each method" if seeds else "more than a thousand seeds"
        print(f"A difference of {arguments.effect:g} in {name} needs {answer}.")
    return 0


def _past(runs: Sequence[Path]) -> dict[str, Any]:
    """What past runs say about the design."""
    if not runs:
        return {}
    found = habits([RMatrix.load(_matrix_file(path)) for path in runs])
    return {name: value for name, value in found._asdict().items() if value is not None}


def _design(past: Mapping[str, Any], arguments: argparse.Namespace) -> Design:
    given = {name: vars(arguments)[name] for name in Design.model_fields}
    asked = {name: value for name, value in given.items() if value is not None}
    try:
        return Design.model_validate({**past, **asked})
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
    for name, precision in _WANTED.items():
        found = precision(design)
        if found is not None:
            yield name, found


def _needed(design: Design, effect: float) -> dict[str, int | None]:
    return {
        name: seeds_needed(design, effect, precision)
        for name, precision in _WANTED.items()
        if precision(design) is not None
    }


def _premises(design: Design) -> str:
    tasks = ", ".join(str(count) for count in design.tasks)
    return (
        f"{design.seeds} seed(s) of each method, {design.trials} play(s) of {tasks} test tasks.\n"
        f"Assumed: scores near {design.level:.2f}, {design.task_spread:.0%} of a play's variance "
        f"between tasks, a cell differs by {design.seed_sd:.3f} (sd) between seeds."
    )


def _reading(design: Design) -> str:
    if design.seeds == 1:
        return (
            "With one seed nothing can be said about methods: the errors of a method and of a "
            "difference rest on the assumed spread between seeds alone."
        )
    count = design.comparisons
    shared = f", shared by {count} comparisons (Holm's first step)" if count > 1 else ""
    return (
        f"Detectable: found with a chance of {design.power:.0%} by Welch's t over seeds at 5 %"
        f"{shared}, on these test tasks."
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
