from pathlib import Path

import pytest
import torch

from grpo_cl.algorithms.si import SiCL
from grpo_cl.policy.continual.path_integral import PathIntegral
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.trainer import GRPOTrainer
from tabular_weights import CURVATURE, FIRST, IMPORTANCE, NAME, SECOND, SHAPE, tabular_learner
from toy_runs import toy_config


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return tabular_learner(tmp_path)


def test_the_path_integral_is_the_decrease_of_the_loss(learner: Learner):
    integral = PathIntegral(learner)
    integral.start_stage()
    losses: list[float] = []
    for _ in range(200):
        weight = learner.weights()[NAME]
        losses.append(float((CURVATURE * (weight - SECOND).square()).sum() / 2))
        parameters = learner.policy.trainable()
        parameters[0][1].grad = CURVATURE * (weight - SECOND)
        integral.before_update(parameters)
        learner.load_weights({NAME: weight - 0.01 * parameters[0][1].grad})
    integral.after_update()
    assert losses[-1] < 0.4 * losses[0]
    assert float(integral.work[NAME].sum()) == pytest.approx(losses[0] - losses[-1], rel=0.02)


def test_weights_whose_change_raised_the_loss_have_no_importance(learner: Learner):
    integral = PathIntegral(learner)
    integral.start_stage()
    count = FIRST.numel()
    integral.work[NAME][:] = torch.tensor(-1.0)
    integral.work[NAME][0, 0] = 6.0
    weights = torch.ones(SHAPE)
    weights[0, 0] = 2.0
    learner.load_weights({NAME: weights})
    importance = integral.importance(damping=0.5)[NAME]
    assert importance[0, 0].item() == pytest.approx(6 / (4 + 0.5 * (count - 1 + 4) / count))
    assert importance.count_nonzero() == 1


def test_si_integrates_the_task_gradient_without_the_penalty(tmp_path: Path):
    options = {"form": "loss", "strength": 1.0}
    trainer = GRPOTrainer(toy_config(tmp_path, cl_algorithm="si", cl_options=options))
    algorithm = trainer.cl_algorithm
    assert isinstance(algorithm, SiCL)
    learner: Learner = algorithm.anchor._learner
    learner.load_weights({NAME: FIRST})
    algorithm.anchor.add_anchor({NAME: IMPORTANCE})
    learner.load_weights({NAME: SECOND})
    algorithm.before_task("toy_right")
    parameters = learner.policy.trainable()
    parameters[0][1].grad = CURVATURE.clone()
    algorithm.transform_gradients(parameters)
    torch.testing.assert_close(
        parameters[0][1].grad, CURVATURE + IMPORTANCE * (SECOND - FIRST), rtol=1e-5, atol=1e-6
    )
    learner.load_weights({NAME: SECOND - 0.1})
    algorithm.post_step_hook(trainer, "toy_right")
    torch.testing.assert_close(algorithm.tensor_groups()["work"][NAME], 0.1 * CURVATURE)
