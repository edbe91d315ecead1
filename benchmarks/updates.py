"""What an update costs: packed rows with shared beginnings, against padded batches of episodes.

    python benchmarks/updates.py

The embedded policy plays eight tasks of a domain eight times; then the log-probs of what it wrote
are computed and differentiated, in turn both ways in this process, in passes of as many tokens. The
figures are medians; the last column is the largest difference of a gradient, against its norm.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from tempfile import mkdtemp

import torch
from torch import Tensor

from grpo_cl.cli.world import table
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.batching import MicroBatch, Sample, collate, imitation_samples, micro_batches
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rollout import run_episodes
from grpo_cl.tasks import TaskDataLoader


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
    samples = imitation_samples([episode.tokens for episode in episodes if episode.tokens])
    budget, device = config.optimizer.micro_batch_tokens, runtime.model.device
    packed = [collate(part, device) for part in micro_batches(samples, budget)]
    padded = [collate(part, device) for part in neighbours(samples, budget)]
    times: dict[str, list[float]] = {"padded": [], "packed": []}
    gradients: dict[str, Tensor] = {}
    for _ in range(repeats):
        for name, batches in (("padded", padded), ("packed", packed)):
            started = time.perf_counter()
            gradients[name] = differentiate(runtime.model, batches, packed=name == "packed")
            times[name].append(time.perf_counter() - started)
    slow, fast = (statistics.median(times[name]) for name in ("padded", "packed"))
    apart = (gradients["padded"] - gradients["packed"]).abs().max() / gradients["padded"].norm()
    tokens = sum(sample.length for sample in samples)
    computed = sum(batch.layout.ids_1N.numel() for batch in packed if batch.layout)
    cells = (f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.1f}", f"{float(apart):.0e}")
    return tokens, computed, *cells


def neighbours(samples: Sequence[Sample], budget: int) -> list[list[Sample]]:
    """Passes of samples of similar length, at most ``budget`` tokens with padding."""
    passes: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        if passes and passes[-1][0].length * (len(passes[-1]) + 1) <= budget:
            passes[-1].append(sample)
        else:
            passes.append([sample])
    return passes


def differentiate(policy: PolicyModel, batches: Sequence[MicroBatch], *, packed: bool) -> Tensor:
    """The gradient of the mean log-prob of what was written."""
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
