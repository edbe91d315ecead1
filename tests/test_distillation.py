from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_cl.algorithms import make_algorithm
from grpo_cl.buffer import Experience
from grpo_cl.errors import ConfigError
from grpo_cl.policy.batching import MicroBatch
from grpo_cl.policy.continual.distillation import (
    Estimator,
    keep_logprobs,
    keep_shares,
    log_shares,
    old_samples,
    share_kl,
    share_loss,
    token_kl_loss,
    token_kl_part,
)
from grpo_cl.policy.continual.memory import Kept, Memory
from grpo_cl.policy.continual.predecessor import Predecessor
from grpo_cl.policy.continual.tensors import load_tensors, save_tensors
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.ranks import Ranks
from grpo_cl.types import TokenTrace
from tiny_learners import VOCABULARY, group, random_batch, random_traces, settings, tiny_policy

POLICY = torch.tensor([0.3, -0.7, 0.1, 0.9], dtype=torch.float64)
EARLIER = torch.tensor([-0.2, 0.4, 1.1, -0.5], dtype=torch.float64)
DRAWN = torch.tensor([0.1, 0.6, 0.8, -0.3], dtype=torch.float64)
"""Logits of three distributions of four tokens; the last is nowhere half as likely as EARLIER."""


def kl(some_V: Tensor, others_V: Tensor) -> Tensor:
    return (some_V.exp() * (some_V - others_V)).sum()


def gradient(function: Any) -> Tensor:
    """Of a function of the policy's log-probs, by its logits."""
    logits_V = POLICY.clone().requires_grad_()
    function(logits_V.log_softmax(-1)).backward()
    assert logits_V.grad is not None
    return logits_V.grad


def every_token(chances_V: Tensor, weights_V: Tensor | None = None) -> MicroBatch:
    """Each token once, as often as a distribution draws it; the earlier policy scored it."""
    ids_BT = torch.arange(4)[:, None]
    return MicroBatch(
        ids_BT=ids_BT,
        attention_BT=torch.ones_like(ids_BT),
        mask_BT=torch.ones_like(ids_BT, dtype=torch.bool),
        sampler_logprobs_BT=EARLIER.log_softmax(-1)[:, None],
        advantages_BT=(torch.ones(4).double() if weights_V is None else weights_V)[:, None],
        weights_B=chances_V,
    )


def expected_gradient(batch: MicroBatch, estimator: Estimator, *, is_old: bool) -> Tensor:
    return gradient(
        lambda policy_V: token_kl_part(policy_V[:, None], batch, estimator, is_old=is_old).loss
    )


@pytest.mark.parametrize("estimator", ["k3", "nll"])
def test_on_tokens_of_the_earlier_policy_the_gradient_is_that_of_kl_from_it(
    estimator: Estimator,
) -> None:
    earlier_V = EARLIER.log_softmax(-1)
    found = expected_gradient(every_token(earlier_V.exp()), estimator, is_old=True)
    torch.testing.assert_close(found, gradient(lambda policy_V: kl(earlier_V, policy_V)))


@pytest.mark.parametrize("estimator", ["k3", "nll"])
def test_weights_make_up_for_the_policy_that_drew_the_tokens(estimator: Estimator) -> None:
    earlier_V, drawn_V = EARLIER.log_softmax(-1), DRAWN.log_softmax(-1)
    batch = every_token(drawn_V.exp(), (earlier_V - drawn_V).exp())
    found = expected_gradient(batch, estimator, is_old=True)
    torch.testing.assert_close(found, gradient(lambda policy_V: kl(earlier_V, policy_V)))


def test_on_tokens_of_the_policy_k3_and_k2_have_the_gradients_of_the_two_kls() -> None:
    earlier_V, policy_V = EARLIER.log_softmax(-1), POLICY.log_softmax(-1)
    batch = every_token(policy_V.exp())
    forward = expected_gradient(batch, "k3", is_old=False)
    torch.testing.assert_close(forward, gradient(lambda now_V: kl(earlier_V, now_V)))
    reverse = expected_gradient(batch, "k2", is_old=False)
    torch.testing.assert_close(reverse, gradient(lambda now_V: kl(now_V, earlier_V)))
    nothing = expected_gradient(batch, "nll", is_old=False)
    torch.testing.assert_close(nothing, torch.zeros_like(nothing))


def test_the_divergence_that_is_told_is_the_kl_whatever_is_learned_from() -> None:
    earlier_V, policy_V = EARLIER.log_softmax(-1), POLICY.log_softmax(-1)
    for estimator in ("k2", "k3", "nll"):
        batch = every_token(earlier_V.exp())
        weighed = batch._replace(advantages_BT=earlier_V.exp()[:, None], weights_B=torch.ones(4))
        part = token_kl_part(policy_V[:, None], weighed, estimator, is_old=True)
        assert part.sums.tolist() == pytest.approx([4, kl(earlier_V, policy_V).item()])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_a_policy_that_did_not_move_is_not_pulled(estimator: Estimator) -> None:
    batch = every_token(torch.full((4,), 0.25).double())
    logprobs_BT = EARLIER.log_softmax(-1)[:, None].requires_grad_()
    part = token_kl_part(logprobs_BT, batch, estimator, is_old=True)
    part.loss.backward()
    assert part.loss.item() == 0.0
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad.abs().max() == 0.0


def test_all_tokens_kept_give_the_exact_kl() -> None:
    order = torch.tensor([[2, 0, 3, 1]])
    kept_NK = log_shares(EARLIER[None], order)
    assert kept_NK.shape == (1, 4)
    found = gradient(lambda policy_V: share_kl(kept_NK, log_shares(policy_V[None], order)).sum())
    earlier_V = EARLIER.log_softmax(-1)
    torch.testing.assert_close(found, gradient(lambda policy_V: kl(earlier_V, policy_V)))
    value = share_kl(kept_NK, log_shares(POLICY[None], order))
    torch.testing.assert_close(value[0], kl(earlier_V, POLICY.log_softmax(-1)))


def test_the_tokens_that_are_not_kept_are_one_outcome() -> None:
    order = torch.tensor([[2, 1]])
    kept_NK, policy_NK = log_shares(EARLIER[None], order), log_shares(POLICY[None], order)
    torch.testing.assert_close(kept_NK.exp().sum(-1), torch.ones(1).double())
    p, q = EARLIER.softmax(-1), POLICY.softmax(-1)
    rest_p, rest_q = p[0] + p[3], q[0] + q[3]
    by_hand = p[2] * (p[2] / q[2]).log() + p[1] * (p[1] / q[1]).log()
    by_hand = by_hand + rest_p * (rest_p / rest_q).log()
    torch.testing.assert_close(share_kl(kept_NK, policy_NK)[0], by_hand)
    assert by_hand < kl(EARLIER.log_softmax(-1), POLICY.log_softmax(-1))
    assert share_kl(kept_NK, kept_NK).item() == 0.0


def test_the_gradient_of_kept_shares_follows_differences() -> None:
    order = torch.tensor([[2, 1]])
    kept_NK = log_shares(EARLIER[None], order)

    def value(logits_V: Tensor) -> Tensor:
        return share_kl(kept_NK, log_shares(logits_V[None], order)).sum()

    assert torch.autograd.gradcheck(value, POLICY.clone().requires_grad_())


def test_a_share_of_zero_has_no_part_in_the_kl() -> None:
    never = torch.tensor([[0.0, 0.5, -torch.inf]])
    order = torch.tensor([[0, 1, 2]])
    logits_NV = never.clone().requires_grad_()
    found = share_kl(log_shares(never, order), log_shares(logits_NV, order)).sum()
    found.backward()
    assert found.item() == 0.0


def make_learner(**changes: Any) -> Learner:
    config = settings(**changes)
    return Learner(tiny_policy(config), config, Ranks())


def records(traces: Sequence[TokenTrace]) -> list[tuple[Experience, TokenTrace]]:
    trajectories = group(*traces).trajectories
    return [
        (Experience(trajectory=trajectory, reward=place % 2, step=0), trace)
        for place, (trajectory, trace) in enumerate(zip(trajectories, traces, strict=True))
    ]


def test_kept_tokens_diverge_only_once_the_policy_moves() -> None:
    learner = make_learner(temperature=0.8)
    samples = old_samples(keep_logprobs(learner, records(random_traces(5))))
    before = token_kl_loss(learner, samples, "k3", is_old=True)
    assert before.sums["tokens"] == sum(sum(sample.trace.mask) for sample in samples)
    assert before.loss.item() == pytest.approx(0, abs=1e-9)
    learner.update(*random_batch(4, seed=3))
    assert token_kl_loss(learner, samples, "k3", is_old=True).loss.item() > 1e-6


def test_tokens_the_end_of_the_stage_likes_more_weigh_more_up_to_two() -> None:
    learner = make_learner()
    (kept,) = keep_logprobs(learner, records(random_traces(1)))
    later = kept.columns["logprobs"].tolist()
    ratios = [0.5, 1.5, 7.0, 1.0, 0.01, 1e9]
    gaps = [ratios[place % 6] for place in range(len(later))]
    drawn = tuple(
        value - torch.tensor(gap, dtype=torch.float64).log().item()
        for value, gap in zip(later, gaps, strict=True)
    )
    trace = kept.trace.model_copy(update={"logprobs": drawn})
    (sample,) = old_samples([kept._replace(trace=trace)])
    assert [w for w, masked in zip(sample.advantages, trace.mask, strict=True) if masked] == (
        pytest.approx([min(gap, 2.0) for gap in gaps])
    )
    assert not any(w for w, masked in zip(sample.advantages, trace.mask, strict=True) if not masked)


@pytest.mark.parametrize("top", [3, VOCABULARY])
def test_kept_distributions_diverge_only_once_the_policy_moves(top: int) -> None:
    learner = make_learner(optimizer={"micro_batch_tokens": 40})
    kept = keep_shares(learner, records(random_traces(5)), top)
    assert {one.columns["shares"].shape[1] for one in kept} == {min(top + 1, VOCABULARY)}
    before = share_loss(learner, kept, alpha=1.0, beta=0.0)
    assert before.loss.item() == pytest.approx(0, abs=1e-6)
    learner.update(*random_batch(4, seed=3))
    after = share_loss(learner, kept, alpha=1.0, beta=0.0)
    assert after.loss.item() > 1e-6
    assert after.loss.item() == pytest.approx(after.sums["kl"] / after.sums["tokens"], rel=1e-4)


def test_only_successes_are_repeated() -> None:
    learner = make_learner()
    kept = keep_shares(learner, records(random_traces(4)), 3)
    found = share_loss(learner, kept, alpha=0.0, beta=0.5)
    samples = old_samples(keep_logprobs(learner, records(random_traces(4))))
    successes = [sample for place, sample in enumerate(samples) if place % 2]
    nll = -sum(sum(sample.trace.logprobs) for sample in successes)
    assert found.sums["nll"] == pytest.approx(nll, rel=1e-4)
    assert found.loss.item() == pytest.approx(0.5 * nll / found.sums["tokens"], rel=1e-4)


def memory() -> Memory:
    learner = make_learner()
    filled = Memory()
    filled.kept["a/b"] = keep_shares(learner, records(random_traces(12)), 3)
    filled.kept["c"] = keep_logprobs(learner, records(random_traces(3, seed=1)))
    return filled


def plain(kept: Sequence[Kept]) -> list[Any]:
    return [
        (
            one.trace.ids,
            one.trace.mask,
            one.trace.logprobs,
            one.reward,
            {name: (column.dtype, column.tolist()) for name, column in one.columns.items()},
        )
        for one in kept
    ]


def test_a_memory_comes_back_bit_for_bit_and_draws_the_same(tmp_path: Path) -> None:
    filled, loaded = memory(), Memory()
    save_tensors(tmp_path, filled.tensors(), is_main=True)
    loaded.load(load_tensors(tmp_path), ("c", "a/b", "d"))
    for domain, kept in filled.kept.items():
        assert plain(loaded.kept[domain]) == plain(kept)
    drawn = [one.draw(5, ("a/b", "c"), Random(7)) for one in (filled, loaded)]
    assert plain(drawn[0]) == plain(drawn[1])


def test_a_memory_is_drawn_from_evenly_and_only_where_it_is_asked() -> None:
    filled = memory()
    shared = {one.trace.ids for one in filled.kept["c"]}
    drawn = filled.draw(4, ("a/b", "c"), Random(0))
    assert len(drawn) == 4
    assert sum(one.trace.ids in shared for one in drawn) == 2
    assert len(filled.draw(99, ("c",), Random(0))) == 3
    assert filled.draw(4, ("elsewhere",), Random(0)) == []


def test_a_predecessor_takes_the_policys_place_and_leaves_it_unchanged() -> None:
    learner = make_learner()
    policy = learner.policy
    first = policy.fingerprint()
    predecessor = Predecessor.of(policy)
    learner.update(*random_batch(4))
    moved = policy.fingerprint()
    assert moved != first
    with predecessor.in_place_of(policy):
        assert policy.fingerprint() == first
    assert policy.fingerprint() == moved


def test_nll_on_todays_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="gradient of nll on today's tokens is 0"):
        make_algorithm("kl_old", {"states": "current", "estimator": "nll"})
