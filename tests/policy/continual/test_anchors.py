from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import anchor_work
from grpo_cl.algorithms import make_algorithm
from grpo_cl.algorithms.ewc import EwcCL
from grpo_cl.algorithms.l2 import L2InitCL, L2SpCL
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.anchors import QuadraticAnchor
from grpo_cl.policy.continual.importance import uniform_importance
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.trainer import GRPOTrainer
from tabular_weights import (
    CURVATURE,
    FIRST,
    IMPORTANCE,
    NAME,
    NUM_FEATURES,
    RATE,
    SECOND,
    SHAPE,
    tabular_learner,
)
from tiny_learners import settings, tiny_policy
from toy_runs import toy_config, toy_run
from two_processes import run_two_processes


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return tabular_learner(tmp_path)


def make_anchor(learner: Learner, *, strength: float = 3.0, **changes: Any) -> QuadraticAnchor:
    options: dict[str, Any] = {"form": "loss", "schedule": "merged", **changes}
    return QuadraticAnchor(learner, strength=strength, **options)


def add_anchor(
    anchored: QuadraticAnchor, learner: Learner, weight: Tensor, importance: Tensor
) -> None:
    learner.load_weights({NAME: weight})
    anchored.add_anchor({NAME: importance})


def gradient_descent(
    learner: Learner,
    task_gradient: Callable[[Tensor], Tensor],
    anchored: QuadraticAnchor,
    *,
    steps: int,
) -> Tensor:
    """Plain gradient descent at the learner's rate, in place of Adam."""
    for _ in range(steps):
        weights = learner.weights()
        parameters = learner.policy.trainable()
        parameters[0][1].grad = task_gradient(weights[NAME])
        anchored.add_penalty_gradient(parameters)
        assert parameters[0][1].grad is not None
        learner.load_weights({NAME: weights[NAME] - RATE * parameters[0][1].grad})
        anchored.apply_proximal_step()
    return learner.weights()[NAME]


@pytest.mark.parametrize(("form", "strength"), [("loss", 3.0), ("proximal", 3.0 * RATE)])
@pytest.mark.parametrize("schedule", ["separate", "merged", "online"])
def test_training_converges_to_the_weighted_mean_of_the_old_and_the_new_optimum(
    learner: Learner, form: str, strength: float, schedule: str
):
    anchored = make_anchor(learner, strength=strength, form=form, schedule=schedule)
    add_anchor(anchored, learner, FIRST, IMPORTANCE)
    result = gradient_descent(
        learner, lambda weight: CURVATURE * (weight - SECOND), anchored, steps=300
    )
    expected = (CURVATURE * SECOND + 3 * IMPORTANCE * FIRST) / (CURVATURE + 3 * IMPORTANCE)
    # Where both curvatures are small, three hundred steps do not converge.
    has_curvature = CURVATURE + 3 * IMPORTANCE > 0.2
    torch.testing.assert_close(result[has_curvature], expected[has_curvature], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["loss", "proximal"])
def test_weights_at_their_anchor_do_not_move(learner: Learner, form: str):
    anchored = make_anchor(learner, form=form)
    add_anchor(anchored, learner, FIRST, IMPORTANCE)
    result = gradient_descent(learner, torch.zeros_like, anchored, steps=1)
    assert torch.equal(result, FIRST)
    assert anchored.metrics == {"cl/penalty": 0.0, "cl/penalty_ratio": 0.0}


def test_the_gradient_is_that_of_the_penalty(learner: Learner):
    anchored = make_anchor(learner, schedule="separate")
    add_anchor(anchored, learner, FIRST, IMPORTANCE)
    add_anchor(anchored, learner, SECOND, CURVATURE)
    weight = torch.full_like(FIRST, 0.3)
    gradient = anchored.gradient(NAME, weight)
    for index in ((0, 0), (2, 17), (4, NUM_FEATURES - 1)):
        ends = [weight.clone(), weight.clone()]
        ends[0][index] -= 1  # the central difference of a quadratic is exact over any distance
        ends[1][index] += 1
        low, high = (anchored.penalty({NAME: end}) for end in ends)
        assert gradient[index].item() == pytest.approx((high - low) / 2, rel=1e-4, abs=1e-4)


def test_the_penalty_is_a_sum_over_weights_with_half_the_strength(learner: Learner):
    anchored = make_anchor(learner, strength=4.0)
    add_anchor(anchored, learner, torch.zeros(SHAPE), torch.ones(SHAPE))
    assert anchored.penalty({NAME: torch.full(SHAPE, 0.5)}) == pytest.approx(
        4 / 2 * FIRST.numel() * 0.25
    )


def test_merged_anchors_have_the_gradient_of_separate_ones(learner: Learner):
    separate, merged = (
        make_anchor(learner, schedule=schedule) for schedule in ("separate", "merged")
    )
    draw = torch.Generator().manual_seed(7)
    for number in range(3):
        weight, importance = torch.rand(2, *SHAPE, generator=draw)
        importance[:, number:5] = 0  # some weights are important in some stages, some in none
        for anchored in (separate, merged):
            add_anchor(anchored, learner, weight, importance)
    assert (len(separate.terms), len(merged.terms)) == (3, 1)
    for weight in (FIRST, 3 * SECOND):
        torch.testing.assert_close(separate.gradient(NAME, weight), merged.gradient(NAME, weight))
    gaps = [separate.penalty({NAME: w}) - merged.penalty({NAME: w}) for w in (FIRST, 3 * SECOND)]
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-3)
    assert gaps[0] > 1


def test_online_importances_decay_and_anchor_at_the_newest_weights(learner: Learner):
    anchored = make_anchor(learner, schedule="online", decay=0.5)
    add_anchor(anchored, learner, FIRST, torch.full(SHAPE, 4.0))
    add_anchor(anchored, learner, SECOND, torch.full(SHAPE, 1.0))
    (term,) = anchored.terms
    assert torch.equal(term.importance[NAME], torch.full(SHAPE, 0.5 * 4 + 1))
    assert torch.equal(term.anchor[NAME], SECOND)


def test_the_proximal_form_is_stable_at_any_strength(learner: Learner):
    anchored = make_anchor(learner, strength=1e12, form="proximal")
    add_anchor(anchored, learner, FIRST, IMPORTANCE)
    result = gradient_descent(learner, lambda weight: weight - SECOND, anchored, steps=20)
    torch.testing.assert_close(result, FIRST)


def test_the_proximal_step_counts_every_update_of_a_step(learner: Learner):
    anchored = make_anchor(learner, strength=0.5, form="proximal")
    add_anchor(anchored, learner, torch.zeros(SHAPE), torch.ones(SHAPE))
    for _ in range(3):
        anchored.add_penalty_gradient(learner.policy.trainable())
    learner.load_weights({NAME: torch.ones(SHAPE)})
    anchored.apply_proximal_step()
    torch.testing.assert_close(learner.weights()[NAME], torch.full(SHAPE, 1 / (1 + 3 * 0.5)))
    assert anchored.metrics["cl/penalty_ratio"] == pytest.approx(1 - 1 / 2.5)
    anchored.apply_proximal_step()
    assert anchored.metrics["cl/penalty_ratio"] == 0


def test_a_bfloat16_policy_is_anchored_at_its_float32_weights():
    config = settings(model_dtype="bfloat16")
    learner = Learner(tiny_policy(config), config, DistributedContext(device=torch.device("cpu")))
    anchored = make_anchor(learner)
    anchored.add_anchor(uniform_importance(learner))
    moved = {name: weight + 1e-5 for name, weight in learner.weights().items()}
    assert anchored.penalty(learner.weights()) == 0
    count = sum(weight.numel() for weight in moved.values())
    assert anchored.penalty(moved) == pytest.approx(3 / 2 * count * 1e-10, rel=0.05)


def trainer_of(folder: Path, algorithm: str, **options: Any) -> GRPOTrainer:
    return GRPOTrainer(toy_config(folder, cl_algorithm=algorithm, cl_options=options))


def test_l2_init_anchors_at_the_initial_weights_and_l2_sp_at_the_latest(tmp_path: Path):
    for name, kind, expected in (("l2_init", L2InitCL, FIRST), ("l2_sp", L2SpCL, SECOND)):
        trainer = trainer_of(tmp_path, name)
        algorithm = trainer.cl_algorithm
        assert isinstance(algorithm, kind)
        learner: Learner = algorithm.anchor._learner
        learner.load_weights({NAME: FIRST})
        algorithm.before_task("toy_left")
        learner.load_weights({NAME: SECOND})
        algorithm.post_task_hook(trainer, "toy_left")
        algorithm.before_task("toy_right")
        (term,) = algorithm.anchor.terms
        assert torch.equal(term.anchor[NAME], expected)
        assert torch.equal(term.importance[NAME], torch.ones(SHAPE))


def test_l2_init_and_si_refuse_a_first_stage_trained_by_another_algorithm(tmp_path: Path):
    with pytest.raises(ConfigError, match="l2_init needs the initial weights of the run"):
        trainer_of(tmp_path, "l2_init").cl_algorithm.before_task("toy_right")
    trainer = trainer_of(tmp_path, "si")
    with pytest.raises(
        ConfigError, match="si needs the path integral of 'toy_left' from its first step"
    ):
        trainer.cl_algorithm.post_task_hook(trainer, "toy_left")


def test_a_decay_without_an_online_schedule_is_refused():
    with pytest.raises(ConfigError, match="decay needs schedule=online"):
        make_algorithm("ewc", {"decay": 0.5})
    assert isinstance(make_algorithm("ewc", {"decay": 0.5, "schedule": "online"}), EwcCL)


@pytest.mark.parametrize(
    ("name", "options"),
    [("ewc", {"schedule": "separate"}), ("si", {}), ("mas", {"schedule": "online"}), ("l2_sp", {})],
)
def test_saved_anchors_are_restored_exactly(tmp_path: Path, name: str, options: dict[str, Any]):
    trainer = toy_run(tmp_path / "run", num_steps_per_task=2, cl_algorithm=name, cl_options=options)
    folder = tmp_path / "state"
    folder.mkdir()
    trainer.cl_algorithm.save_state(folder)
    other = trainer_of(tmp_path / "other", name, **options)
    other.cl_algorithm.load_state(folder)
    before, after = (run.cl_algorithm.tensor_groups() for run in (trainer, other))  # type: ignore[attr-defined]
    assert before.keys() == after.keys()
    for group, tensors in before.items():
        assert torch.equal(tensors[NAME], after[group][NAME]), group


@pytest.fixture(scope="module")
def two_rank_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two processes."""
    folder = tmp_path_factory.mktemp("two")
    run_two_processes("anchor_work.py", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", anchor_work.CASES)
def test_results_do_not_depend_on_the_number_of_ranks(two_rank_results: Path, case: str):
    result = load_file(two_rank_results / f"{case}.safetensors")
    alone = anchor_work.compute(case, DistributedContext(device=torch.device("cpu")))
    assert result.keys() == alone.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(result[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
