from typing import Any

import pytest

from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from grpo_cl.report.charts import mean_chart, run_chart

DOMAINS = ("airline", "retail")


def metrics(shift: float = 0.0) -> dict[str, list[dict[str, Any]]]:
    """Two stages of four steps, evaluated before and after each."""
    series: dict[str, list[dict[str, Any]]] = {"task_0/eval": [], "task_1/eval": []}
    for stage in (0, 1):
        rewards = [{"step": step, "reward_mean": step / 4 + shift} for step in range(4)]
        series[f"task_{stage}/train"] = rewards
    for stage, step in ((0, 0), (0, 4), (1, 4)):
        for domain in DOMAINS:
            place = {"task_idx": stage, "step": step, "domain": domain}
            series[f"task_{stage}/eval"].append({**place, "reward_mean": 0.5 + shift})
    return series


def test_the_chart_of_a_run_has_every_step_a_moving_mean_and_bars_at_evaluations():
    counts = {f"task {n}": (n % 2, 1) for n in range(10)}
    matrix = RMatrix(domains=DOMAINS)
    for after in (BASE, *DOMAINS):
        matrix = matrix.with_cell(after, "airline", Cell(mean=0.5, tasks=counts))
    chart = run_chart(metrics(), matrix)
    assert [(s.domain, s.start, s.length) for s in chart.stages] == [
        ("airline", 0, 4),
        ("retail", 4, 4),
    ]
    assert [point.step for point in chart.steps[1]] == [4, 5, 6, 7]
    # The last three steps: 0.25, 0.5, 0.75.
    last = chart.training[0][-1]
    assert last.value == pytest.approx(0.5)
    assert last.high == pytest.approx(0.5 + 0.2041, abs=1e-4)
    assert [point.step for point in chart.evaluations["airline"]] == [0, 4, 8]
    lows = [point.low for point in chart.evaluations["airline"]]
    assert all(low is not None and 0 < low < 0.5 for low in lows)
    assert all(point.low is None for point in chart.evaluations["retail"])
    assert (chart.x(0), chart.x(8)) == (chart.left, chart.right)
    assert (chart.y(0), chart.y(1)) == (chart.bottom, chart.top)


def test_the_band_of_several_runs_is_the_interval_over_seeds():
    chart = mean_chart([metrics(-0.05), metrics(0.0), metrics(0.05)], DOMAINS)
    point = chart.evaluations["retail"][0]
    # Standard deviation 0.05, t(2) = 4.303: 0.1242 to each side.
    assert (point.value, point.low, point.high) == pytest.approx((0.5, 0.3758, 0.6242), abs=1e-4)
    assert len(chart.training[1]) == 4
    alone = mean_chart([metrics()], DOMAINS)
    assert alone.evaluations["retail"][0].low is None


def test_rewards_above_one_widen_the_axis():
    assert run_chart(metrics(), RMatrix(domains=DOMAINS)).limits == (0.0, 1.0)
    assert run_chart(metrics(0.8), RMatrix(domains=DOMAINS)).limits == (0.0, 2.0)
