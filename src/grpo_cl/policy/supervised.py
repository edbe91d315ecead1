"""Imitation: raise the probability of given replies. What ``grpo-cl sft`` does."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from grpo_cl.policy.batching import MicroBatch, imitation_samples
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.optimizer import summary
from grpo_cl.types import TokenTrace


def supervised_update(learner: Learner, traces: Sequence[TokenTrace]) -> dict[str, float]:
    """One step on the cross-entropy of the masked tokens, a mean over those of all traces.

    Every rank gives the same traces. The log-probs of the traces are not used.
    """
    samples = imitation_samples(traces)
    with learner.learning(samples) as (batches, numbers):
        made = learner.descend(_cross_entropies(learner.policy, batches), samples)
    return {**summary([made] if made else []), **numbers}


def _cross_entropies(policy: PolicyModel, batches: Sequence[MicroBatch]) -> Iterator[Tensor]:
    for batch in batches:
        scores = policy.logprobs(
            batch.ids_BT, batch.attention_BT, mask_BT=batch.mask_BT, layout=batch.layout
        )
        weights_BT = batch.mask_BT * batch.weights_B[:, None]
        yield -(scores.logprobs_BT * weights_BT).sum()
