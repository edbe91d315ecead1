from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_cl.algorithms.agem import AgemCL
from grpo_cl.policy.continual.projection import UpdateProjection, cloning_gradient, project
from grpo_cl.policy.continual.tensors import Tensors, inner
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.policy.supervised import supervised_update
from grpo_cl.trainer import GRPOTrainer
from tiny_learners import random_batch, random_traces, settings, tiny_policy, trace
from toy_runs import toy_config, toy_run

NAME = "model.choice.weight"


def tiny_learner(**changes: Any) -> Learner:
    config = settings(**changes)
    return Learner(tiny_policy(config), config, Ranks(device=torch.device("cpu")))


def pair(*numbers: float) -> Tensors:
    """A vector whose parts belong to two parameters."""
    return {"a": torch.tensor(numbers[:1]), "b": torch.tensor(numbers[1:])}


def test_what_goes_up_the_gradient_is_taken_away():
    found = project(pair(1.0, 2.0, 3.0), pair(0.0, 0.0, 2.0), strength=1.0)
    assert found.update["a"].tolist() == [1.0]
    assert found.update["b"].tolist() == [2.0, 0.0]
    assert found.rise == 6
    assert found.cosine == pytest.approx(3 / 14**0.5)
    assert found.is_changed


def test_half_the_strength_takes_half_of_it():
    found = project(pair(1.0, 2.0, 3.0), pair(0.0, 0.0, 2.0), strength=0.5)
    assert found.update["b"].tolist() == [2.0, 1.5]


def test_an_update_that_helps_is_left_alone():
    update = pair(1.0, 2.0, -3.0)
    found = project(update, pair(0.0, 0.0, 2.0), strength=1.0)
    assert not found.is_changed
    assert found.rise == -6
    assert all(torch.equal(found.update[name], part) for name, part in update.items())


def test_a_projected_update_is_orthogonal_and_no_longer():
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        update, gradient = ({"w": torch.randn(50, generator=draw)} for _ in range(2))
        found = project(update, gradient, strength=1.0)
        size = (inner(update, update) * inner(gradient, gradient)) ** 0.5
        assert inner(found.update, gradient) <= 1e-6 * size
        assert inner(found.update, found.update) <= inner(update, update)


def test_a_gradient_of_zero_forbids_nothing():
    found = project(pair(1.0, 2.0, 3.0), pair(0.0, 0.0, 0.0), strength=1.0)
    assert not found.is_changed
    assert found.cosine == 0


def test_the_cloning_gradient_is_that_of_cross_entropy(tmp_path: Path):
    learner = PolicyRuntime(toy_config(tmp_path)).learner
    found = cloning_gradient(learner, [trace([5, 2], (1, 2)), trace([6, 3], (1, 2))])[NAME]
    p = torch.full((5,), 0.2)  # all weights are zero
    torch.testing.assert_close(found[:, 1], (p - torch.eye(5)[2]) / 2)
    torch.testing.assert_close(found[:, 2], (p - torch.eye(5)[3]) / 2)
    assert found[:, 3:].count_nonzero() == 0


def test_the_step_that_adam_made_does_not_raise_the_loss_of_the_memory():
    learner, memory = tiny_learner(learning_rate=1e-4), random_traces(4, seed=1)
    rises: list[float] = []
    for seed in range(6):
        before = learner.weights()
        gradient = cloning_gradient(learner, memory)
        projection = UpdateProjection(learner, strength=1.0)
        projection.keep()
        learner.update(*random_batch(4, seed=seed))
        found = projection.correct(memory)
        assert not projection.has_update
        rises.append(found.rise)
        made = {name: weight - before[name] for name, weight in learner.weights().items()}
        size = (inner(made, made) * inner(gradient, gradient)) ** 0.5
        assert inner(made, gradient) <= 1e-4 * size
    assert max(rises) > 0 > min(rises)


def test_a_step_that_lowers_the_loss_of_the_memory_is_kept_bit_for_bit():
    learner, memory = tiny_learner(), random_traces(4)
    projection = UpdateProjection(learner, strength=1.0)
    projection.keep()
    supervised_update(learner, memory)
    made = learner.weights()
    assert not projection.correct(memory).is_changed
    assert all(torch.equal(made[name], weight) for name, weight in learner.weights().items())


def test_several_updates_of_a_step_are_projected_as_one():
    learner, memory = tiny_learner(), random_traces(4)
    projection = UpdateProjection(learner, strength=1.0)
    start = learner.weights()
    for seed in range(2):
        projection.keep()
        learner.update(*random_batch(4, seed=seed))
    whole = {name: weight - start[name] for name, weight in learner.weights().items()}
    found = projection.correct(memory)
    learner.load_weights(start)
    assert found.rise == pytest.approx(inner(whole, cloning_gradient(learner, memory)), rel=1e-4)


def test_only_successes_of_earlier_domains_are_remembered(tmp_path: Path):
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


def test_counts_survive_being_written_down(tmp_path: Path):
    trainer = toy_run(tmp_path / "run", num_steps_per_task=3, cl_algorithm="agem")
    state = trainer.cl_algorithm.state_dict()
    assert state["draws"] == 3
    assert 1 <= state["corrected"] <= 3
    other = GRPOTrainer(toy_config(tmp_path / "other", cl_algorithm="agem")).cl_algorithm
    other.load_state_dict(state)
    assert other.state_dict() == state
