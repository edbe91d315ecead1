"""Adapters by hand, and the algorithms that give each domain one."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.adapters import INNER, OUTER, AdapterStack, is_new, new_adapter
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.ranks import Ranks
from grpo_cl.rundir import RunDir
from grpo_cl.trainer import GRPOTrainer
from tiny_learners import random_batch, settings, tiny_policy
from tiny_policies import batch, load, move, save_model
from toy_resume import fingerprint
from toy_runs import LORA, scores, toy_config, toy_run

IDS_BT = torch.tensor([[1, 2, 3, 4, 5, 6]])
RANK = 4
NUM_LAYERS = 14
"""Linear layers of the tiny Llama: seven in each of two blocks."""


def make_learner(policy: PolicyModel | None = None, **changes: Any) -> Learner:
    config = settings(**{"lora": {"r": RANK}, **changes})
    return Learner(policy or tiny_policy(config), config, Ranks(device=torch.device("cpu")))


def logprobs(learner: Learner) -> Tensor:
    with torch.no_grad():
        return learner.policy.logprobs(IDS_BT, torch.ones_like(IDS_BT)).logprobs_BT


def begin_next(learner: Learner, stack: AdapterStack, *, seed: int = 1) -> None:
    stack.push()
    learner.load_weights(new_adapter(learner.weights(), seed))
    learner.forget_moments()


def frozen(learner: Learner) -> dict[str, Tensor]:
    named = learner.policy.module.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if ".earlier_" in name}


def lora_run(folder: Path, **changes: Any) -> list[list[float]]:
    toy_run(folder, **{"lora": LORA, "learning_rate": 0.02, **changes})
    return scores(folder)


def test_a_new_adapter_is_drawn_from_its_seed_and_changes_nothing():
    learner = make_learner()
    start = logprobs(learner)
    learner.update(*random_batch(4))
    assert not is_new(learner.weights())
    assert not torch.equal(logprobs(learner), start)
    made, again, other = (new_adapter(learner.weights(), seed) for seed in (5, 5, 6))
    assert is_new(made)
    assert all(torch.equal(made[name], again[name]) for name in made)
    for name, weight in made.items():
        if INNER in name:
            assert not torch.equal(weight, other[name])
            assert 0 < weight.abs().max() <= 1 / math.sqrt(weight.shape[1])
    learner.load_weights(made)
    assert torch.equal(logprobs(learner), start)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_new_adapter_on_frozen_ones_leaves_the_policy_to_the_bit(dtype: str):
    learner = make_learner(model_dtype=dtype)
    stack = AdapterStack(learner)
    for seed in range(3):
        learner.update(*random_batch(4, seed=seed))
        learned = logprobs(learner)
        begin_next(learner, stack, seed=seed)
        assert torch.equal(logprobs(learner), learned)
    assert len(stack) == 3


def test_frozen_adapters_stay_frozen_while_the_next_learns_against_a_reference():
    learner = make_learner(kl_coef=0.1)
    stack = AdapterStack(learner)
    learner.update(*random_batch(4))
    names = [name for name, _ in learner.policy.trainable()]
    begin_next(learner, stack)
    kept = frozen(learner)
    learner.update(*random_batch(4, seed=1))
    after = frozen(learner)
    assert len(kept) == 2 * NUM_LAYERS
    assert all(torch.equal(kept[name], after[name]) for name in kept)
    assert [name for name, _ in learner.policy.trainable()] == names


def test_the_reference_is_the_policy_of_the_start_with_adapters_stacked():
    learner = make_learner(kl_coef=0.1)
    start = logprobs(learner)
    learner.update(*random_batch(4))
    begin_next(learner, AdapterStack(learner))
    with learner.policy.reference():
        assert torch.equal(logprobs(learner), start)
    assert not torch.equal(logprobs(learner), start)


def test_the_overlap_of_adapters_by_hand():
    learner = make_learner()
    stack = AdapterStack(learner)

    def set_inner(column: int, value: float) -> None:
        weights = {n: torch.zeros_like(w) for n, w in learner.weights().items() if INNER in n}
        for weight in weights.values():
            weight[:, column] = value
        learner.load_weights(weights)

    set_inner(0, 0.5)
    stack.push()
    set_inner(1, 1.0)
    assert stack.overlap().item() == 0.0
    set_inner(0, -3.0)
    overlap = stack.overlap()
    assert overlap.item() == NUM_LAYERS * 1.5  # |0.5 · -3| in every entry
    overlap.backward()
    for name, weight in learner.policy.trainable():
        if INNER in name:
            assert weight.grad is not None
            # The four rows of the old factor, each 0.5 and with a share of 1 / 16, to the left.
            assert weight.grad[:, 0].tolist() == [-4 * 0.5 / 16] * RANK
            assert not weight.grad[:, 1:].any()
    stack.push()
    assert stack.overlap().item() == NUM_LAYERS * (1.5 + 9.0)


def test_stacked_adapters_are_saved_as_one_that_does_the_same(tmp_path: Path):
    base = save_model(tmp_path / "base")
    policy = load(base, lora={"r": 4, "alpha": 6})
    learner = make_learner(policy)
    stack = AdapterStack(learner)
    for seed in range(2):
        move(policy)
        begin_next(learner, stack, seed=seed)
    move(policy)
    policy.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved", lora={"r": 12})
    expected, found = (each.logprobs(*batch()).logprobs_BT for each in (policy, loaded))
    assert torch.allclose(found, expected, atol=1e-5)
    assert sorted(path.name for path in (tmp_path / "saved").glob("adapter*")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_stack_survives_on_disk_to_the_bit(tmp_path: Path):
    learner = make_learner()
    stack = AdapterStack(learner)
    for seed in range(2):
        learner.update(*random_batch(4, seed=seed))
        begin_next(learner, stack, seed=seed)
    learner.update(*random_batch(4, seed=3))
    stack.save(tmp_path)
    other = make_learner()
    AdapterStack(other).read(tmp_path)
    other.load_weights(learner.weights())
    assert torch.equal(logprobs(other), logprobs(learner))


def test_domain_lora_measures_an_old_domain_the_same_for_ever(tmp_path: Path):
    order = ("toy_left", "toy_right", "toy_up")
    base, *rows = lora_run(tmp_path, cl_algorithm="domain_lora", task_order=order)
    for column in range(3):
        own = [row[column] for row in rows]
        assert own[:column] == [base[column]] * column
        assert set(own[column:]) == {rows[column][column]}
        assert rows[column][column] > base[column]


@pytest.mark.parametrize("algorithm", ["domain_lora", "olora"])
def test_the_first_domain_is_learned_as_by_sequential_with_an_adapter(
    algorithm: str, tmp_path: Path
):
    changes: dict[str, Any] = {"task_order": ("toy_left",), "num_steps_per_task": 4, "lora": LORA}
    with_it = toy_run(tmp_path / "with", cl_algorithm=algorithm, **changes)
    without = toy_run(tmp_path / "without", **changes)
    assert fingerprint(with_it) == fingerprint(without)


def test_a_warm_start_goes_on_with_the_adapter_before(tmp_path: Path):
    options = {"warm_start": True}
    config = toy_config(tmp_path, cl_algorithm="domain_lora", cl_options=options, lora=LORA)
    trainer = GRPOTrainer(config)
    trainer.cl_algorithm.before_task("toy_left")
    trainer.train_step("toy_left")
    learned = fingerprint(trainer)
    trainer.cl_algorithm.post_task_hook(trainer, "toy_left")
    trainer.cl_algorithm.before_task("toy_right")
    assert fingerprint(trainer) == learned


def test_olora_forgets_less_the_stronger_it_is_and_learns_less(tmp_path: Path):
    weak, strong = (
        lora_run(tmp_path / str(strength), cl_algorithm="olora", cl_options={"strength": strength})
        for strength in (0.0, 50.0)
    )
    assert weak[1] == strong[1]
    assert strong[2][0] > weak[2][0] + 0.1
    assert strong[2][1] < weak[2][1]


def test_olora_shows_its_adapters_and_their_overlap(tmp_path: Path):
    lora_run(tmp_path, cl_algorithm="olora", num_steps_per_task=2)
    metrics = RunDir(tmp_path).read_metrics()
    assert [row["cl/adapters"] for row in metrics["task_0/train"]] == [1, 1]
    assert [row["cl/adapters"] for row in metrics["task_1/train"]] == [2, 2]
    assert all(row["cl/orthogonality_loss"] > 0 for row in metrics["task_1/train"])


@pytest.mark.parametrize("algorithm", ["domain_lora", "olora"])
def test_the_model_saved_after_a_stage_is_the_one_that_was_measured(algorithm: str, tmp_path: Path):
    rows = lora_run(tmp_path / "run", cl_algorithm=algorithm, num_steps_per_task=6)
    model = RunDir(tmp_path / "run").stage_checkpoint(1).model_dir
    rank = 2 * LORA["r"] if algorithm == "olora" else LORA["r"]
    config = toy_config(tmp_path / "other", model_name_or_path=str(model), lora={"r": rank})
    assert GRPOTrainer(config).evaluate_task("toy_right").mean == rows[2][1]


@pytest.mark.parametrize("algorithm", ["domain_lora", "olora"])
def test_adapters_need_lora(algorithm: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="to 8 or more, with linear layers"):
        GRPOTrainer(toy_config(tmp_path, cl_algorithm=algorithm))


def test_olora_refuses_an_adapter_that_was_trained(tmp_path: Path):
    lora_run(tmp_path / "run", task_order=("toy_left",), num_steps_per_task=2)
    config = toy_config(
        tmp_path / "next",
        model_name_or_path=str(RunDir(tmp_path / "run").stage_checkpoint(0).model_dir),
        lora=LORA,
        cl_algorithm="olora",
    )
    with pytest.raises(ConfigError, match="merge it into its base model"):
        GRPOTrainer(config)


def test_domain_lora_begins_every_domain_with_a_given_adapter(tmp_path: Path):
    lora_run(tmp_path / "run", task_order=("toy_up",), num_steps_per_task=2)
    config = toy_config(
        tmp_path / "next",
        model_name_or_path=str(RunDir(tmp_path / "run").stage_checkpoint(0).model_dir),
        lora=LORA,
        cl_algorithm="domain_lora",
    )
    trainer = GRPOTrainer(config)
    start = fingerprint(trainer)
    trainer.train_step("toy_left")
    assert fingerprint(trainer) != start
    trainer.cl_algorithm.before_task("toy_right")
    assert fingerprint(trainer) == start


def test_the_outer_factor_of_each_layer_has_an_inner_one():
    names = make_learner().weights()
    assert {n.replace(OUTER, INNER) for n in names if OUTER in n} == {
        n for n in names if INNER in n
    }
