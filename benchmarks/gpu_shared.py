"""Updates on episodes with shared prefixes: packed, with each prefix once, or padded."""

from random import Random
from tempfile import mkdtemp

import torch

from gpu_work import Report, Work, now, one_reply, peak_gib
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.learner.batching import collate, micro_batches, sft_samples
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.types import TokenTrace
from updates import differentiate, padded_batches


def shared(work: Work, report: Report, *, packed: bool) -> None:
    """Time the gradient of episodes of random tokens, in micro batches of equal token counts.

    ``difference`` is its distance to the gradient of padded episodes, relative to that one's norm.
    """
    config = GRPOConfig.model_validate(
        {
            "model_name_or_path": work.model,
            "log_dir": mkdtemp(),
            "kl_coef": 0.0,
            "gradient_checkpointing": bool(work.checkpointing),
        }
    )
    policy = PolicyModel.load(config)
    samples = sft_samples(_traces(work, len(policy.tokenizer)))
    padded_passes, packed_passes = (
        [collate(part, policy.device) for part in divide(samples, work.micro_tokens)]
        for divide in (padded_batches, micro_batches)
    )
    expected = differentiate(policy, padded_passes, packed=False).float()
    peak_gib()  # starts a new peak
    for _ in range(work.steps):
        started = now()
        passes = packed_passes if packed else padded_passes
        gradient = differentiate(policy, passes, packed=packed)
        report(
            {
                "step": now() - started,
                "tokens": float(sum(sample.length for sample in samples)),
                "peak": peak_gib(),
                "difference": float((expected - gradient.float()).norm() / expected.norm()),
            }
        )


def _traces(work: Work, vocabulary: int) -> list[TokenTrace]:
    rng = Random(0)
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=generator).tolist()

    traces: list[TokenTrace] = []
    for _ in range(work.prompts):
        prefix = draw(work.prompt_tokens)
        for _ in range(work.samples):
            reply = draw(rng.randint(work.reply_tokens * 2 // 3, work.reply_tokens * 4 // 3))
            traces.append(one_reply(prefix, reply, [0.0] * len(reply)))
    return traces
