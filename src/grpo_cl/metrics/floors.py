"""Scores without the tasks that policies without skill solve. Definitions: docs/metrics.md."""

from typing import NamedTuple

from grpo_cl.metrics.rmatrix import BASE, Cell, DomainFacts, RMatrix, Row

FLOORS = {
    "idle": "does nothing",
    "transfer": "transfers at once",
    "repeat_reads": "repeats reads",
    "spam_writes": "spams writes",
}
"""The floor policies of a domain's facts, and what each does."""


class FloorGain(NamedTuple):
    """The change of a domain's pass rate since the untrained policy, with and without floor tasks.

    Floor tasks are those that a floor policy solves.
    """

    after: str
    """The stage after which the domain was evaluated."""
    all_tasks: float
    without_floor_tasks: float | None
    """None if a floor policy solves every task."""

    @property
    def is_only_floor_tasks(self) -> bool:
        """Whether the pass rate rose, but not on the tasks that no floor policy solves."""
        return self.all_tasks > 0 and (self.without_floor_tasks or 0.0) <= 0


class DomainFloors(NamedTuple):
    """A domain's floors, and its pass rates on the tasks that no floor policy solves."""

    domain: str
    floors: dict[str, float | None]
    """Mean reward of each floor policy, by its key in ``FLOORS``."""
    num_tasks: int
    num_floor_tasks: int
    untrained: float | None
    """Pass rate without the floor tasks, before training; None if not evaluated or none is left."""
    learned: float | None
    """The same after the domain's own stage."""
    last: float | None
    """The same after the last stage."""
    gains: tuple[FloorGain, ...]
    """After the domain's own stage and after the last one."""


def floor_numbers(cell: Cell, facts: DomainFacts) -> dict[str, float | None]:
    """The floors of an evaluation's tasks, and its pass rate without the floor tasks."""
    rate = _rest_rate(cell, frozenset(facts.floor_tasks or ()))
    floors = {f"floor_{name}": getattr(facts, name) for name in FLOORS}
    return {**floors, "pass_rate_without_floor_tasks": rate}


def domain_floors(matrix: RMatrix) -> list[DomainFloors]:
    """The floors of every domain on whose evaluation tasks the floor policies were played."""
    return [
        _floors_of(matrix, domain, facts, frozenset(facts.floor_tasks))
        for domain, facts in matrix.facts.items()
        if facts.floor_tasks is not None
    ]


def floor_remarks(matrix: RMatrix) -> list[str]:
    """A sentence for every gain that comes only from tasks that a floor policy solves."""
    return [
        f"{row.domain} after {gain.after}: the gain of {gain.all_tasks:+.3f} since the untrained "
        f"policy comes only from the {row.num_floor_tasks} of {row.num_tasks} tasks that a policy "
        "without skill solves; on the others the change is "
        f"{'unknown' if gain.without_floor_tasks is None else f'{gain.without_floor_tasks:+.3f}'}."
        for row in domain_floors(matrix)
        for gain in row.gains
        if gain.is_only_floor_tasks
    ]


def without_floor_tasks(matrix: RMatrix) -> RMatrix | None:
    """The R-matrix on the tasks that no floor policy solves; None if these are not known.

    A domain with floor tasks has the pass rates of its other tasks, and no cell if there are none.
    The other domains keep their cells, whose rewards may lie between 0 and 1.
    """
    floors = {domain: facts.floor_tasks for domain, facts in matrix.facts.items()}
    if any(floors.get(domain) is None for domain in matrix.domains):
        return None
    rows = [
        Row(
            after=row.after,
            cells={
                domain: rest
                for domain, cell in row.cells.items()
                if (rest := _rest(cell, frozenset(floors[domain] or ())))
            },
        )
        for row in matrix.rows
    ]
    return RMatrix(domains=matrix.domains, rows=tuple(rows))


def _floors_of(
    matrix: RMatrix, domain: str, facts: DomainFacts, floor_tasks: frozenset[str]
) -> DomainFloors:
    stages = dict.fromkeys(
        stage for stage in (domain, *(row.after for row in matrix.rows[-1:])) if stage != BASE
    )
    cells = {stage: matrix.cell(stage, domain) for stage in (BASE, *stages)}
    base = cells[BASE]
    tasks = next((cell.tasks for cell in cells.values() if cell), {})
    gains = [
        gain
        for stage in stages
        if base and (cell := cells[stage]) and (gain := _gain(stage, base, cell, floor_tasks))
    ]
    last = matrix.rows[-1].after if matrix.rows else BASE
    return DomainFloors(
        domain=domain,
        floors={name: getattr(facts, name) for name in FLOORS},
        num_tasks=len(tasks),
        num_floor_tasks=len(floor_tasks & set(tasks)),
        untrained=_rest_rate(base, floor_tasks),
        learned=_rest_rate(matrix.cell(domain, domain), floor_tasks),
        last=_rest_rate(matrix.cell(last, domain), floor_tasks),
        gains=tuple(gains),
    )


def _gain(stage: str, base: Cell, cell: Cell, floor_tasks: frozenset[str]) -> FloorGain | None:
    before, after = base.pass_rate, cell.pass_rate
    if before is None or after is None:
        return None
    rest = _rest_rate(base, floor_tasks), _rest_rate(cell, floor_tasks)
    change = None if rest[0] is None or rest[1] is None else rest[1] - rest[0]
    return FloorGain(stage, after - before, change)


def _rest(cell: Cell, floor_tasks: frozenset[str]) -> Cell | None:
    if floor_tasks.isdisjoint(cell.tasks):
        return cell
    tasks = {task: counts for task, counts in cell.tasks.items() if task not in floor_tasks}
    rate = Cell(mean=0.0, tasks=tasks).pass_rate
    return None if rate is None else Cell(mean=rate, tasks=tasks)


def _rest_rate(cell: Cell | None, floor_tasks: frozenset[str]) -> float | None:
    rest = _rest(cell, floor_tasks) if cell else None
    return rest.pass_rate if rest else None
