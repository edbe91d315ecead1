"""The GRPO loss of single completions, from log-probs that any PyTorch policy computes.

Shapes: B completions, T tokens of the longest one.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.learner.loss import LossBatch, LossResult, policy_loss, sequence_weights


class CompletionSample(NamedTuple):
    """One completion of a training batch."""

    logprobs_T: Tensor
    """Of its tokens under the current weights, with a gradient."""
    recorded_logprobs: Sequence[float]
    """Of its tokens when they were sampled."""
    advantage: float


def completion_loss(samples: Sequence[CompletionSample], config: GRPOConfig) -> LossResult:
    """The clipped loss of ``config.loss`` over a batch; ``kind`` weighs tokens and completions."""
    for sample in samples:
        _require_logprobs(sample)
    lengths = [len(sample.recorded_logprobs) for sample in samples]
    weights = sequence_weights(lengths, config.loss.kind, max_tokens=config.max_new_tokens)
    logprobs_BT = pad_sequence([sample.logprobs_T for sample in samples], batch_first=True)
    recorded = [logprobs_BT.new_tensor(sample.recorded_logprobs) for sample in samples]
    recorded_BT = pad_sequence(recorded, batch_first=True)
    lengths_B = torch.tensor(lengths, device=logprobs_BT.device)
    mask_BT = torch.arange(max(lengths), device=logprobs_BT.device) < lengths_B[:, None]
    advantages_B = logprobs_BT.new_tensor([sample.advantage for sample in samples])
    batch = LossBatch(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=recorded_BT,
        sampler_logprobs_BT=recorded_BT,
        reference_logprobs_BT=None,
        advantages_BT=advantages_B[:, None].expand_as(logprobs_BT),
        mask_BT=mask_BT,
        weights_B=logprobs_BT.new_tensor(weights),
    )
    return policy_loss(batch, config.loss, kl_coef=0.0)


def zero_loss() -> Tensor:
    """The loss of a batch without samples."""
    return torch.zeros(())


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Random numbers of PyTorch, such as dropout masks, from ``seed``; restored on exit."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _require_logprobs(sample: CompletionSample) -> None:
    expected = (len(sample.recorded_logprobs),)
    if tuple(sample.logprobs_T.shape) != expected:
        raise ConfigError(
            f"get_log_prob returned log-probs of shape {tuple(sample.logprobs_T.shape)} for a "
            f"completion of {expected[0]} tokens; return one log-prob per token"
        )
    if not sample.logprobs_T.requires_grad:
        raise ConfigError(
            "get_log_prob returned log-probs without a gradient, from which nothing is learned; "
            "compute them from the weights of the policy, outside of torch.no_grad"
        )
