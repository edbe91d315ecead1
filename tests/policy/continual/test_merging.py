"""Merging with hand-worked values, and the merge algorithm on the toy domains."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.merging import (
    add_task_vectors,
    interpolate,
    task_vector,
    ties_merge,
    weight_distance,
)
from grpo_cl.policy.continual.policy_store import PolicyStore
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.trainer import GRPOTrainer
from parameters import mostly_slow
from tiny_learners import random_batch, settings, tiny_policy
from toy_resume import fingerprint, resume_equals_uninterrupted, runtime
from toy_runs import LORA, scores, toy_config, toy_run

Weights = dict[str, Tensor]
FLOAT = torch.float32


def weights(*values: float) -> Weights:
    """Two tensors; the first has all but the last value."""
    return {
        "a": torch.tensor(values[:-1], dtype=FLOAT),
        "b": torch.tensor(values[-1:], dtype=FLOAT),
    }


def values(merged: Weights) -> list[float]:
    return torch.cat([merged["a"], merged["b"]]).tolist()


def same(left: Weights, right: Weights) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def random_weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(50, generator=generator), "b": torch.randn(7, 3, generator=generator)}


ZERO = weights(0, 0, 0, 0)
FIRST, SECOND = weights(3, -1, 0.1, 2), weights(-1, -2, 0.2, 1.5)


def test_interpolation_is_linear_and_exact_at_both_ends():
    assert values(interpolate(weights(1, 2), weights(3, -2), 0.25)) == [1.5, 1.0]
    left, right = random_weights(0), random_weights(1)
    assert same(interpolate(left, right, 0.0), left)
    assert same(interpolate(left, right, 1.0), right)


def test_task_arithmetic_adds_scaled_task_vectors():
    start = weights(1, 2)
    vectors = [task_vector(start, weights(2, 2)), task_vector(start, weights(1, 4))]
    assert values(add_task_vectors(start, vectors, 0.5)) == [1.5, 3.0]


def test_ties_trims_all_but_the_largest_entries_of_a_vector():
    merged = ties_merge(ZERO, [FIRST, SECOND], keep=0.5, scale=1.0)
    # Trimmed: (3, 0, 0, 2) and (0, -2, 0, 1.5).
    assert values(merged) == [3.0, -2.0, 0.0, 1.75]


def test_ties_averages_only_entries_of_the_elected_sign():
    merged = ties_merge(weights(1, 1, 1, 1), [FIRST, SECOND], keep=0.75, scale=0.5)
    # Trimmed: (3, -1, 0, 2) and (-1, -2, 0, 1.5). The first entry elects plus, since 3 > 1.
    assert values(merged) == [1 + 1.5, 1 - 0.75, 1.0, 1 + 0.875]


def test_ties_ranks_entries_over_all_tensors():
    merged = ties_merge(ZERO, [weights(1, 2, 3, 9)], keep=0.25, scale=1.0)
    assert values(merged) == [0, 0, 0, 9]


def test_ties_of_one_untrimmed_vector_is_that_vector():
    vector = random_weights(3)
    start = {name: torch.zeros_like(weight) for name, weight in vector.items()}
    assert same(ties_merge(start, [vector], keep=1.0, scale=1.0), vector)


@pytest.mark.parametrize(
    "merge",
    [
        lambda start, vectors: add_task_vectors(start, vectors, 0.4),
        lambda start, vectors: ties_merge(start, vectors, keep=0.2, scale=1.0),
    ],
)
def test_merged_task_vectors_do_not_depend_on_the_order_of_domains(
    merge: Callable[[Weights, list[Weights]], Weights],
):
    start, *vectors = (random_weights(seed) for seed in range(4))
    forward, backward = merge(start, vectors), merge(start, vectors[::-1])
    assert weight_distance(forward, backward) < 1e-5
    assert weight_distance(forward, start) > 1


def test_a_policy_store_keeps_the_float32_weights_of_a_bfloat16_policy():
    config = settings(model_dtype="bfloat16", learning_rate=1e-5)
    learner = Learner(tiny_policy(config), config, DistributedContext(device=torch.device("cpu")))
    store = PolicyStore(learner)
    learner.update(*random_batch(4))
    trained = store.current_weights()
    before = learner.policy.fingerprint()
    with store.swapped_in("never stored"):
        assert same(store.current_weights(), store.initial)
    assert same(store.current_weights(), trained)
    assert learner.policy.fingerprint() == before
    assert not same(trained, store.initial)


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> GRPOTrainer:
    """Plain training."""
    return toy_run(tmp_path_factory.mktemp("runs") / "plain")


@pytest.mark.slow
def test_interpolation_with_weight_one_equals_sequential_bit_for_bit(
    sequential: GRPOTrainer, tmp_path: Path
):
    merge = toy_run(tmp_path / "merge", cl_algorithm="merge", cl_options={"alpha": 1.0})
    assert fingerprint(merge) == fingerprint(sequential)
    assert scores(tmp_path / "merge") == scores(sequential.config.log_dir)


def test_interpolation_with_weight_zero_never_changes_the_policy(tmp_path: Path):
    options = {"alpha": 0.0}
    toy_run(tmp_path, cl_algorithm="merge", cl_options=options, num_steps_per_task=4)
    base, *rows = scores(tmp_path)
    assert rows == [base, base]


@pytest.mark.slow
def test_an_average_with_decay_zero_equals_sequential_bit_for_bit(
    sequential: GRPOTrainer, tmp_path: Path
):
    options = {"method": "ema", "decay": 0.0}
    average = toy_run(tmp_path / "ema", cl_algorithm="merge", cl_options=options)
    assert fingerprint(average) == fingerprint(sequential)
    assert scores(tmp_path / "ema") == scores(sequential.config.log_dir)


def test_the_evaluated_policy_is_the_average_over_steps(tmp_path: Path):
    options = {"method": "ema", "decay": 0.75}
    trainer = GRPOTrainer(toy_config(tmp_path, cl_algorithm="merge", cl_options=options))
    learner = runtime(trainer).learner
    history = [learner.weights()]
    for _ in range(3):
        trainer.train_step("toy_left")
        history.append(learner.weights())
    with trainer.cl_algorithm.policy_for_evaluation("toy_left"):
        evaluated = learner.weights()
    shares = (0.421875, 0.140625, 0.1875, 0.25)  # 0.75³, 0.75² / 4, 0.75 / 4, 1 / 4
    for name, weight in evaluated.items():
        parts = zip(shares, history, strict=True)
        assert torch.allclose(weight, sum(share * each[name] for share, each in parts) + ZERO["b"])
    assert same(learner.weights(), history[-1])
    logged = trainer.cl_algorithm.telemetry()["cl/merge_distance"]
    assert logged == pytest.approx(weight_distance(evaluated, history[-1]))


@pytest.mark.parametrize(
    "method", mostly_slow(["interpolate", "task_arithmetic"], fast=["interpolate"])
)
def test_a_merged_policy_forgets_less_than_sequential(
    method: str, sequential: GRPOTrainer, tmp_path: Path
):
    merge = toy_run(tmp_path / "merge", cl_algorithm="merge", cl_options={"method": method})
    kept, lost = (scores(run.config.log_dir) for run in (merge, sequential))
    assert kept[2][0] - kept[1][0] > lost[2][0] - lost[1][0]
    assert merge.cl_algorithm.telemetry()["cl/merge_distance"] > 0


@pytest.mark.parametrize("method", mostly_slow(["ties", "ema"], fast=["ties"]))
def test_a_merge_resumes_bit_for_bit(method: str, tmp_path: Path):
    assert resume_equals_uninterrupted(
        tmp_path, step=5, cl_algorithm="merge", cl_options={"method": method}
    )


def test_an_option_of_another_method_is_refused(tmp_path: Path):
    options = {"method": "ties", "alpha": 0.5}
    config = toy_config(tmp_path, cl_algorithm="merge", cl_options=options)
    with pytest.raises(ConfigError, match="alpha is no option of ties, which has keep and scale"):
        GRPOTrainer(config)


def test_merge_refuses_lora(tmp_path: Path):
    config = toy_config(tmp_path, cl_algorithm="merge", lora=LORA)
    with pytest.raises(ConfigError, match="or choose domain_lora or olora"):
        GRPOTrainer(config)
