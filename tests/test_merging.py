"""Merging by hand, and the merge algorithm on the toy domains."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.merging import distance, elected, interpolated, summed, task_vector
from grpo_cl.policy.continual.shelf import Shelf
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.ranks import Ranks
from grpo_cl.trainer import GRPOTrainer
from tiny_learners import random_batch, settings, tiny_policy
from toy_resume import fingerprint, resumed_as_if_never_ended, runtime
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


def same(some: Weights, others: Weights) -> bool:
    return all(torch.equal(some[name], others[name]) for name in some)


def random_weights(seed: int) -> Weights:
    chance = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(50, generator=chance), "b": torch.randn(7, 3, generator=chance)}


ZERO = weights(0, 0, 0, 0)
FIRST, SECOND = weights(3, -1, 0.1, 2), weights(-1, -2, 0.2, 1.5)


def test_interpolation_lies_between_and_ends_exactly():
    assert values(interpolated(weights(1, 2), weights(3, -2), 0.25)) == [1.5, 1.0]
    some, others = random_weights(0), random_weights(1)
    assert same(interpolated(some, others, 0.0), some)
    assert same(interpolated(some, others, 1.0), others)


def test_task_arithmetic_adds_what_each_domain_added():
    start = weights(1, 2)
    vectors = [task_vector(start, weights(2, 2)), task_vector(start, weights(1, 4))]
    assert values(summed(start, vectors, 0.5)) == [1.5, 3.0]


def test_ties_counts_only_the_largest_entries_of_a_vector():
    merged = elected(ZERO, [FIRST, SECOND], keep=0.5, scale=1.0)
    # What is left: (3, 0, 0, 2) and (0, -2, 0, 1.5).
    assert values(merged) == [3.0, -2.0, 0.0, 1.75]


def test_ties_averages_only_entries_of_the_elected_sign():
    merged = elected(weights(1, 1, 1, 1), [FIRST, SECOND], keep=0.75, scale=0.5)
    # What is left: (3, -1, 0, 2) and (-1, -2, 0, 1.5). The first place elects plus, since 3 > 1.
    assert values(merged) == [1 + 1.5, 1 - 0.75, 1.0, 1 + 0.875]


def test_ties_ranks_entries_over_all_tensors():
    merged = elected(ZERO, [weights(1, 2, 3, 9)], keep=0.25, scale=1.0)
    assert values(merged) == [0, 0, 0, 9]


def test_ties_of_one_vector_that_counts_whole_is_that_vector():
    vector = random_weights(3)
    start = {name: torch.zeros_like(weight) for name, weight in vector.items()}
    assert same(elected(start, [vector], keep=1.0, scale=1.0), vector)


@pytest.mark.parametrize(
    "merge",
    [
        lambda start, vectors: summed(start, vectors, 0.4),
        lambda start, vectors: elected(start, vectors, keep=0.2, scale=1.0),
    ],
)
def test_the_order_of_domains_does_not_matter_to_task_vectors(
    merge: Callable[[Weights, list[Weights]], Weights],
):
    start, *vectors = (random_weights(seed) for seed in range(4))
    one, other = merge(start, vectors), merge(start, vectors[::-1])
    assert distance(one, other) < 1e-5
    assert distance(one, start) > 1


def test_a_shelf_keeps_the_exact_weights_of_a_bfloat16_policy():
    config = settings(model_dtype="bfloat16", learning_rate=1e-5)
    learner = Learner(tiny_policy(config), config, Ranks(device=torch.device("cpu")))
    shelf = Shelf(learner)
    learner.update(*random_batch(4))
    learned = shelf.today()
    before = learner.policy.fingerprint()
    with shelf.instead("never kept"):
        assert same(shelf.today(), shelf.start)
    assert same(shelf.today(), learned)
    assert learner.policy.fingerprint() == before
    assert not same(learned, shelf.start)


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> GRPOTrainer:
    """Plain training."""
    return toy_run(tmp_path_factory.mktemp("runs") / "plain")


def test_a_merge_of_the_new_alone_is_sequential_to_the_bit(sequential: GRPOTrainer, tmp_path: Path):
    merge = toy_run(tmp_path / "merge", cl_algorithm="merge", cl_options={"alpha": 1.0})
    assert fingerprint(merge) == fingerprint(sequential)
    assert scores(tmp_path / "merge") == scores(sequential.config.log_dir)


def test_a_merge_of_the_old_alone_never_moves(tmp_path: Path):
    options = {"alpha": 0.0}
    toy_run(tmp_path, cl_algorithm="merge", cl_options=options, num_steps_per_task=4)
    base, *rows = scores(tmp_path)
    assert rows == [base, base]


def test_an_average_without_memory_is_sequential_to_the_bit(
    sequential: GRPOTrainer, tmp_path: Path
):
    options = {"method": "ema", "decay": 0.0}
    average = toy_run(tmp_path / "ema", cl_algorithm="merge", cl_options=options)
    assert fingerprint(average) == fingerprint(sequential)
    assert scores(tmp_path / "ema") == scores(sequential.config.log_dir)


def test_the_measured_policy_is_the_average_over_steps(tmp_path: Path):
    options = {"method": "ema", "decay": 0.75}
    trainer = GRPOTrainer(toy_config(tmp_path, cl_algorithm="merge", cl_options=options))
    learner = runtime(trainer).learner
    seen = [learner.weights()]
    for _ in range(3):
        trainer.train_step("toy_left")
        seen.append(learner.weights())
    with trainer.cl_algorithm.policy_for_evaluation("toy_left"):
        measured = learner.weights()
    shares = (0.421875, 0.140625, 0.1875, 0.25)  # 0.75³, 0.75² / 4, 0.75 / 4, 1 / 4
    for name, weight in measured.items():
        parts = zip(shares, seen, strict=True)
        assert torch.allclose(weight, sum(share * each[name] for share, each in parts) + ZERO["b"])
    assert same(learner.weights(), seen[-1])
    shown = trainer.cl_algorithm.telemetry()["cl/merge_distance"]
    assert shown == pytest.approx(distance(measured, seen[-1]))


@pytest.mark.parametrize("method", ["interpolate", "task_arithmetic"])
def test_a_merged_policy_forgets_less_than_sequential(
    method: str, sequential: GRPOTrainer, tmp_path: Path
):
    merge = toy_run(tmp_path / "merge", cl_algorithm="merge", cl_options={"method": method})
    kept, lost = (scores(run.config.log_dir) for run in (merge, sequential))
    assert kept[2][0] - kept[1][0] > lost[2][0] - lost[1][0]
    assert merge.cl_algorithm.telemetry()["cl/merge_distance"] > 0


@pytest.mark.parametrize("method", ["ties", "ema"])
def test_a_merge_resumes_to_the_bit(method: str, tmp_path: Path):
    assert resumed_as_if_never_ended(
        tmp_path, step=5, cl_algorithm="merge", cl_options={"method": method}
    )


def test_an_option_of_another_method_is_refused(tmp_path: Path):
    options = {"method": "ties", "alpha": 0.5}
    config = toy_config(tmp_path, cl_algorithm="merge", cl_options=options)
    with pytest.raises(ConfigError, match="alpha is no option of ties, which has keep and scale"):
        GRPOTrainer(config)


def test_adapters_are_not_merged(tmp_path: Path):
    config = toy_config(tmp_path, cl_algorithm="merge", lora=LORA)
    with pytest.raises(ConfigError, match="or choose domain_lora or olora"):
        GRPOTrainer(config)
