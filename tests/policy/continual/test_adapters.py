"""LoRA adapters with hand-worked values, and the algorithms with one adapter per domain."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.adapters import (
    LORA_A,
    LORA_B,
    AdapterStack,
    is_untrained,
    new_adapter,
)
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from tiny_learners import random_batch, settings, tiny_policy
from tiny_policies import batch, load, perturb, save_model
from toy_resume import fingerprint
from toy_runs import LORA, scores, toy_config, toy_run

IDS_BT = torch.tensor([[1, 2, 3, 4, 5, 6]])
RANK = 4
NUM_LAYERS = 14
"""Linear layers of the tiny Llama: seven in each of two blocks."""


def make_learner(policy: PolicyModel | None = None, **changes: Any) -> Learner:
    config = settings(**{"lora": {"r": RANK}, **changes})
    return Learner(
        policy or tiny_policy(config), config, DistributedContext(device=torch.device("cpu"))
    )


def logprobs(learner: Learner) -> Tensor:
    with torch.no_grad():
        return learner.policy.logprobs(IDS_BT, torch.ones_like(IDS_BT)).logprobs_BT


def start_next_adapter(learner: Learner, stack: AdapterStack, *, seed: int = 1) -> None:
    stack.push()
    learner.load_weights(new_adapter(learner.weights(), seed))
    learner.reset_optimizer()


def frozen(learner: Learner) -> dict[str, Tensor]:
    named = learner.policy.module.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if ".earlier_" in name}


def lora_run(folder: Path, **changes: Any) -> list[list[float]]:
    toy_run(folder, **{"lora": LORA, "learning_rate": 0.02, **changes})
    return scores(folder)


def test_a_new_adapter_depends_on_its_seed_and_leaves_the_policy_unchanged():
    learner = make_learner()
    start = logprobs(learner)
    learner.update(*random_batch(4))
    assert not is_untrained(learner.weights())
    assert not torch.equal(logprobs(learner), start)
    first, again, other = (new_adapter(learner.weights(), seed) for seed in (5, 5, 6))
    assert is_untrained(first)
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name, weight in first.items():
        if LORA_A in name:
            assert not torch.equal(weight, other[name])
            assert 0 < weight.abs().max() <= 1 / math.sqrt(weight.shape[1])
    learner.load_weights(first)
    assert torch.equal(logprobs(learner), start)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_new_adapter_on_frozen_ones_leaves_logprobs_bit_identical(dtype: str):
    learner = make_learner(model_dtype=dtype)
    stack = AdapterStack(learner)
    for seed in range(3):
        learner.update(*random_batch(4, seed=seed))
        learned = logprobs(learner)
        start_next_adapter(learner, stack, seed=seed)
        assert torch.equal(logprobs(learner), learned)
    assert len(stack) == 3


def test_frozen_adapters_do_not_change_while_the_next_is_trained_with_a_kl_reference():
    learner = make_learner(kl_coef=0.1)
    stack = AdapterStack(learner)
    learner.update(*random_batch(4))
    names = [name for name, _ in learner.policy.trainable()]
    start_next_adapter(learner, stack)
    kept = frozen(learner)
    learner.update(*random_batch(4, seed=1))
    after = frozen(learner)
    assert len(kept) == 2 * NUM_LAYERS
    assert all(torch.equal(kept[name], after[name]) for name in kept)
    assert [name for name, _ in learner.policy.trainable()] == names


def test_the_kl_reference_with_stacked_adapters_is_the_initial_policy():
    learner = make_learner(kl_coef=0.1)
    start = logprobs(learner)
    learner.update(*random_batch(4))
    start_next_adapter(learner, AdapterStack(learner))
    with learner.policy.reference():
        assert torch.equal(logprobs(learner), start)
    assert not torch.equal(logprobs(learner), start)


def test_the_overlap_of_adapters_has_its_hand_worked_value_and_gradient():
    learner = make_learner()
    stack = AdapterStack(learner)

    def set_factor_a(column: int, value: float) -> None:
        weights = {n: torch.zeros_like(w) for n, w in learner.weights().items() if LORA_A in n}
        for weight in weights.values():
            weight[:, column] = value
        learner.load_weights(weights)

    set_factor_a(0, 0.5)
    stack.push()
    set_factor_a(1, 1.0)
    assert stack.overlap().item() == 0.0
    set_factor_a(0, -3.0)
    overlap = stack.overlap()
    assert overlap.item() == NUM_LAYERS * RANK**2 * 1.5  # |0.5 · -3| in every entry
    overlap.backward()
    for name, weight in learner.policy.trainable():
        if LORA_A in name:
            assert weight.grad is not None
            # The four rows of the frozen factor, each 0.5.
            assert weight.grad[:, 0].tolist() == [-4 * 0.5] * RANK
            assert not weight.grad[:, 1:].any()
    stack.push()
    assert stack.overlap().item() == NUM_LAYERS * RANK**2 * (1.5 + 9.0)


def test_stacked_adapters_are_saved_as_one_equivalent_adapter(tmp_path: Path):
    base = save_model(tmp_path / "base")
    policy = load(base, lora={"r": 4, "alpha": 6})
    learner = make_learner(policy)
    stack = AdapterStack(learner)
    for seed in range(2):
        perturb(policy)
        start_next_adapter(learner, stack, seed=seed)
    perturb(policy)
    policy.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved", lora={"r": 12})
    expected, actual = (model.logprobs(*batch()).logprobs_BT for model in (policy, loaded))
    assert torch.allclose(actual, expected, atol=1e-5)
    assert sorted(path.name for path in (tmp_path / "saved").glob("adapter*")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_saved_stack_is_restored_bit_for_bit(tmp_path: Path):
    learner = make_learner()
    stack = AdapterStack(learner)
    for seed in range(2):
        learner.update(*random_batch(4, seed=seed))
        start_next_adapter(learner, stack, seed=seed)
    learner.update(*random_batch(4, seed=3))
    stack.save(tmp_path)
    other = make_learner()
    AdapterStack(other).load(tmp_path)
    other.load_weights(learner.weights())
    assert torch.equal(logprobs(other), logprobs(learner))


@pytest.mark.slow
def test_domain_lora_scores_of_old_domains_never_change(tmp_path: Path):
    order = ("toy_left", "toy_right", "toy_up")
    base, *rows = lora_run(tmp_path, cl_algorithm="domain_lora", task_order=order)
    for column in range(3):
        own = [row[column] for row in rows]
        assert own[:column] == [base[column]] * column
        assert set(own[column:]) == {rows[column][column]}
        assert rows[column][column] > base[column]


@pytest.mark.parametrize("algorithm", ["domain_lora", "olora"])
def test_the_first_stage_equals_sequential_training_with_an_adapter(algorithm: str, tmp_path: Path):
    changes: dict[str, Any] = {"task_order": ("toy_left",), "num_steps_per_task": 4, "lora": LORA}
    with_algorithm = toy_run(tmp_path / "with", cl_algorithm=algorithm, **changes)
    sequential = toy_run(tmp_path / "sequential", **changes)
    assert fingerprint(with_algorithm) == fingerprint(sequential)


def test_a_warm_start_continues_with_the_previous_adapter(tmp_path: Path):
    options = {"warm_start": True}
    config = toy_config(tmp_path, cl_algorithm="domain_lora", cl_options=options, lora=LORA)
    trainer = GRPOTrainer(config)
    trainer.cl_algorithm.before_task("toy_left")
    trainer.train_step("toy_left")
    learned = fingerprint(trainer)
    trainer.cl_algorithm.post_task_hook(trainer, "toy_left")
    trainer.cl_algorithm.before_task("toy_right")
    assert fingerprint(trainer) == learned


@pytest.mark.slow
def test_a_stronger_olora_penalty_reduces_forgetting_and_learning(tmp_path: Path):
    weak, strong = (
        lora_run(tmp_path / str(strength), cl_algorithm="olora", cl_options={"strength": strength})
        for strength in (0.0, 50.0)
    )
    assert weak[1] == strong[1]
    assert strong[2][0] > weak[2][0] + 0.1
    assert strong[2][1] < weak[2][1]


def test_olora_logs_the_number_of_adapters_and_their_overlap(tmp_path: Path):
    lora_run(tmp_path, cl_algorithm="olora", num_steps_per_task=2)
    metrics = RunDir(tmp_path).read_metrics()
    assert [row["cl/adapters"] for row in metrics["task_0/train"]] == [1, 1]
    assert [row["cl/adapters"] for row in metrics["task_1/train"]] == [2, 2]
    assert all(row["cl/orthogonality_loss"] > 0 for row in metrics["task_1/train"])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["domain_lora", "olora"])
def test_the_model_saved_after_a_stage_is_the_evaluated_one(algorithm: str, tmp_path: Path):
    rows = lora_run(tmp_path / "run", cl_algorithm=algorithm, num_steps_per_task=6)
    model = RunDir(tmp_path / "run").stage_checkpoint(1).model_dir
    rank = 2 * LORA["r"] if algorithm == "olora" else LORA["r"]
    config = toy_config(tmp_path / "other", model_name_or_path=str(model), lora={"r": rank})
    assert GRPOTrainer(config).evaluate_task("toy_right").mean == rows[2][1]


@pytest.mark.parametrize("algorithm", ["domain_lora", "olora"])
def test_adapter_algorithms_need_lora(algorithm: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="to 8 or more, with linear layers"):
        GRPOTrainer(toy_config(tmp_path, cl_algorithm=algorithm))


def config_with_trained_adapter(folder: Path, algorithm: str) -> GRPOConfig:
    """A run that starts from an adapter trained on another domain."""
    lora_run(folder / "run", task_order=("toy_up",), num_steps_per_task=2)
    model = RunDir(folder / "run").stage_checkpoint(0).model_dir
    return toy_config(
        folder / "next", model_name_or_path=str(model), lora=LORA, cl_algorithm=algorithm
    )


def test_olora_refuses_a_trained_adapter(tmp_path: Path):
    with pytest.raises(ConfigError, match="merge it into its base model"):
        GRPOTrainer(config_with_trained_adapter(tmp_path, "olora"))


def test_domain_lora_starts_every_domain_from_the_given_trained_adapter(tmp_path: Path):
    trainer = GRPOTrainer(config_with_trained_adapter(tmp_path, "domain_lora"))
    start = fingerprint(trainer)
    trainer.train_step("toy_left")
    assert fingerprint(trainer) != start
    trainer.cl_algorithm.before_task("toy_right")
    assert fingerprint(trainer) == start


def test_each_b_factor_has_an_a_factor():
    names = make_learner().weights()
    assert {n.replace(LORA_B, LORA_A) for n in names if LORA_B in n} == {
        n for n in names if LORA_A in n
    }
