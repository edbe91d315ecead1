import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.policy.learner.batching import collate, sft_samples
from grpo_cl.policy.learner.learner import Learner, supervised_update
from grpo_cl.policy.learner.optimizer import LearnerState
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.types import TokenTrace
from tiny_learners import (
    group,
    random_batch,
    random_traces,
    settings,
    tiny_policy,
    trace,
)

CPU = torch.device("cpu")


def make_learner(config: GRPOConfig | None = None) -> Learner:
    config = config or settings()
    return Learner(tiny_policy(config), config, DistributedContext(device=CPU))


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in learner.policy.trainable()}


def max_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@torch.no_grad()
def mean_logprob(policy: PolicyModel, token_trace: TokenTrace) -> float:
    batch = collate(sft_samples([token_trace]), CPU)
    scores = policy.logprobs(batch.ids_BT, batch.attention_BT, mask_BT=batch.mask_BT)
    return float(scores.logprobs_BT.sum() / batch.mask_BT.sum())


def test_positive_advantage_raises_and_negative_lowers_the_log_prob_of_a_reply():
    learner = make_learner()
    good, bad = trace([1, 2, 3, 4], (2, 4)), trace([1, 2, 9, 8], (2, 4))
    before = mean_logprob(learner.policy, good), mean_logprob(learner.policy, bad)
    for _ in range(5):
        learner.update([group(good, bad)], [[1.0, -1.0]])
    assert mean_logprob(learner.policy, good) > before[0] + 0.1
    assert mean_logprob(learner.policy, bad) < before[1] - 0.1


def test_update_returns_its_metrics():
    config = settings(kl_coef=0.1, optimizer={"warmup_steps": 4})
    numbers = make_learner(config).update(*random_batch(4))
    assert numbers.keys() == {
        "loss", "kl", "entropy", "clip_fraction", "clip_fraction_low", "clip_fraction_high",
        "ratio_mean", "ratio_max", "mismatch_kl", "importance_weight",
        "grad_norm", "learning_rate", "tokens", "update_s", "skipped_updates",
    }  # fmt: skip
    assert numbers["learning_rate"] == 1e-3 / 4
    assert numbers["tokens"] == sum(sum(token_trace.mask) for token_trace in random_traces(4))
    assert (numbers["kl"], numbers["ratio_max"], numbers["clip_fraction"]) == (0.0, 1.0, 0.0)
    assert 0 < numbers["entropy"] < math.log(64)
    assert numbers["grad_norm"] > 0


def test_learning_rate_warms_up_linearly_and_stays_constant():
    learner = make_learner(settings(learning_rate=0.4, optimizer={"warmup_steps": 4}))
    rates = [learner.update(*random_batch(2))["learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_kl_penalty_moves_the_policy_towards_its_reference():
    learner = make_learner(settings(kl_coef=1.0, learning_rate=1e-3))
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, weight in learner.policy.trainable():
            weight.add_(0.05 * torch.randn(weight.shape, generator=noise))
    batch = [group(*random_traces(6))]
    divergences = [learner.update(batch, [[0.0] * 6])["kl"] for _ in range(10)]
    assert divergences[-1] < 0.5 * divergences[0]


@pytest.mark.parametrize("kind", ["dapo", "grpo", "gspo"])
def test_every_split_into_micro_batches_gives_the_same_update(kind: str):
    found: list[dict[str, Tensor]] = []
    for budget in (1, 70, 10_000):
        config = settings(
            kl_coef=0.1,
            learning_rate=1e-4,
            loss={"kind": kind, "updates_per_batch": 2},
            optimizer={"micro_batch_tokens": budget},
        )
        learner = make_learner(config)
        learner.update(*random_batch(9))
        found.append(weights(learner))
    assert max_difference(found[0], found[1]) < 1e-6
    assert max_difference(found[0], found[2]) < 1e-6


def test_every_division_of_a_batch_by_accumulation_gives_the_same_loss_and_gradient():
    batch = [group(*random_traces(3, seed=task)) for task in range(8)]
    advantages = [[1.0, -0.5 * task, 0.3] for task in range(8)]
    gradients: list[dict[str, Tensor]] = []

    def record(parameters: Sequence[tuple[str, Parameter]]) -> None:
        found = {name: parameter.grad for name, parameter in parameters}
        gradients.append({name: grad.clone() for name, grad in found.items() if grad is not None})

    losses: list[float] = []
    for size in (8, 4, 2, 1):
        config = settings(
            kl_coef=0.1,
            num_samples_per_prompt=3,
            batch_size_per_gpu=size,
            gradient_accumulation_steps=8 // size,
        )
        learner = make_learner(config)
        losses.append(learner.update(batch, advantages, transform=record)["loss"])
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)
    assert max(max_difference(gradients[0], other) for other in gradients[1:]) < 1e-6


def test_later_updates_on_a_batch_are_clipped_against_the_first_policy():
    config = settings(learning_rate=1e-2, loss={"updates_per_batch": 4})
    numbers = make_learner(config).update(*random_batch(4))
    assert numbers["ratio_max"] > 1.28
    assert numbers["clip_fraction"] > 0


def test_trajectory_without_advantage_does_not_change_the_update():
    one, other = make_learner(), make_learner()
    first, second = random_traces(2)
    one.update([group(first, second)], [[1.0, -1.0]])
    other.update([group(first, trace([7, 8], (1, 2)), second)], [[1.0, None, -1.0]])
    assert max_difference(weights(one), weights(other)) == 0


def test_momentum_does_not_move_the_weights_without_samples():
    learner = make_learner()
    learner.update(*random_batch(4))
    before = weights(learner)
    numbers = learner.update([], [], auxiliary=lambda policy: None)
    assert max_difference(before, weights(learner)) == 0
    assert (numbers["tokens"], numbers["loss"], numbers["skipped_updates"]) == (0, 0, 0)


def squared_norm(policy: PolicyModel) -> Tensor:
    return torch.stack([weight.square().sum() for _, weight in policy.trainable()]).sum()


def test_auxiliary_loss_alone_makes_an_update():
    learner = make_learner()
    before = squared_norm(learner.policy).item()
    numbers = learner.update([], [], auxiliary=squared_norm)
    assert numbers["loss"] == pytest.approx(before, rel=1e-6)
    assert squared_norm(learner.policy).item() < before


def test_gradient_transform_gets_every_unclipped_gradient_by_name():
    learner = make_learner(settings(max_grad_norm=1e-3))
    before = weights(learner)
    seen: list[tuple[str, float]] = []

    def zero_gradients(parameters: Sequence[tuple[str, Parameter]]) -> None:
        for name, parameter in parameters:
            assert parameter.grad is not None
            seen.append((name, float(parameter.grad.norm())))
            parameter.grad.zero_()

    numbers = learner.update(*random_batch(4), transform=zero_gradients)
    assert [name for name, _ in seen] == [name for name, _ in learner.policy.trainable()]
    assert math.hypot(*(norm for _, norm in seen)) > 1e-3
    assert numbers["grad_norm"] == 0
    assert max_difference(before, weights(learner)) == 0


@pytest.mark.parametrize("advantage", [math.nan, math.inf])
def test_non_finite_updates_are_skipped_and_the_third_in_a_row_is_an_error(advantage: float):
    learner = make_learner()
    before = weights(learner)
    bad = [group(trace([1, 2, 3], (1, 3)))], [[advantage]]
    for _ in range(2):
        assert all(map(math.isfinite, learner.update(*bad).values()))
        assert learner.update(*bad)["skipped_updates"] == 1
        assert max_difference(before, weights(learner)) == 0
        assert learner.update(*random_batch(2))["skipped_updates"] == 0
        before = weights(learner)
    learner.update(*bad)
    learner.update(*bad)
    with pytest.raises(ConfigError, match="3 updates in a row"):
        learner.update(*bad)
    assert max_difference(before, weights(learner)) == 0


def saved_and_loaded(state: LearnerState, folder: Path) -> LearnerState:
    save_file(state.tensors, folder / "learner.safetensors")
    (folder / "learner.json").write_text(json.dumps(state.numbers))
    return LearnerState(
        load_file(folder / "learner.safetensors"),
        json.loads((folder / "learner.json").read_text()),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_learner_resumes_bit_for_bit_from_a_saved_state(tmp_path: Path, dtype: str, stop: int):
    config = settings(
        model_dtype=dtype, learning_rate=1e-4, optimizer={"warmup_steps": 3, "weight_decay": 0.1}
    )
    whole = make_learner(config)
    for step in range(5):
        whole.update(*random_batch(3, seed=step))
    first = make_learner(config)
    for step in range(stop):
        first.update(*random_batch(3, seed=step))
    policy, state = first.policy.state_dict(), saved_and_loaded(first.state_dict(), tmp_path)
    second = make_learner(config)
    second.update(*random_batch(3, seed=9))
    second.policy.load_state_dict(policy)
    second.load_state_dict(state)
    for step in range(stop, 5):
        second.update(*random_batch(3, seed=step))
    assert max_difference(weights(whole), weights(second)) == 0
    assert whole.policy.fingerprint() == second.policy.fingerprint()


def test_state_of_another_policy_is_an_error_that_names_the_tensor():
    learner = make_learner()
    learner.update(*random_batch(2))
    state = learner.state_dict()
    del state.tensors["exp_avg/model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"1 tensors .*'exp_avg/model.norm.weight'"):
        make_learner().load_state_dict(state)
    with pytest.raises(CheckpointError, match="updates"):
        make_learner().load_state_dict(LearnerState({}, {}))


def test_updates_below_bfloat16_precision_accumulate_in_float32():
    config = settings(model_dtype="bfloat16", learning_rate=1e-5)
    learner = make_learner(config)
    start = weights(learner)
    for _ in range(40):
        learner.update(*random_batch(2))
    exact = make_learner(settings(learning_rate=1e-5))
    name = "lm_head.weight"
    moved = weights(learner)[name] - start[name]
    assert float(moved.abs().max()) > 2e-4
    copies = learner.state_dict().tensors[f"weights/{name}"]
    assert torch.equal(copies.bfloat16(), weights(learner)[name])
    assert f"weights/{name}" not in exact.state_dict().tensors


def test_updates_continue_from_loaded_weights():
    learner = make_learner(settings(model_dtype="bfloat16"))
    learner.load_weights({name: 0 * weight for name, weight in learner.weights().items()})
    learner.update(*random_batch(2))
    assert max(float(weight.abs().max()) for weight in weights(learner).values()) < 0.01


def test_update_after_reset_equals_a_first_update():
    learner, fresh = make_learner(), make_learner()
    start = learner.weights()
    learner.update(*random_batch(2))
    learner.load_weights(start)
    learner.reset_optimizer()
    learner.update(*random_batch(3))
    fresh.update(*random_batch(3))
    assert all(torch.equal(a, b) for a, b in zip(*map(weight_list, (learner, fresh)), strict=True))


def weight_list(learner: Learner) -> list[torch.Tensor]:
    return list(learner.weights().values())


def test_update_changes_neither_the_global_generator_nor_evaluation_mode():
    learner = make_learner()
    before = torch.random.get_rng_state()
    learner.update(*random_batch(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not learner.policy.module.training


def test_dropout_depends_on_the_seed_and_the_number_of_updates():
    config = settings(lora={"r": 4, "dropout": 0.5}, loss={"updates_per_batch": 2})
    one, other = make_learner(config), make_learner(config)
    plain = make_learner(settings(lora={"r": 4}, loss={"updates_per_batch": 2}))
    for learner in (one, other, plain):
        torch.rand(1)
        learner.update(*random_batch(2))
        learner.update(*random_batch(2))
    assert len(weights(one)) == 28
    assert max_difference(weights(one), weights(other)) == 0
    assert max_difference(weights(one), weights(plain)) > 0


def test_supervised_update_lowers_the_mean_cross_entropy_of_the_masked_tokens():
    learner = make_learner(settings(optimizer={"micro_batch_tokens": 40}))
    traces = random_traces(6)
    tokens = [sum(token_trace.mask) for token_trace in traces]
    logprobs = [mean_logprob(learner.policy, token_trace) for token_trace in traces]
    expected = -sum(n * mean for n, mean in zip(tokens, logprobs, strict=True)) / sum(tokens)
    losses = [supervised_update(learner, traces)["loss"] for _ in range(20)]
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0] - 1
