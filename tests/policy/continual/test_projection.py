from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_cl.algorithms.agem import AgemCL
from grpo_cl.policy.continual.projection import UpdateProjection, project, reference_gradient
from grpo_cl.policy.continual.tensors import Tensors, inner_product
from grpo_cl.policy.learner.learner import Learner, supervised_update
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.trainer import GRPOTrainer
from tiny_learners import random_batch, random_traces, settings, tiny_policy, trace
from toy_runs import toy_config, toy_run

NAME = "model.choice.weight"


def tiny_learner(**changes: Any) -> Learner:
    config = settings(**changes)
    return Learner(tiny_policy(config), config, DistributedContext(device=torch.device("cpu")))


def vector(*numbers: float) -> Tensors:
    """A vector divided over two parameters."""
    return {"a": torch.tensor(numbers[:1]), "b": torch.tensor(numbers[1:])}


def test_the_component_along_the_gradient_is_removed():
    projected = project(vector(1.0, 2.0, 3.0), vector(0.0, 0.0, 2.0), strength=1.0)
    assert projected.update["a"].tolist() == [1.0]
    assert projected.update["b"].tolist() == [2.0, 0.0]
    assert projected.loss_increase == 6
    assert projected.cosine == pytest.approx(3 / 14**0.5)
    assert projected.is_changed


def test_half_the_strength_removes_half_of_it():
    projected = project(vector(1.0, 2.0, 3.0), vector(0.0, 0.0, 2.0), strength=0.5)
    assert projected.update["b"].tolist() == [2.0, 1.5]


def test_an_update_that_lowers_the_loss_is_unchanged():
    update = vector(1.0, 2.0, -3.0)
    projected = project(update, vector(0.0, 0.0, 2.0), strength=1.0)
    assert not projected.is_changed
    assert projected.loss_increase == -6
    assert all(torch.equal(projected.update[name], part) for name, part in update.items())


def test_a_projected_update_is_orthogonal_and_not_longer():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        update, gradient = ({"w": torch.randn(50, generator=generator)} for _ in range(2))
        projected = project(update, gradient, strength=1.0)
        norms = (inner_product(update, update) * inner_product(gradient, gradient)) ** 0.5
        assert inner_product(projected.update, gradient) <= 1e-6 * norms
        assert inner_product(projected.update, projected.update) <= inner_product(update, update)


def test_a_reference_gradient_of_zero_changes_nothing():
    projected = project(vector(1.0, 2.0, 3.0), vector(0.0, 0.0, 0.0), strength=1.0)
    assert not projected.is_changed
    assert projected.cosine == 0


@pytest.mark.parametrize("size", [1e-30, 3e-23, 1e-20])
def test_squares_that_underflow_change_nothing(size: float):
    projected = project(vector(1e20, 0.0, 0.0), vector(size, 0.0, 0.0), strength=1.0)
    assert projected.loss_increase > 0
    assert not projected.is_changed
    assert projected.update["a"].tolist() == vector(1e20)["a"].tolist()


def test_the_reference_gradient_is_that_of_cross_entropy(tmp_path: Path):
    learner = PolicyRuntime(toy_config(tmp_path)).learner
    gradient = reference_gradient(learner, [trace([5, 2], (1, 2)), trace([6, 3], (1, 2))])[NAME]
    p = torch.full((5,), 0.2)  # all weights are zero
    torch.testing.assert_close(gradient[:, 1], (p - torch.eye(5)[2]) / 2)
    torch.testing.assert_close(gradient[:, 2], (p - torch.eye(5)[3]) / 2)
    assert gradient[:, 3:].count_nonzero() == 0


def test_a_projected_adam_step_does_not_raise_the_loss_on_the_memory():
    learner, memory = tiny_learner(learning_rate=1e-4), random_traces(4, seed=1)
    increases: list[float] = []
    for seed in range(6):
        before = learner.weights()
        gradient = reference_gradient(learner, memory)
        projection = UpdateProjection(learner, strength=1.0)
        projection.before_update()
        learner.update(*random_batch(4, seed=seed))
        projected = projection.project_update(memory)
        assert not projection.has_update
        increases.append(projected.loss_increase)
        step = {name: weight - before[name] for name, weight in learner.weights().items()}
        norms = (inner_product(step, step) * inner_product(gradient, gradient)) ** 0.5
        assert inner_product(step, gradient) <= 1e-4 * norms
    assert max(increases) > 0 > min(increases)


def test_a_step_that_lowers_the_loss_on_the_memory_is_unchanged_bit_for_bit():
    learner, memory = tiny_learner(), random_traces(4)
    projection = UpdateProjection(learner, strength=1.0)
    projection.before_update()
    supervised_update(learner, memory)
    updated = learner.weights()
    assert not projection.project_update(memory).is_changed
    assert all(torch.equal(updated[name], weight) for name, weight in learner.weights().items())


def test_several_updates_of_a_step_are_projected_as_one():
    learner, memory = tiny_learner(), random_traces(4)
    projection = UpdateProjection(learner, strength=1.0)
    start = learner.weights()
    for seed in range(2):
        projection.before_update()
        learner.update(*random_batch(4, seed=seed))
    update = {name: weight - start[name] for name, weight in learner.weights().items()}
    projected = projection.project_update(memory)
    learner.load_weights(start)
    assert projected.loss_increase == pytest.approx(
        inner_product(update, reference_gradient(learner, memory)), rel=1e-4
    )


def test_only_successes_of_earlier_domains_are_drawn(tmp_path: Path):
    order = ("toy_left", "toy_right", "toy_up")
    trainer = toy_run(tmp_path, num_steps_per_task=3, cl_algorithm="agem", task_order=order)
    algorithm = trainer.cl_algorithm
    assert isinstance(algorithm, AgemCL)
    assert algorithm._draw("toy_left") == []
    successes = {
        domain: [
            record.trajectory.tokens
            for record in trainer.trajectory_buffer.records(domain)
            if record.reward == 1
        ]
        for domain in order
    }
    drawn = algorithm._draw("toy_up")
    counts = [sum(any(t is s for s in successes[name]) for t in drawn) for name in order]
    assert counts == [8, 8, 0]


def test_saved_counts_are_restored(tmp_path: Path):
    trainer = toy_run(tmp_path / "run", num_steps_per_task=3, cl_algorithm="agem")
    state = trainer.cl_algorithm.state_dict()
    assert state["draws"] == 3
    assert 1 <= state["corrected"] <= 3
    other = GRPOTrainer(toy_config(tmp_path / "other", cl_algorithm="agem")).cl_algorithm
    other.load_state_dict(state)
    assert other.state_dict() == state
