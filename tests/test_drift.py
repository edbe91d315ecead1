import subprocess
import sys
from collections.abc import Callable
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch

from drift_work import measured
from grpo_cl.bench.drift import drift_scores, forgetting_fits
from grpo_cl.domains.toy import OPTIONS, signal_names
from grpo_cl.errors import CheckpointError
from grpo_cl.metrics.regression import least_squares
from grpo_cl.metrics.rmatrix import BASE, Cell, Drift, RMatrix
from grpo_cl.policy.continual.adapters import new_adapter
from grpo_cl.policy.drift import Past
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.runtime import PAST, PolicyRuntime
from grpo_cl.rundir import RunDir
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import TokenTrace
from tabular_weights import NAME, SHAPE
from toy_resume import resumed_as_if_never_ended
from toy_runs import LORA, toy_config, toy_run

ON = {"trials": 2, "drift": True}
LEFT, RIGHT = OPTIONS.index("left"), OPTIONS.index("right")
SIGNAL = len(OPTIONS) + signal_names().index("left-00")
"""The token of the first signal; tokens of options come before those of signals."""
ODDS = 6.0
"""Of the liked option against each of the four others: chances 0.6 and 0.1 each."""


@pytest.fixture
def runtime(tmp_path: Path) -> Callable[..., PolicyRuntime]:
    def make(**changes: Any) -> PolicyRuntime:
        settings = {"kl_coef": 0.0, "evaluation": ON, **changes}
        return PolicyRuntime(toy_config(tmp_path, **settings))

    return make


def liking(option: int, logit: float = log(ODDS)) -> dict[str, torch.Tensor]:
    """Weights with which the first signal's one option has a logit and the others have none."""
    weight = torch.zeros(SHAPE)
    weight[option, 1] = logit
    return {NAME: weight}


def written(liked: int) -> list[TokenTrace]:
    """Ten replies to the first signal, as often as their chances say."""
    options = [*range(len(OPTIONS)), *[liked] * 5]
    return [
        TokenTrace(ids=(SIGNAL, o), mask=(False, True), logprobs=(0.0,), turns=((1, 2),))
        for o in options
    ]


def compared(policy: PolicyRuntime, domain: str, liked: int) -> Drift:
    """The drift at the end of a stage."""
    found = policy.drift(domain, written(liked))
    policy.remember(domain)
    assert found is not None
    return found


def test_divergences_and_distances_are_those_worked_out_by_hand(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    first = compared(policy, "toy_left", LEFT)
    policy.learner.load_weights(liking(LEFT))
    second = compared(policy, "toy_left", LEFT)
    policy.learner.load_weights(liking(RIGHT))
    third = compared(policy, "toy_left", RIGHT)
    # From chances of 1/5: 0.6 log(0.6/0.2) + 4 · 0.1 log(0.1/0.2).
    from_uniform = 0.6 * log(3) - 0.4 * log(2)
    assert (first.kl_base, first.kl_previous, first.distance_base) == (0, None, 0)
    assert second.kl_base == second.kl_previous == pytest.approx(from_uniform, abs=1e-6)
    assert second.distance_base == second.distance_previous == pytest.approx(log(ODDS))
    assert third.kl_base == pytest.approx(from_uniform, abs=1e-6)
    # Likes exchanged: 0.6 log(0.6/0.1) + 0.1 log(0.1/0.6).
    assert third.kl_previous == pytest.approx(0.5 * log(ODDS), abs=1e-6)
    assert third.distance_base == pytest.approx(log(ODDS))
    assert third.distance_previous == pytest.approx(sqrt(2) * log(ODDS))
    assert third.tokens == 10
    assert third.relative_base is None  # the tabular policy starts with zeros


def test_tokens_are_scored_at_the_temperature_of_training(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime(temperature=2.0)
    policy.learner.load_weights(liking(LEFT, 2 * log(ODDS)))
    found = policy.drift("toy_left", written(LEFT))
    assert found and found.kl_base == pytest.approx(0.6 * log(3) - 0.4 * log(2), abs=1e-6)


def test_each_domain_is_compared_with_the_policy_it_was_left_with(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    for domain in ("toy_left", "toy_right"):
        compared(policy, domain, LEFT)
    policy.learner.load_weights(liking(LEFT))
    compared(policy, "toy_left", LEFT)
    left, right = (compared(policy, name, LEFT) for name in ("toy_left", "toy_right"))
    assert (left.kl_previous, left.distance_previous) == (0, 0)
    assert right.kl_previous == right.kl_base


def test_a_comparison_leaves_the_policy_as_it_was(runtime: Callable[..., PolicyRuntime]) -> None:
    policy = runtime()
    policy.learner.load_weights(liking(LEFT))
    before = policy.model.fingerprint()
    policy.drift("toy_left", written(LEFT))
    assert policy.model.fingerprint() == before


def test_without_tokens_there_is_no_divergence_but_a_distance(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    policy.learner.load_weights(liking(LEFT))
    silent = TokenTrace(ids=(SIGNAL,), mask=(False,), logprobs=(), turns=())
    found = policy.drift("toy_left", [silent])
    assert found
    assert (found.kl_base, found.tokens) == (None, 0)
    assert found.distance_base == pytest.approx(log(ODDS))


def test_adapters_move_by_what_they_add_to_their_layer(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime(lora=LORA)
    past, weights = Past(policy.learner), policy.learner.weights()
    policy.learner.load_weights(new_adapter(weights, seed=7))  # other factors, product still 0
    assert past.drift("toy_left", written(LEFT)).distance_base == 0
    ones = {name: torch.full_like(weight, 0.5) for name, weight in weights.items()}
    policy.learner.load_weights(ones)
    # Every entry of the product is 4 · 0.5 · 0.5 = 1, scaled by alpha/r = 2.
    assert past.drift("toy_left", written(LEFT)).distance_base == pytest.approx(
        2 * sqrt(SHAPE[0] * SHAPE[1])
    )


def test_a_frozen_adapter_is_a_part_of_the_policy(tmp_path: Path) -> None:
    trainer = toy_run(
        tmp_path, cl_algorithm="olora", lora=LORA, evaluation=ON, task_order=("toy_left",)
    )
    policy = trainer.policy
    assert isinstance(policy, PolicyRuntime)
    at_the_end = compared(policy, "toy_left", LEFT)
    trainer.cl_algorithm.before_task("toy_right")  # freezes the adapter and begins a new one
    after = compared(policy, "toy_left", LEFT)
    assert after.kl_base == at_the_end.kl_base != 0
    assert (after.kl_previous, after.distance_previous) == (0, 0)


def test_a_run_measures_drift_only_if_asked(tmp_path: Path) -> None:
    toy_run(tmp_path / "on", evaluation=ON, num_steps_per_task=2, eval_interval=1)
    toy_run(tmp_path / "off", evaluation={"trials": 2}, num_steps_per_task=2)
    on, off = (RMatrix.load(RunDir(tmp_path / name).r_matrix) for name in ("on", "off"))
    drifts = [cell.drift for row in on.rows for cell in row.cells.values()]
    assert all(drift and drift.is_sampled and drift.kl_base is not None for drift in drifts)
    assert all(cell.drift is None for row in off.rows for cell in row.cells.values())
    assert on.scores() == off.scores()
    records = RunDir(tmp_path / "on").read_metrics()["task_1/eval"]
    assert all("kl_previous" in record for record in records)
    # Within a stage the policy is compared with the one at the end of the stage before.
    early, late = (r for r in records if r["domain"] == "toy_left" and "after" not in r)
    assert early["kl_previous"] != late["kl_previous"]
    policies = [
        RunDir(tmp_path / n).checkpoints_dir.glob(f"*/policy/{PAST}") for n in ("on", "off")
    ]
    assert [len(list(found)) > 0 for found in policies] == [True, False]


def test_greedy_episodes_are_called_greedy(tmp_path: Path) -> None:
    toy_run(tmp_path, evaluation={"trials": 1, "drift": True}, num_steps_per_task=1)
    drift = RMatrix.load(RunDir(tmp_path).r_matrix).rows[1].cells["toy_left"].drift
    assert drift and not drift.is_sampled


def test_policies_measured_by_their_domain_have_not_moved_on_old_ones(tmp_path: Path) -> None:
    toy_run(tmp_path, cl_algorithm="single", evaluation=ON, num_steps_per_task=3)
    last = RMatrix.load(RunDir(tmp_path).r_matrix).rows[-1].cells
    old, new = last["toy_left"].drift, last["toy_right"].drift
    assert old and new
    assert (old.kl_previous, old.distance_previous) == (0, 0)
    assert new.kl_previous == new.kl_base != 0


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="sequential"),
        pytest.param({"cl_algorithm": "olora", "lora": LORA}, id="olora"),
        pytest.param(
            {"cl_algorithm": "domain_lora", "lora": LORA}, id="domain_lora", marks=pytest.mark.slow
        ),
        pytest.param(
            {"cl_algorithm": "merge", "cl_options": {"method": "ema"}},
            id="merge",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_resumed_run_measures_the_same_drift_to_the_bit(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    order = ("toy_left", "toy_right", "toy_up")
    settings = {"evaluation": ON, "task_order": order, "num_steps_per_task": 2, **changes}
    assert resumed_as_if_never_ended(tmp_path, step=5, **settings)
    records = RunDir(tmp_path / "parts").read_metrics()["task_2/eval"]
    assert all("kl_previous" in record for record in records)


def test_a_checkpoint_without_earlier_policies_is_refused(tmp_path: Path) -> None:
    saving = {"trackers": (), "save_interval": 1}
    toy_run(tmp_path, num_steps_per_task=1, logging=saving, evaluation={"trials": 2})
    config = toy_config(tmp_path, num_steps_per_task=1, logging=saving, evaluation=ON)
    with pytest.raises(CheckpointError, match=r"evaluation\.drift=false"):
        GRPOTrainer(config.model_copy(update={"resume_from": tmp_path})).train()


@pytest.mark.slow
def test_two_processes_measure_the_drift_of_one(tmp_path: Path) -> None:
    script = Path(__file__).parent / "drift_work.py"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    file = tmp_path / "drift.json"
    subprocess.run([*start, str(script), str(file)], check=True, capture_output=True)
    together = Drift.model_validate_json(file.read_text())
    alone = measured(Ranks(device=torch.device("cpu")))
    assert together.model_dump() == pytest.approx(alone.model_dump(), abs=1e-6)
    assert alone.kl_base and alone.kl_previous and alone.tokens == 31


# --- Over runs


def matrix_of(scores: list[list[float]], last: list[tuple[float, float]]) -> RMatrix:
    """A run whose last row has these divergences from start and from the stage before."""
    domains = tuple("abc"[: len(last)])
    matrix = RMatrix(domains=domains)
    for after, row in zip((BASE, *domains), scores, strict=True):
        for place, (domain, score) in enumerate(zip(domains, row, strict=True)):
            base, previous = last[place] if after == domains[-1] else (9.0, 9.0)
            drift = Drift(
                kl_base=base,
                kl_previous=previous,
                distance_base=3.0,
                distance_previous=1.0,
                start_norm=6.0,
                tokens=10,
                is_sampled=True,
            )
            matrix = matrix.with_cell(after, domain, Cell(mean=score, tasks={}, drift=drift))
    return matrix


THREE = matrix_of(
    [[0, 0, 0], [0.8, 0, 0], [0.7, 0.9, 0], [0.5, 0.7, 1]],
    [(0.4, 0.1), (0.2, 0.3), (0.6, 0.5)],
)
"""Forgets 0.3 of a and 0.2 of b."""


def test_the_drift_of_a_run_is_that_of_its_last_stage() -> None:
    assert drift_scores(THREE) == pytest.approx(
        {
            "kl_base_old": 0.3,
            "kl_previous_old": 0.2,
            "kl_base_new": 0.6,
            "kl_previous_new": 0.5,
            "distance_base": 3.0,
            "distance_previous": 1.0,
            "relative_base": 0.5,
            "relative_previous": 1 / 6,
        }
    )
    assert drift_scores(RMatrix(domains=("a", "b"))) == {}


def test_forgetting_is_fitted_with_a_point_per_run_and_old_domain() -> None:
    two = matrix_of([[0, 0], [0.5, 0], [0.4, 1]], [(0.0, 0.1), (0.2, 0.4)])  # forgets 0.1
    found = {fit.predictor: fit for fit in forgetting_fits([THREE, two])}
    assert {fit.runs for fit in found.values()} == {2}
    # Points (0.4, 0.3), (0.2, 0.2), (0, 0.1) lie on 0.1 + x/2.
    old = found["kl_base_old"].fit
    assert old and old.points == 3
    assert (old.slope, old.intercept, old.r_squared) == pytest.approx((0.5, 0.1, 1.0))
    # (0.6, 0.3), (0.6, 0.2), (0.2, 0.1): slope 0.04/0.10667, R² 0.04²/(0.10667 · 0.02).
    new = found["kl_base_new"].fit
    assert new
    assert (new.slope, new.intercept, new.r_squared) == pytest.approx((0.375, 0.025, 0.75))
    assert forgetting_fits([RMatrix(domains=("a", "b"))]) == ()


def test_a_line_needs_three_points_and_a_spread() -> None:
    assert least_squares([(0, 0), (1, 1)]) is None
    assert least_squares([(1, 0), (1, 1), (1, 2)]) is None
    flat = least_squares([(0, 1), (1, 1), (2, 1)])
    assert flat and (flat.slope, flat.intercept, flat.r_squared) == (0, 1, None)
