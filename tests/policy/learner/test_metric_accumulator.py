import torch

from grpo_cl.policy.learner.loss import policy_loss
from grpo_cl.policy.learner.metric_accumulator import MetricAccumulator, sum_scalars
from grpo_cl.policy.model.distributed import DistributedContext
from loss_batches import options, random_batch

SINGLE_PROCESS = DistributedContext(device=torch.device("cpu"))


def test_scalars_are_summed_in_double_precision():
    # float32 rounds 1 + 2**-30 to 1.
    assert sum_scalars([torch.tensor(1.0), torch.tensor(2.0**-30)]) == 1 + 2**-30
    assert sum_scalars([]) == 0


def test_summary_without_micro_batches_is_empty():
    assert MetricAccumulator().summary(SINGLE_PROCESS) == {}


def test_means_are_over_the_tokens_of_all_micro_batches():
    accumulator = MetricAccumulator()
    batches = [random_batch(seed, kind="dapo") for seed in (1, 2)]
    results = [policy_loss(batch, options("dapo"), 0.0) for batch in batches]
    for entropy, batch, result in zip((1.0, 4.0), batches, results, strict=True):
        accumulator.add(result.metric_sums, torch.full(batch.mask_BT.shape, entropy), batch.mask_BT)
    summary = accumulator.summary(SINGLE_PROCESS)
    first, second = (result.metrics for result in results)
    tokens = first.tokens + second.tokens
    assert summary["entropy"] == (first.tokens + 4 * second.tokens) / tokens
    assert summary["mismatch_kl"] == (first.mismatch_kl + second.mismatch_kl) / tokens
    assert summary["ratio_max"] == max(first.ratio_max, second.ratio_max)
