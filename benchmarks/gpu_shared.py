"""Updates on episodes with shared prefixes: packed, with each prefix once, against padded."""

from collections.abc import Sequence
from random import Random
from tempfile import mkdtemp

import torch
from torch import Tensor

from gpu_work import Report, Work, now, one_reply, peak_gib
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.learner.batching import MicroBatch, collate, micro_batches, sft_samples
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.types import TokenTrace
from updates import differentiate, padded_batches


def shared(work: Work, report: Report) -> None:
    """Time both on the same episodes of random tokens, in micro batches of equal token counts."""
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
    parts = {
        "plain": padded_batches(samples, work.micro_tokens),
        "packed": micro_batches(samples, work.micro_tokens),
    }
    batches = {
        way: [collate(part, policy.device) for part in passes] for way, passes in parts.items()
    }
    tokens = sum(sample.length for sample in samples)
    for _ in range(work.steps):
        seconds: dict[str, float] = {}
        peaks: dict[str, float] = {}
        gradients: dict[str, Tensor] = {}
        for way, passes in batches.items():
            seconds[way], gradients[way] = _timed(policy, passes, packed=way == "packed")
            peaks[way] = peak_gib()
        plain, packed = gradients["plain"].float(), gradients["packed"].float()
        report(
            {
                "step": sum(seconds.values()),
                "tokens": float(tokens),
                **{f"{way}_s": spent for way, spent in seconds.items()},
                **{f"{way}_tokens_per_s": tokens / spent for way, spent in seconds.items()},
                "ratio": seconds["plain"] / seconds["packed"],
                "difference": float((plain - packed).norm() / plain.norm()),
                **{f"{way}_peak": peak for way, peak in peaks.items()},
            }
        )


def _timed(
    policy: PolicyModel, passes: Sequence[MicroBatch], *, packed: bool
) -> tuple[float, Tensor]:
    started = now()
    gradient = differentiate(policy, passes, packed=packed)
    return now() - started, gradient


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
