from collections.abc import Callable
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch

from drift_work import measure_drift
from grpo_cl.campaigns.drift import drift_scores, forgetting_fits
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.toy.domain import OPTIONS, signal_names
from grpo_cl.errors import CheckpointError
from grpo_cl.metrics.rmatrix import BASE, Cell, Drift, RMatrix
from grpo_cl.metrics.statistics import least_squares
from grpo_cl.policy.continual.adapters import new_adapter
from grpo_cl.policy.continual.policy_drift import PolicyHistory
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.runtime import PAST, PolicyRuntime
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import TokenTrace
from tabular_weights import NAME, SHAPE
from toy_resume import resume_equals_uninterrupted
from toy_runs import LORA, toy_config, toy_run
from two_processes import run_two_processes

ON = {"trials": 2, "drift": True}
LEFT, RIGHT = OPTIONS.index("left"), OPTIONS.index("right")
SIGNAL = len(OPTIONS) + signal_names().index("left-00")
"""The token of the first signal; tokens of options come before those of signals."""
ODDS = 6.0
"""Of the preferred option against each of the four others: probabilities 0.6 and 0.1 each."""


@pytest.fixture
def runtime(tmp_path: Path) -> Callable[..., PolicyRuntime]:
    def make(**changes: Any) -> PolicyRuntime:
        settings = {"kl_coef": 0.0, "evaluation": ON, **changes}
        return PolicyRuntime(toy_config(tmp_path, **settings))

    return make


def weights_preferring(option: int, logit: float = log(ODDS)) -> dict[str, torch.Tensor]:
    """Weights with a logit for one option of the first signal, and zero elsewhere."""
    weight = torch.zeros(SHAPE)
    weight[option, 1] = logit
    return {NAME: weight}


def samples_of(preferred: int) -> list[TokenTrace]:
    """Ten replies to the first signal, in proportion to their probabilities."""
    options = [*range(len(OPTIONS)), *[preferred] * 5]
    return [
        TokenTrace(ids=(SIGNAL, o), mask=(False, True), logprobs=(0.0,), turns=((1, 2),))
        for o in options
    ]


def record_drift(policy: PolicyRuntime, domain: str, preferred: int) -> Drift:
    """The drift at the end of a stage, after which the policy becomes the previous one."""
    drift = policy.drift(domain, samples_of(preferred))
    policy.remember(domain)
    assert drift is not None
    return drift


def test_divergences_and_distances_have_their_hand_worked_values(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    first = record_drift(policy, "toy_left", LEFT)
    policy.learner.load_weights(weights_preferring(LEFT))
    second = record_drift(policy, "toy_left", LEFT)
    policy.learner.load_weights(weights_preferring(RIGHT))
    third = record_drift(policy, "toy_left", RIGHT)
    # From probabilities of 1/5: 0.6 log(0.6/0.2) + 4 · 0.1 log(0.1/0.2).
    from_uniform = 0.6 * log(3) - 0.4 * log(2)
    assert (first.kl_base, first.kl_previous, first.distance_base) == (0, None, 0)
    assert second.kl_base == second.kl_previous == pytest.approx(from_uniform, abs=1e-6)
    assert second.distance_base == second.distance_previous == pytest.approx(log(ODDS))
    assert third.kl_base == pytest.approx(from_uniform, abs=1e-6)
    # Preferences exchanged: 0.6 log(0.6/0.1) + 0.1 log(0.1/0.6).
    assert third.kl_previous == pytest.approx(0.5 * log(ODDS), abs=1e-6)
    assert third.distance_base == pytest.approx(log(ODDS))
    assert third.distance_previous == pytest.approx(sqrt(2) * log(ODDS))
    assert third.tokens == 10
    assert third.relative_base is None  # the tabular policy starts with zeros


def test_logprobs_are_computed_at_the_training_temperature(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime(temperature=2.0)
    policy.learner.load_weights(weights_preferring(LEFT, 2 * log(ODDS)))
    drift = policy.drift("toy_left", samples_of(LEFT))
    assert drift and drift.kl_base == pytest.approx(0.6 * log(3) - 0.4 * log(2), abs=1e-6)


def test_each_domain_is_compared_with_its_own_previous_policy(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    for domain in ("toy_left", "toy_right"):
        record_drift(policy, domain, LEFT)
    policy.learner.load_weights(weights_preferring(LEFT))
    record_drift(policy, "toy_left", LEFT)
    left, right = (record_drift(policy, name, LEFT) for name in ("toy_left", "toy_right"))
    assert (left.kl_previous, left.distance_previous) == (0, 0)
    assert right.kl_previous == right.kl_base


def test_measuring_drift_leaves_the_policy_unchanged(runtime: Callable[..., PolicyRuntime]) -> None:
    policy = runtime()
    policy.learner.load_weights(weights_preferring(LEFT))
    before = policy.model.fingerprint()
    policy.drift("toy_left", samples_of(LEFT))
    assert policy.model.fingerprint() == before


def test_without_tokens_there_is_no_divergence_but_a_distance(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    policy.learner.load_weights(weights_preferring(LEFT))
    no_tokens = TokenTrace(ids=(SIGNAL,), mask=(False,), logprobs=(), turns=())
    drift = policy.drift("toy_left", [no_tokens])
    assert drift
    assert (drift.kl_base, drift.tokens) == (None, 0)
    assert drift.distance_base == pytest.approx(log(ODDS))


def test_the_distance_of_adapters_is_that_of_their_products(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime(lora=LORA)
    history, weights = PolicyHistory(policy.learner), policy.learner.weights()
    policy.learner.load_weights(new_adapter(weights, seed=7))  # other factors, product still 0
    assert history.drift("toy_left", samples_of(LEFT)).distance_base == 0
    ones = {name: torch.full_like(weight, 0.5) for name, weight in weights.items()}
    policy.learner.load_weights(ones)
    # Every entry of the product is 4 · 0.5 · 0.5 = 1, scaled by alpha/r = 2.
    assert history.drift("toy_left", samples_of(LEFT)).distance_base == pytest.approx(
        2 * sqrt(SHAPE[0] * SHAPE[1])
    )


def test_frozen_adapters_count_as_part_of_the_policy(tmp_path: Path) -> None:
    trainer = toy_run(
        tmp_path, cl_algorithm="olora", lora=LORA, evaluation=ON, task_order=("toy_left",)
    )
    policy = trainer.policy
    assert isinstance(policy, PolicyRuntime)
    at_the_end = record_drift(policy, "toy_left", LEFT)
    trainer.cl_algorithm.before_task("toy_right")  # freezes the adapter and begins a new one
    after = record_drift(policy, "toy_left", LEFT)
    assert after.kl_base == at_the_end.kl_base != 0
    assert (after.kl_previous, after.distance_previous) == (0, 0)


def test_a_run_measures_drift_only_if_configured(tmp_path: Path) -> None:
    toy_run(tmp_path / "on", evaluation=ON, num_steps_per_task=3, eval_interval=1)
    toy_run(tmp_path / "off", evaluation={"trials": 2}, num_steps_per_task=3)
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
    assert [len(list(folders)) > 0 for folders in policies] == [True, False]


def test_drift_on_greedy_episodes_is_marked_as_not_sampled(tmp_path: Path) -> None:
    toy_run(tmp_path, evaluation={"trials": 1, "drift": True}, num_steps_per_task=1)
    drift = RMatrix.load(RunDir(tmp_path).r_matrix).rows[1].cells["toy_left"].drift
    assert drift and not drift.is_sampled


def test_with_one_policy_per_domain_there_is_no_drift_on_old_domains(tmp_path: Path) -> None:
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
        pytest.param({"cl_algorithm": "olora", "lora": LORA}, id="olora", marks=pytest.mark.slow),
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
def test_a_resumed_run_measures_the_same_drift_bit_for_bit(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    order = ("toy_left", "toy_right", "toy_up")
    settings = {"evaluation": ON, "task_order": order, "num_steps_per_task": 2, **changes}
    assert resume_equals_uninterrupted(tmp_path, step=5, **settings)
    records = RunDir(tmp_path / "parts").read_metrics()["task_2/eval"]
    assert all("kl_previous" in record for record in records)


def test_a_checkpoint_without_earlier_policies_is_refused(tmp_path: Path) -> None:
    saving = {"trackers": (), "save_interval": 1}
    toy_run(tmp_path, num_steps_per_task=1, logging=saving, evaluation={"trials": 2})
    fork = GRPOConfig.model_validate(
        {
            "resume_from": tmp_path / "checkpoint_task_0",
            "fork": tmp_path / "fork",
            "evaluation": ON,
        }
    )
    with pytest.raises(CheckpointError, match=r"evaluation\.drift=false"):
        GRPOTrainer(fork).train()


@pytest.mark.slow
def test_two_processes_measure_the_same_drift_as_one(tmp_path: Path) -> None:
    file = tmp_path / "drift.json"
    run_two_processes("drift_work.py", file)
    together = Drift.model_validate_json(file.read_text())
    alone = measure_drift(DistributedContext(device=torch.device("cpu")))
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


def test_the_drift_scores_of_a_run_are_those_of_its_last_stage() -> None:
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
    drift = {fit.predictor: fit for fit in forgetting_fits([THREE, two])}
    assert {fit.runs for fit in drift.values()} == {2}
    # Points (0.4, 0.3), (0.2, 0.2), (0, 0.1) lie on 0.1 + x/2.
    old = drift["kl_base_old"].fit
    assert old and old.points == 3
    assert (old.slope, old.intercept, old.r_squared) == pytest.approx((0.5, 0.1, 1.0))
    # (0.6, 0.3), (0.6, 0.2), (0.2, 0.1): slope 0.04/0.10667, R² 0.04²/(0.10667 · 0.02).
    new = drift["kl_base_new"].fit
    assert new
    assert (new.slope, new.intercept, new.r_squared) == pytest.approx((0.375, 0.025, 0.75))
    assert forgetting_fits([RMatrix(domains=("a", "b"))]) == ()


def test_a_linear_fit_needs_three_points_and_a_spread() -> None:
    assert least_squares([(0, 0), (1, 1)]) is None
    assert least_squares([(1, 0), (1, 1), (1, 2)]) is None
    flat = least_squares([(0, 1), (1, 1), (2, 1)])
    assert flat and (flat.slope, flat.intercept, flat.r_squared) == (0, 1, None)
