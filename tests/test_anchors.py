import os
import subprocess
import sys
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
from grpo_cl.policy.continual.fisher import uniform
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.ranks import Ranks
from grpo_cl.trainer import GRPOTrainer
from tabular_weights import (
    FIRST,
    IMPORTANCE,
    NAME,
    NUM_FEATURES,
    RATE,
    SECOND,
    SHAPE,
    STEEPNESS,
    tabular_learner,
)
from tiny_learners import settings, tiny_policy
from toy_runs import toy_config, toy_run


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return tabular_learner(tmp_path)


def anchor(learner: Learner, *, strength: float = 3.0, **changes: Any) -> QuadraticAnchor:
    given: dict[str, Any] = {"form": "loss", "schedule": "merged", **changes}
    return QuadraticAnchor(learner, strength=strength, **given)


def hold(held: QuadraticAnchor, learner: Learner, weight: Tensor, importance: Tensor) -> None:
    learner.load_weights({NAME: weight})
    held.hold({NAME: importance})


def descend(
    learner: Learner, slope: Callable[[Tensor], Tensor], anchored: QuadraticAnchor, *, steps: int
) -> Tensor:
    """Plain gradient descent at the learner's rate, in place of Adam."""
    for _ in range(steps):
        weights = learner.weights()
        parameters = learner.policy.trainable()
        parameters[0][1].grad = slope(weights[NAME])
        anchored.oppose(parameters)
        assert parameters[0][1].grad is not None
        learner.load_weights({NAME: weights[NAME] - RATE * parameters[0][1].grad})
        anchored.settle()
    return learner.weights()[NAME]


@pytest.mark.parametrize(("form", "strength"), [("loss", 3.0), ("proximal", 3.0 * RATE)])
@pytest.mark.parametrize("schedule", ["separate", "merged", "online"])
def test_learning_ends_at_the_weighted_mean_of_the_old_and_the_new_optimum(
    learner: Learner, form: str, strength: float, schedule: str
):
    held = anchor(learner, strength=strength, form=form, schedule=schedule)
    hold(held, learner, FIRST, IMPORTANCE)
    found = descend(learner, lambda weight: STEEPNESS * (weight - SECOND), held, steps=300)
    expected = (STEEPNESS * SECOND + 3 * IMPORTANCE * FIRST) / (STEEPNESS + 3 * IMPORTANCE)
    # Where neither pulls, three hundred steps are not enough.
    is_stiff = STEEPNESS + 3 * IMPORTANCE > 0.2
    torch.testing.assert_close(found[is_stiff], expected[is_stiff], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["loss", "proximal"])
def test_weights_that_are_where_they_are_held_are_left_alone(learner: Learner, form: str):
    held = anchor(learner, form=form)
    hold(held, learner, FIRST, IMPORTANCE)
    found = descend(learner, torch.zeros_like, held, steps=1)
    assert torch.equal(found, FIRST)
    assert held.numbers == {"cl/penalty": 0.0, "cl/penalty_ratio": 0.0}


def test_the_gradient_is_that_of_the_penalty(learner: Learner):
    held = anchor(learner, schedule="separate")
    hold(held, learner, FIRST, IMPORTANCE)
    hold(held, learner, SECOND, STEEPNESS)
    weight = torch.full_like(FIRST, 0.3)
    gradient = held.gradient(NAME, weight)
    for place in ((0, 0), (2, 17), (4, NUM_FEATURES - 1)):
        ends = [weight.clone(), weight.clone()]
        ends[0][place] -= 1  # the central difference of a quadratic is exact over any distance
        ends[1][place] += 1
        low, high = (held.penalty({NAME: end}) for end in ends)
        assert gradient[place].item() == pytest.approx((high - low) / 2, rel=1e-4, abs=1e-4)


def test_the_penalty_is_a_sum_over_weights_with_half_the_strength(learner: Learner):
    held = anchor(learner, strength=4.0)
    hold(held, learner, torch.zeros(SHAPE), torch.ones(SHAPE))
    assert held.penalty({NAME: torch.full(SHAPE, 0.5)}) == pytest.approx(
        4 / 2 * FIRST.numel() * 0.25
    )


def test_two_merged_tensors_pull_like_all_anchors_apart(learner: Learner):
    apart, merged = (anchor(learner, schedule=schedule) for schedule in ("separate", "merged"))
    draw = torch.Generator().manual_seed(7)
    for number in range(3):
        weight, importance = torch.rand(2, *SHAPE, generator=draw)
        importance[:, number:5] = 0  # some weights matter in some stages, some in none
        for held in (apart, merged):
            hold(held, learner, weight, importance)
    assert (len(apart.terms), len(merged.terms)) == (3, 1)
    for weight in (FIRST, 3 * SECOND):
        torch.testing.assert_close(apart.gradient(NAME, weight), merged.gradient(NAME, weight))
    gaps = [apart.penalty({NAME: w}) - merged.penalty({NAME: w}) for w in (FIRST, 3 * SECOND)]
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-3)
    assert gaps[0] > 1


def test_online_importances_decay_and_hold_to_the_newest_weights(learner: Learner):
    held = anchor(learner, schedule="online", decay=0.5)
    hold(held, learner, FIRST, torch.full(SHAPE, 4.0))
    hold(held, learner, SECOND, torch.full(SHAPE, 1.0))
    (term,) = held.terms
    assert torch.equal(term.importance[NAME], torch.full(SHAPE, 0.5 * 4 + 1))
    assert torch.equal(term.anchor[NAME], SECOND)


def test_the_proximal_form_is_stable_at_any_strength(learner: Learner):
    held = anchor(learner, strength=1e12, form="proximal")
    hold(held, learner, FIRST, IMPORTANCE)
    found = descend(learner, lambda weight: weight - SECOND, held, steps=20)
    torch.testing.assert_close(found, FIRST)


def test_a_step_of_several_updates_is_pulled_back_by_as_many(learner: Learner):
    held = anchor(learner, strength=0.5, form="proximal")
    hold(held, learner, torch.zeros(SHAPE), torch.ones(SHAPE))
    for _ in range(3):
        held.oppose(learner.policy.trainable())
    learner.load_weights({NAME: torch.ones(SHAPE)})
    held.settle()
    torch.testing.assert_close(learner.weights()[NAME], torch.full(SHAPE, 1 / (1 + 3 * 0.5)))
    assert held.numbers["cl/penalty_ratio"] == pytest.approx(1 - 1 / 2.5)
    held.settle()
    assert held.numbers["cl/penalty_ratio"] == 0


def test_a_bfloat16_policy_is_held_by_its_float32_weights():
    config = settings(model_dtype="bfloat16")
    learner = Learner(tiny_policy(config), config, Ranks(device=torch.device("cpu")))
    held = anchor(learner)
    held.hold(uniform(learner))
    moved = {name: weight + 1e-5 for name, weight in learner.weights().items()}
    assert held.penalty(learner.weights()) == 0
    count = sum(weight.numel() for weight in moved.values())
    assert held.penalty(moved) == pytest.approx(3 / 2 * count * 1e-10, rel=0.05)


def trainer_of(folder: Path, algorithm: str, **options: Any) -> GRPOTrainer:
    return GRPOTrainer(toy_config(folder, cl_algorithm=algorithm, cl_options=options))


def test_l2_init_holds_to_the_first_weights_and_l2_sp_to_the_last(tmp_path: Path):
    for name, kind, held in (("l2_init", L2InitCL, FIRST), ("l2_sp", L2SpCL, SECOND)):
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
        assert torch.equal(term.anchor[NAME], held)
        assert torch.equal(term.importance[NAME], torch.ones(SHAPE))


def test_what_must_be_seen_from_the_start_is_not_guessed_later(tmp_path: Path):
    with pytest.raises(ConfigError, match="l2_init was not there when 'toy_left' began"):
        trainer_of(tmp_path, "l2_init").cl_algorithm.before_task("toy_right")
    trainer = trainer_of(tmp_path, "si")
    with pytest.raises(ConfigError, match="si has not seen 'toy_left' from its first step"):
        trainer.cl_algorithm.post_task_hook(trainer, "toy_left")


def test_a_decay_without_an_online_schedule_is_refused():
    with pytest.raises(ConfigError, match="decay acts with schedule=online only"):
        make_algorithm("ewc", {"decay": 0.5})
    assert isinstance(make_algorithm("ewc", {"decay": 0.5, "schedule": "online"}), EwcCL)


@pytest.mark.parametrize(
    ("name", "options"),
    [("ewc", {"schedule": "separate"}), ("si", {}), ("mas", {"schedule": "online"}), ("l2_sp", {})],
)
def test_anchors_survive_being_written_down(tmp_path: Path, name: str, options: dict[str, Any]):
    trainer = toy_run(tmp_path / "run", num_steps_per_task=2, cl_algorithm=name, cl_options=options)
    folder = tmp_path / "state"
    folder.mkdir()
    trainer.cl_algorithm.save_state(folder)
    other = trainer_of(tmp_path / "other", name, **options)
    other.cl_algorithm.load_state(folder)
    before, after = (held.cl_algorithm.groups() for held in (trainer, other))  # type: ignore[attr-defined]
    assert before.keys() == after.keys()
    for group, tensors in before.items():
        assert torch.equal(tensors[NAME], after[group][NAME]), group


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes found."""
    folder = tmp_path_factory.mktemp("two")
    tests = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tests}:{tests.parent / 'src'}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*command, str(tests / "anchor_work.py"), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", anchor_work.CASES)
def test_nothing_depends_on_the_number_of_ranks(two: Path, case: str):
    found = load_file(two / f"{case}.safetensors")
    alone = anchor_work.find(case, Ranks(device=torch.device("cpu")))
    assert found.keys() == alone.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
