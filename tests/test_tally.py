import torch

from grpo_cl.policy.loss import policy_loss
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.tally import Tally, added
from loss_batches import options, random_batch

ALONE = Ranks(device=torch.device("cpu"))


def test_scalars_are_added_in_double_precision():
    # Of 1 and 2**-30 together float32 keeps only the 1.
    assert added([torch.tensor(1.0), torch.tensor(2.0**-30)]) == 1 + 2**-30
    assert added([]) == 0


def test_without_a_pass_there_are_no_means():
    assert Tally().summary(ALONE) == {}


def test_means_are_taken_over_the_tokens_of_all_passes():
    tally = Tally()
    batches = [random_batch(seed, kind="dapo") for seed in (1, 2)]
    results = [policy_loss(batch, options("dapo"), 0.0) for batch in batches]
    for entropy, batch, result in zip((1.0, 4.0), batches, results, strict=True):
        tally.add(result, torch.full(batch.mask_BT.shape, entropy), batch.mask_BT)
    found = tally.summary(ALONE)
    one, other = (result.metrics for result in results)
    tokens = one.tokens + other.tokens
    assert found["entropy"] == (one.tokens + 4 * other.tokens) / tokens
    assert found["mismatch_kl"] == (one.mismatch_kl + other.mismatch_kl) / tokens
    assert found["ratio_max"] == max(one.ratio_max, other.ratio_max)
