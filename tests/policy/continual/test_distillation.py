from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_cl.algorithms import make_algorithm
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.distillation import (
    Estimator,
    categorical_kl,
    memory_samples,
    record_logprobs,
    record_top_logprobs,
    token_kl_loss,
    token_kl_terms,
    token_logprobs,
    top_kl_loss,
)
from grpo_cl.policy.continual.episodic_memory import EpisodicMemory, MemoryEpisode
from grpo_cl.policy.continual.tensors import load_tensors, save_tensors
from grpo_cl.policy.learner.batching import MicroBatch
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.weights import ModuleWeights, WeightSnapshot
from grpo_cl.runs.reservoir import Experience
from grpo_cl.types import TokenTrace
from tiny_learners import VOCABULARY, group, random_batch, random_traces, settings, tiny_policy

POLICY = torch.tensor([0.3, -0.7, 0.1, 0.9], dtype=torch.float64)
OLD = torch.tensor([-0.2, 0.4, 1.1, -0.5], dtype=torch.float64)
SAMPLER = torch.tensor([0.1, 0.6, 0.8, -0.3], dtype=torch.float64)
"""Logits of three distributions over four tokens; no ratio OLD / SAMPLER exceeds 2."""


def kl(p_V: Tensor, q_V: Tensor) -> Tensor:
    return (p_V.exp() * (p_V - q_V)).sum()


def gradient(function: Any) -> Tensor:
    """The gradient of a function of the policy's log-probs with respect to its logits."""
    logits_V = POLICY.clone().requires_grad_()
    function(logits_V.log_softmax(-1)).backward()
    assert logits_V.grad is not None
    return logits_V.grad


def all_tokens(probs_V: Tensor, weights_V: Tensor | None = None) -> MicroBatch:
    """Each token once, weighted by its probability, with the old policy's log-probs."""
    ids_BT = torch.arange(4)[:, None]
    return MicroBatch(
        ids_BT=ids_BT,
        attention_BT=torch.ones_like(ids_BT),
        mask_BT=torch.ones_like(ids_BT, dtype=torch.bool),
        sampler_logprobs_BT=OLD.log_softmax(-1)[:, None],
        advantages_BT=(torch.ones(4).double() if weights_V is None else weights_V)[:, None],
        weights_B=probs_V,
    )


def expected_gradient(batch: MicroBatch, estimator: Estimator, *, is_old: bool) -> Tensor:
    return gradient(
        lambda policy_V: token_kl_terms(policy_V[:, None], batch, estimator, is_old=is_old).loss
    )


@pytest.mark.parametrize("estimator", ["k3", "nll"])
def test_on_samples_of_the_old_policy_the_gradient_is_that_of_kl_old_policy(
    estimator: Estimator,
) -> None:
    old_V = OLD.log_softmax(-1)
    result = expected_gradient(all_tokens(old_V.exp()), estimator, is_old=True)
    torch.testing.assert_close(result, gradient(lambda policy_V: kl(old_V, policy_V)))


@pytest.mark.parametrize("estimator", ["k3", "nll"])
def test_importance_weights_correct_for_the_sampling_policy(estimator: Estimator) -> None:
    old_V, sampler_V = OLD.log_softmax(-1), SAMPLER.log_softmax(-1)
    batch = all_tokens(sampler_V.exp(), (old_V - sampler_V).exp())
    result = expected_gradient(batch, estimator, is_old=True)
    torch.testing.assert_close(result, gradient(lambda policy_V: kl(old_V, policy_V)))


def test_on_samples_of_the_policy_k3_and_k2_have_the_gradients_of_the_two_kls() -> None:
    old_V, policy_V = OLD.log_softmax(-1), POLICY.log_softmax(-1)
    batch = all_tokens(policy_V.exp())
    forward = expected_gradient(batch, "k3", is_old=False)
    torch.testing.assert_close(forward, gradient(lambda now_V: kl(old_V, now_V)))
    reverse = expected_gradient(batch, "k2", is_old=False)
    torch.testing.assert_close(reverse, gradient(lambda now_V: kl(now_V, old_V)))
    zero = expected_gradient(batch, "nll", is_old=False)
    torch.testing.assert_close(zero, torch.zeros_like(zero))


def test_the_logged_divergence_is_the_kl_for_every_estimator() -> None:
    old_V, policy_V = OLD.log_softmax(-1), POLICY.log_softmax(-1)
    for estimator in ("k2", "k3", "nll"):
        batch = all_tokens(old_V.exp())
        weighted = batch._replace(advantages_BT=old_V.exp()[:, None], weights_B=torch.ones(4))
        part = token_kl_terms(policy_V[:, None], weighted, estimator, is_old=True)
        assert part.sums.tolist() == pytest.approx([4, kl(old_V, policy_V).item()])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_an_unchanged_policy_has_loss_and_gradient_zero(estimator: Estimator) -> None:
    batch = all_tokens(torch.full((4,), 0.25).double())
    logprobs_BT = OLD.log_softmax(-1)[:, None].requires_grad_()
    part = token_kl_terms(logprobs_BT, batch, estimator, is_old=True)
    part.loss.backward()
    assert part.loss.item() == 0.0
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad.abs().max() == 0.0


def test_recording_the_whole_vocabulary_gives_the_exact_kl() -> None:
    order = torch.tensor([[2, 0, 3, 1]])
    recorded_NK = token_logprobs(OLD[None], order)
    assert recorded_NK.shape == (1, 4)
    result = gradient(
        lambda policy_V: categorical_kl(recorded_NK, token_logprobs(policy_V[None], order)).sum()
    )
    old_V = OLD.log_softmax(-1)
    torch.testing.assert_close(result, gradient(lambda policy_V: kl(old_V, policy_V)))
    value = categorical_kl(recorded_NK, token_logprobs(POLICY[None], order))
    torch.testing.assert_close(value[0], kl(old_V, POLICY.log_softmax(-1)))


def test_tokens_that_are_not_recorded_are_one_outcome() -> None:
    order = torch.tensor([[2, 1]])
    recorded_NK, policy_NK = token_logprobs(OLD[None], order), token_logprobs(POLICY[None], order)
    torch.testing.assert_close(recorded_NK.exp().sum(-1), torch.ones(1).double())
    p, q = OLD.softmax(-1), POLICY.softmax(-1)
    rest_p, rest_q = p[0] + p[3], q[0] + q[3]
    by_hand = p[2] * (p[2] / q[2]).log() + p[1] * (p[1] / q[1]).log()
    by_hand = by_hand + rest_p * (rest_p / rest_q).log()
    torch.testing.assert_close(categorical_kl(recorded_NK, policy_NK)[0], by_hand)
    assert by_hand < kl(OLD.log_softmax(-1), POLICY.log_softmax(-1))
    assert categorical_kl(recorded_NK, recorded_NK).item() == 0.0


def test_the_gradient_of_the_top_k_kl_matches_finite_differences() -> None:
    order = torch.tensor([[2, 1]])
    recorded_NK = token_logprobs(OLD[None], order)

    def value(logits_V: Tensor) -> Tensor:
        return categorical_kl(recorded_NK, token_logprobs(logits_V[None], order)).sum()

    assert torch.autograd.gradcheck(value, POLICY.clone().requires_grad_())


def test_a_probability_of_zero_contributes_nothing_to_the_kl() -> None:
    impossible = torch.tensor([[0.0, 0.5, -torch.inf]])
    order = torch.tensor([[0, 1, 2]])
    logits_NV = impossible.clone().requires_grad_()
    result = categorical_kl(
        token_logprobs(impossible, order), token_logprobs(logits_NV, order)
    ).sum()
    result.backward()
    assert result.item() == 0.0


def make_learner(**changes: Any) -> Learner:
    config = settings(**changes)
    return Learner(tiny_policy(config), config, DistributedContext())


def records(traces: Sequence[TokenTrace]) -> list[tuple[Experience, TokenTrace]]:
    trajectories = group(*traces).trajectories
    return [
        (Experience(trajectory=trajectory, reward=position % 2, step=0), trace)
        for position, (trajectory, trace) in enumerate(zip(trajectories, traces, strict=True))
    ]


def test_the_token_kl_is_zero_until_the_policy_changes() -> None:
    learner = make_learner(temperature=0.8)
    samples = memory_samples(record_logprobs(learner, records(random_traces(5))))
    before = token_kl_loss(learner, samples, "k3", is_old=True)
    assert before.sums["tokens"] == sum(sum(sample.trace.mask) for sample in samples)
    assert before.loss.item() == pytest.approx(0, abs=1e-9)
    learner.update(*random_batch(4, seed=3))
    assert token_kl_loss(learner, samples, "k3", is_old=True).loss.item() > 1e-6


def test_token_weights_are_importance_ratios_capped_at_two() -> None:
    learner = make_learner()
    (episode,) = record_logprobs(learner, records(random_traces(1)))
    recorded = episode.columns["logprobs"].tolist()
    ratios = [0.5, 1.5, 7.0, 1.0, 0.01, 1e9]
    expected_ratios = [ratios[position % 6] for position in range(len(recorded))]
    sampled = tuple(
        value - torch.tensor(ratio, dtype=torch.float64).log().item()
        for value, ratio in zip(recorded, expected_ratios, strict=True)
    )
    trace = episode.trace.model_copy(update={"logprobs": sampled})
    (sample,) = memory_samples([episode._replace(trace=trace)])
    assert sample.advantages == pytest.approx([min(ratio, 2.0) for ratio in expected_ratios])


@pytest.mark.parametrize("top", [3, VOCABULARY])
def test_the_top_k_kl_is_zero_until_the_policy_changes(top: int) -> None:
    learner = make_learner(optimizer={"micro_batch_tokens": 40})
    episodes = record_top_logprobs(learner, records(random_traces(5)), top)
    assert {episode.columns["shares"].shape[1] for episode in episodes} == {
        min(top + 1, VOCABULARY)
    }
    before = top_kl_loss(learner, episodes, alpha=1.0, beta=0.0)
    assert before.loss.item() == pytest.approx(0, abs=1e-6)
    learner.update(*random_batch(4, seed=3))
    after = top_kl_loss(learner, episodes, alpha=1.0, beta=0.0)
    assert after.loss.item() > 1e-6
    assert after.loss.item() == pytest.approx(after.sums["kl"] / after.sums["tokens"], rel=1e-4)


def test_only_successes_enter_the_nll() -> None:
    learner = make_learner()
    episodes = record_top_logprobs(learner, records(random_traces(4)), 3)
    result = top_kl_loss(learner, episodes, alpha=0.0, beta=0.5)
    samples = memory_samples(record_logprobs(learner, records(random_traces(4))))
    successes = [sample for position, sample in enumerate(samples) if position % 2]
    nll = -sum(sum(sample.trace.logprobs) for sample in successes)
    assert result.sums["nll"] == pytest.approx(nll, rel=1e-4)
    num_tokens = sum(sum(sample.trace.mask) for sample in successes)
    assert result.sums["success_tokens"] == num_tokens < result.sums["tokens"]
    assert result.loss.item() == pytest.approx(0.5 * nll / num_tokens, rel=1e-4)


def filled_memory() -> EpisodicMemory:
    learner = make_learner()
    filled = EpisodicMemory()
    filled.episodes["a/b"] = record_top_logprobs(learner, records(random_traces(12)), 3)
    filled.episodes["c"] = record_logprobs(learner, records(random_traces(3, seed=1)))
    return filled


def as_plain_values(episodes: Sequence[MemoryEpisode]) -> list[Any]:
    return [
        (
            episode.trace.ids,
            episode.trace.mask,
            episode.trace.logprobs,
            episode.reward,
            {name: (column.dtype, column.tolist()) for name, column in episode.columns.items()},
        )
        for episode in episodes
    ]


def test_a_saved_memory_is_restored_bit_for_bit_and_samples_the_same(tmp_path: Path) -> None:
    filled, loaded = filled_memory(), EpisodicMemory()
    save_tensors(tmp_path, filled.tensors(), is_main=True)
    loaded.load(load_tensors(tmp_path), ("c", "a/b", "d"))
    for domain, episodes in filled.episodes.items():
        assert as_plain_values(loaded.episodes[domain]) == as_plain_values(episodes)
    sampled = [memory.sample(5, ("a/b", "c"), Random(7)) for memory in (filled, loaded)]
    assert as_plain_values(sampled[0]) == as_plain_values(sampled[1])


def test_a_memory_is_sampled_evenly_over_the_given_domains_only() -> None:
    filled = filled_memory()
    ids_of_c = {episode.trace.ids for episode in filled.episodes["c"]}
    sampled = filled.sample(4, ("a/b", "c"), Random(0))
    assert len(sampled) == 4
    assert sum(episode.trace.ids in ids_of_c for episode in sampled) == 2
    assert len(filled.sample(99, ("c",), Random(0))) == 3
    assert filled.sample(4, ("elsewhere",), Random(0)) == []


def test_a_swapped_snapshot_replaces_the_weights_and_restores_them_bit_for_bit() -> None:
    learner = make_learner()
    policy = learner.policy
    first = policy.fingerprint()
    snapshot = WeightSnapshot.take(ModuleWeights(policy.module))
    learner.update(*random_batch(4))
    moved = policy.fingerprint()
    assert moved != first
    with snapshot.swapped_into(ModuleWeights(policy.module)):
        assert policy.fingerprint() == first
    assert policy.fingerprint() == moved


def test_nll_on_current_states_is_refused() -> None:
    with pytest.raises(ConfigError, match="on current states the mean gradient of nll is 0"):
        make_algorithm("kl_old", {"states": "current", "estimator": "nll"})
