import pytest

from grpo_cl.campaigns.components import component_changes
from grpo_cl.campaigns.results import RunResult
from grpo_cl.metrics.comparisons import Analysis
from grpo_cl.metrics.rmatrix import Cell, RMatrix

ORDER = ("airline", "retail")


def run(label: str, seed: int, database: tuple[float, float]) -> RunResult:
    """A run whose ``DB`` on airline is ``database`` when learned and at the end."""

    def cell(**components: float) -> Cell:
        return Cell(mean=0.5, tasks={"t": (1, 2)}, components=components)

    learned, last = database
    matrix = (
        RMatrix(domains=ORDER)
        .with_cell("airline", "airline", cell(DB=learned, tool_name=0.9))
        .with_cell("retail", "airline", cell(DB=last, tool_name=0.8))
        .with_cell("retail", "retail", cell(DB=0.7, COMMUNICATE=0.3))
    )
    return RunResult(
        label=label,
        algorithm=label,
        seed=seed,
        order=ORDER,
        fingerprint="",
        shared_stage=f"airline.{seed}",
        r_matrix=matrix,
    )


def test_each_component_has_its_change_and_its_difference_from_the_reference_by_hand():
    runs = {
        "sequential": [run("sequential", 0, (0.9, 0.5)), run("sequential", 1, (0.8, 0.6))],
        "ewc": [run("ewc", 0, (0.9, 0.8)), run("ewc", 1, (0.8, 0.7))],
    }
    found = component_changes(runs, "sequential", Analysis(paired=["ewc"]))
    # Nothing is learned after retail, whose tasks alone are judged by what was communicated.
    assert list(found["ewc"]) == ["DB", "tool_name"]
    lost, kept = found["sequential"]["DB"], found["ewc"]["DB"]
    assert (lost.mean, kept.mean) == pytest.approx((-0.3, -0.1))
    # Seeds -0.4 and -0.2: a standard error of 0.1, and t(1) = 12.706.
    assert lost.interval is not None
    assert (lost.interval.low, lost.interval.high) == pytest.approx((-1.5706, 0.9706), abs=1e-4)
    assert lost.difference is None
    assert kept.difference is not None
    assert kept.difference.difference.estimate == pytest.approx((0.3 + 0.1) / 2)
    assert kept.difference.difference.method == "paired t over seeds"
    assert kept.difference.p_holm is None
    assert found["ewc"]["tool_name"].mean == pytest.approx(-0.1)


def test_one_seed_has_the_change_of_a_component_without_an_interval():
    runs = {"sequential": [run("sequential", 0, (0.9, 0.5))], "ewc": []}
    found = component_changes(runs, "sequential", Analysis())
    change = found["sequential"]["DB"]
    assert (change.mean, change.interval, change.difference) == (pytest.approx(-0.4), None, None)
    assert found["ewc"] == {}
