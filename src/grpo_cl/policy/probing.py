"""What a policy thinks of a few given tokens: the yardstick for copies of its weights."""

from collections.abc import Sequence

import torch

from grpo_cl.policy.model import PolicyModel


def token_logprobs(
    model: PolicyModel, ids: Sequence[int], *, temperature: float = 1.0
) -> list[float]:
    """Log-probs of all tokens but the first; of a sharded policy every rank must ask."""
    ids_BT = torch.tensor([list(ids)], device=model.device)
    was_training = model.module.training
    model.module.eval()
    try:
        with torch.no_grad():
            scores = model.logprobs(ids_BT, torch.ones_like(ids_BT), temperature=temperature)
    finally:
        model.module.train(was_training)
    return scores.logprobs_BT[0, 1:].tolist()
