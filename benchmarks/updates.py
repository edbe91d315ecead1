"""Cost of an update: packed rows with shared prefixes against padded batches.

    python benchmarks/updates.py

The embedded policy plays eight tasks of a domain eight times; then the log-probs of its replies are
computed and differentiated, alternating between both layouts, in micro-batches of the same token
budget. The figures are medians; the last column is the largest difference of the gradients,
relative to their norm.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from tempfile import mkdtemp

import torch
from torch import Tensor

from grpo_cl.cli.output import table
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.policy.learner.batching import (
    MicroBatch,
    TrainingSample,
    collate,
    micro_batches,
    sft_samples,
)
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rollout import run_episodes


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    config = GRPOConfig.model_validate({"model_name_or_path": "tiny", "log_dir": mkdtemp()})
    runtime, tasks = PolicyRuntime(config), TaskDataLoader(config)
    rows: list[Sequence[object]] = [
        ("domain", "tokens", "computed", "padded s", "packed s", "ratio", "difference")
    ]
    for domain in config.task_order:
        rows.append((domain, *compare(domain, runtime, tasks, arguments.repeats)))
    print(table(rows))


def compare(
    domain: str, runtime: PolicyRuntime, tasks: TaskDataLoader, repeats: int
) -> tuple[object, ...]:
    """One row of the table."""
    config = runtime.config
    played = [task for task in tasks.next_batch(domain, 8) for _ in range(8)]
    actor = runtime.actor(temperature=config.temperature)
    seeds = list(range(len(played)))
    episodes = run_episodes(actor, tasks.domains, played, config.rollout, seeds=seeds)
    samples = sft_samples([episode.tokens for episode in episodes if episode.tokens])
    budget, device = config.optimizer.micro_batch_tokens, runtime.model.device
    packed = [collate(part, device) for part in micro_batches(samples, budget)]
    padded = [collate(part, device) for part in padded_batches(samples, budget)]
    times: dict[str, list[float]] = {"padded": [], "packed": []}
    gradients: dict[str, Tensor] = {}
    for _ in range(repeats):
        for name, batches in (("padded", padded), ("packed", packed)):
            started = time.perf_counter()
            gradients[name] = differentiate(runtime.model, batches, packed=name == "packed")
            times[name].append(time.perf_counter() - started)
    slow, fast = (statistics.median(times[name]) for name in ("padded", "packed"))
    difference = (gradients["padded"] - gradients["packed"]).abs().max() / gradients[
        "padded"
    ].norm()
    tokens = sum(sample.length for sample in samples)
    computed = sum(batch.layout.ids_1N.numel() for batch in packed if batch.layout)
    cells = (f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.1f}", f"{float(difference):.0e}")
    return tokens, computed, *cells


def padded_batches(samples: Sequence[TrainingSample], budget: int) -> list[list[TrainingSample]]:
    """Batches of samples of similar length, at most ``budget`` tokens with padding."""
    batches: list[list[TrainingSample]] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        if batches and batches[-1][0].length * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def differentiate(policy: PolicyModel, batches: Sequence[MicroBatch], *, packed: bool) -> Tensor:
    """The gradient of the mean log-prob of the replies."""
    policy.module.zero_grad()
    for batch in batches:
        layout = batch.layout if packed else None
        scores = policy.logprobs(
            batch.ids_BT, batch.attention_BT, mask_BT=batch.mask_BT, layout=layout
        )
        (scores.logprobs_BT * batch.weights_B[:, None]).sum().backward()
    gradients = [weight.grad for _, weight in policy.trainable() if weight.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


if __name__ == "__main__":
    main()
