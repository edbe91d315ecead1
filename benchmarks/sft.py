"""SFT of a tiny policy: time of an update, and what it learns from which demonstrations.

    python benchmarks/sft.py
    python benchmarks/sft.py --learn --cpu_s 720 --domain retail --threads 1

The first table has the tokens per second of ``supervised_update``, packed and padded, and of the
generation of demonstrations in one process. ``--learn`` trains four new policies for the same CPU
time: codes as merged pieces (tokenizer of the embedded policy) or single characters, a fixed set of
demonstrations or fresh ones. It prints the loss on other demonstrations, in nats per
demonstration since tokens differ, and the greedy pass rate on generated test tasks.
"""

import argparse
import statistics
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from grpo_cl.cli.output import table
from grpo_cl.config import TINY, GRPOConfig
from grpo_cl.config.run import deep_update
from grpo_cl.policy.chat.compact import SPLIT_PATTERN, tokenizer_texts, train_tokenizer
from grpo_cl.policy.learner.batching import MicroBatch, collate, micro_batches, sft_samples
from grpo_cl.policy.learner.learner import Learner, supervised_update
from grpo_cl.policy.learner.sft_data import (
    DemonstrationSpec,
    fresh_batches,
    generate_examples,
    shuffled_batches,
    tokenize_examples,
)
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.tiny_model import VOCABULARY, Size, create_tiny_model
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import TokenTrace

MERGED_CODES = r" ?[^\s\dA-Z]+|\d|[A-Z]| |\s"
"""The pattern of the embedded policy's tokenizer."""
BATCH = 16
NUM_FIXED = 1000
NUM_HELD_OUT = 60


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domain", default="retail")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--cpu_s", type=float, default=720.0)
    parser.add_argument("--tasks", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    size = Size(arguments.width, arguments.layers)
    if not arguments.learn:
        print(table(speeds(arguments.domain, size, arguments.repeats)))
        return
    rows: list[Sequence[object]] = [
        ("codes", "demonstrations", "steps", "tokens", "nats per demonstration", "greedy")
    ]
    for codes, pattern in (("merged", MERGED_CODES), ("characters", SPLIT_PATTERN)):
        for kind in ("fixed", "fresh"):
            start = new_policy(arguments.domain, size, pattern)
            found = learn(start, arguments.domain, kind, arguments.cpu_s, arguments.tasks)
            rows.append((codes, kind, *found))
            print(table(rows), flush=True)


def spec(domain: str, model: Path, *, seed: int, num_tasks: int) -> DemonstrationSpec:
    """Demonstrations at difficulty 0 in the tokens of ``model``."""
    named = config(model, domain)
    return DemonstrationSpec(domain, seed, num_tasks, 0.0, is_compact=True, config=named)


def config(model: Path, domain: str, **changes: Any) -> GRPOConfig:
    """The settings of a tiny policy, with room for every demonstration."""
    own: dict[str, Any] = {
        "model_name_or_path": str(model),
        "task_order": (domain,),
        "learning_rate": 3e-3,
        "max_new_tokens": 256,
        "sampling": {"max_context": 3072},
        "log_dir": mkdtemp(),
        **changes,
    }
    return GRPOConfig.model_validate(deep_update(TINY, own))


def new_policy(domain: str, size: Size, pattern: str) -> Path:
    """An untrained policy whose tokenizer is split by ``pattern``."""
    folder = Path(mkdtemp())
    examples = generate_examples(DemonstrationSpec(domain, 0, NUM_FIXED, 0.0, is_compact=True))
    create_tiny_model(examples, folder, seed=0, size=size)
    texts = (text for each in examples for text in tokenizer_texts(each.scene, each.messages))
    train_tokenizer(texts, size=VOCABULARY, pattern=pattern).save_pretrained(folder)
    return folder


def learner_of(settings: GRPOConfig) -> Learner:
    """A learner of the policy on this machine's device."""
    ranks = DistributedContext()
    return Learner(PolicyModel.load(settings, device=ranks.device), settings, ranks)


def traces_of(given: DemonstrationSpec) -> list[TokenTrace]:
    """The demonstrations that fit the context."""
    context = given.config.sampling.max_context or 0
    return [trace for trace in tokenize_examples(given, context=context) if trace is not None]


def speeds(domain: str, size: Size, repeats: int) -> list[Sequence[object]]:
    """The table of tokens per second."""
    model = new_policy(domain, size, SPLIT_PATTERN)
    learner = learner_of(config(model, domain))
    traces_of(spec(domain, model, seed=1, num_tasks=2))  # loads the database
    started = time.process_time()
    traces = traces_of(spec(domain, model, seed=2, num_tasks=BATCH))
    generation_s = time.process_time() - started
    samples = sft_samples(traces)
    budget, device = learner.config.optimizer.micro_batch_tokens, learner.policy.device
    packed = [collate(part, device) for part in micro_batches(samples, budget)]
    padded = [batch._replace(layout=None) for batch in packed]
    tokens = sum(len(trace.ids) for trace in traces)
    rows: list[Sequence[object]] = [("what", "seconds", "tokens per second")]
    for name, batches in (("padded", padded), ("packed", packed)):
        seconds = statistics.median(differentiate(learner.policy, batches) for _ in range(repeats))
        rows.append((name, f"{seconds:.2f}", f"{tokens / seconds:.0f}"))
    update = statistics.median(update_s(learner, traces) for _ in range(repeats))
    rows.append(("update, packed", f"{update:.2f}", f"{tokens / update:.0f}"))
    rows.append(("generation", f"{generation_s:.2f}", f"{tokens / generation_s:.0f}"))
    return rows


def differentiate(policy: PolicyModel, batches: Sequence[MicroBatch]) -> float:
    """CPU seconds of forward and backward passes."""
    started = time.process_time()
    policy.module.zero_grad()
    for batch in batches:
        scores = policy.logprobs(
            batch.ids_BT, batch.attention_BT, mask_BT=batch.mask_BT, layout=batch.layout
        )
        (scores.logprobs_BT * batch.weights_B[:, None]).sum().backward()
    return time.process_time() - started


def update_s(learner: Learner, traces: Sequence[TokenTrace]) -> float:
    """CPU seconds of one update."""
    started = time.process_time()
    supervised_update(learner, traces)
    return time.process_time() - started


def learn(
    start: Path, domain: str, kind: str, cpu_s: float, num_tasks: int
) -> tuple[int, int, str, str]:
    """Train for ``cpu_s`` seconds of CPU time and measure."""
    probe = learner_of(config(start, domain))
    sample = traces_of(spec(domain, start, seed=0, num_tasks=BATCH))
    steps = round(cpu_s / statistics.median(update_s(probe, sample) for _ in range(5)))
    schedule = {"warmup_steps": 50, "decay_steps": steps, "weight_decay": 0.01}
    learner = learner_of(config(start, domain, optimizer=schedule))
    batches, tokens = batches_of(kind, spec(domain, start, seed=0, num_tasks=NUM_FIXED)), 0
    for _ in range(steps):
        batch = next(batches)
        tokens += sum(len(trace.ids) for trace in batch)
        supervised_update(learner, batch)
    batches.close()
    nats = held_out_nats(learner.policy, spec(domain, start, seed=900, num_tasks=NUM_HELD_OUT))
    return steps, tokens, f"{nats:.2f}", f"{pass_rate(learner.policy, domain, num_tasks):.2f}"


def batches_of(kind: str, given: DemonstrationSpec) -> Generator[list[TokenTrace]]:
    """Batches of one fixed set, or fresh ones."""
    if kind == "fixed":
        return shuffled_batches(traces_of(given), size=BATCH, seed=0)
    context = given.config.sampling.max_context or 0
    return fresh_batches([given], size=BATCH, start=0, workers=1, context=context)


@torch.no_grad()
def held_out_nats(policy: PolicyModel, given: DemonstrationSpec) -> float:
    """Mean negative log-likelihood of the replies of demonstrations that were not trained on."""
    total, traces = 0.0, traces_of(given)
    for trace in traces:
        batch = collate(sft_samples([trace]), policy.device)
        scores = policy.logprobs(
            batch.ids_BT, batch.attention_BT, mask_BT=batch.mask_BT, layout=batch.layout
        )
        total -= float(scores.logprobs_BT[batch.mask_BT].sum())
    return total / len(traces)


def pass_rate(policy: PolicyModel, domain: str, num_tasks: int) -> float:
    """The greedy pass rate on generated test tasks."""
    folder = Path(mkdtemp())
    policy.save(folder)
    settings = config(folder, domain, evaluation={"generated": num_tasks, "trials": 1})
    return GRPOTrainer(settings).evaluate_task(domain).mean


if __name__ == "__main__":
    main()
