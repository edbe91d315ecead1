from pathlib import Path

import pytest
import torch

from grpo_cl.algorithms.si import SiCL
from grpo_cl.policy.continual.paths import WorkPath
from grpo_cl.policy.learner import Learner
from grpo_cl.trainer import GRPOTrainer
from tabular_weights import FIRST, IMPORTANCE, NAME, SECOND, SHAPE, STEEPNESS, tabular_learner
from toy_runs import toy_config


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return tabular_learner(tmp_path)


def test_the_work_along_a_path_is_the_decrease_of_the_loss(learner: Learner):
    path = WorkPath(learner)
    path.begin()
    losses: list[float] = []
    for _ in range(200):
        weight = learner.weights()[NAME]
        losses.append(float((STEEPNESS * (weight - SECOND).square()).sum() / 2))
        parameters = learner.policy.trainable()
        parameters[0][1].grad = STEEPNESS * (weight - SECOND)
        path.depart(parameters)
        learner.load_weights({NAME: weight - 0.01 * parameters[0][1].grad})
    path.arrive()
    assert losses[-1] < 0.4 * losses[0]
    assert float(path.work[NAME].sum()) == pytest.approx(losses[0] - losses[-1], rel=0.02)


def test_work_that_raised_the_loss_makes_nothing_important(learner: Learner):
    path = WorkPath(learner)
    path.begin()
    count = FIRST.numel()
    path.work[NAME][:] = torch.tensor(-1.0)
    path.work[NAME][0, 0] = 6.0
    moved = torch.ones(SHAPE)
    moved[0, 0] = 2.0
    learner.load_weights({NAME: moved})
    found = path.importance(damping=0.5)[NAME]
    assert found[0, 0].item() == pytest.approx(6 / (4 + 0.5 * (count - 1 + 4) / count))
    assert found.count_nonzero() == 1


def test_si_measures_the_work_for_the_task_and_not_for_the_penalty(tmp_path: Path):
    options = {"form": "loss", "strength": 1.0}
    trainer = GRPOTrainer(toy_config(tmp_path, cl_algorithm="si", cl_options=options))
    algorithm = trainer.cl_algorithm
    assert isinstance(algorithm, SiCL)
    learner: Learner = algorithm.anchor._learner
    learner.load_weights({NAME: FIRST})
    algorithm.anchor.hold({NAME: IMPORTANCE})
    learner.load_weights({NAME: SECOND})
    algorithm.before_task("toy_right")
    parameters = learner.policy.trainable()
    parameters[0][1].grad = STEEPNESS.clone()
    algorithm.transform_gradients(parameters)
    torch.testing.assert_close(
        parameters[0][1].grad, STEEPNESS + IMPORTANCE * (SECOND - FIRST), rtol=1e-5, atol=1e-6
    )
    learner.load_weights({NAME: SECOND - 0.1})
    algorithm.post_step_hook(trainer, "toy_right")
    torch.testing.assert_close(algorithm.groups()["work"][NAME], 0.1 * STEEPNESS)
