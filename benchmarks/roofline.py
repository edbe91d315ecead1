"""What the device allows for each phase of a step, and the share of it that is reached.

    PYTHONPATH=src python benchmarks/roofline.py
    PYTHONPATH=src python benchmarks/roofline.py --device cpu --dry

Each case is a model of a known shape with random weights and groups of episodes with the same
prompt. The limit of a phase is its FLOPs over the measured throughput of matrix products, or its
bytes over the measured bandwidth, whichever takes longer. Counted are products with weights,
attention over the visible tokens (a group's prompt once), weights and KV cache read per pass, and
the optimizer's reads and writes; activations are not counted, so the limit is a lower bound.
Symbols: n tokens, s scored tokens, L layers, P weights of all layers, V vocabulary size, D hidden
size, H and J widths of all queries and keys, e bytes per weight.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import torch

from gpu_memory import Case, build, random_group
from gpu_work import free
from grpo_cl.cli.output import table
from grpo_cl.config import RolloutConfig
from grpo_cl.envs import load_domain
from grpo_cl.gpu_memory import ModelShape
from grpo_cl.gpu_memory.constants import GRAPH_STEPS
from grpo_cl.policy.inference.backends import transformers_sampler_for
from grpo_cl.policy.inference.sampler import GenerationRequest
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.learner.batching import collate, micro_batches, sft_samples
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.types import TrajectoryGroup

CASES = (
    Case("smollm2-135m", tasks=16, slots=128, graphs=True),
    Case("qwen2.5-1.5b", tasks=16, slots=128, graphs=True, is_checkpointed=True),
    Case("qwen2.5-7b", rank=16, tasks=16, slots=128, graphs=True, is_checkpointed=True),
    Case(
        "qwen2.5-7b",
        tasks=4,
        slots=32,
        is_checkpointed=True,
        kl_coef=0.0,
        graphs=True,
        micro_batch_tokens=8192,
    ),
)
DRY = (
    Case("dry", dtype="float32", prompt=64, reply=16, tasks=2, group=4),
    Case("dry", dtype="float32", rank=4, prompt=64, reply=16, tasks=2, group=4),
)
TOOL_DOMAIN = "telecom"


class Device(NamedTuple):
    """Measured limits of a device."""

    flops: float
    """Of matrix products in the model's dtype, per second."""
    bandwidth: float
    """Bytes read and written per second."""


class Work(NamedTuple):
    """What a phase must compute and move."""

    flops: float
    bytes: float

    def limit_s(self, device: Device) -> float:
        """The least time on a device."""
        return max(self.flops / device.flops, self.bytes / device.bandwidth)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has TEXT")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="tiny models, for a CPU")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        print("No GPU to measure; use --device cpu --dry.")
        return
    target = torch.device(arguments.device)
    rows: list[Sequence[object]] = [("case", "phase", "GFLOP", "GB", "limit s", "measured s", "%")]
    for case in DRY if arguments.dry else CASES:
        if arguments.only in case.name:
            device = measure_device(target, case.dtype)
            print(
                f"{case.name}: {device.flops / 1e12:.3g} TFLOP/s, "
                f"{device.bandwidth / 1e9:.4g} GB/s",
                flush=True,
            )
            for row in case_rows(case, target, device, arguments.repeats):
                rows.append(row)
                print("\t".join(map(str, row)), flush=True)  # kept if a later phase fails
            free()
    print(table(rows))


def case_rows(
    case: Case, target: torch.device, device: Device, repeats: int
) -> Iterator[Sequence[object]]:
    """One line per phase, as soon as it is measured."""
    works = phases(case)
    for phase, seconds in measure(case, target, repeats):
        yield case.name, phase, *phase_cells(works.get(phase), seconds, device)


def phase_cells(work: Work | None, seconds: float, device: Device) -> Sequence[str]:
    """Work, limit, seconds and share of a phase; its time is "–" where noise exceeds it."""
    limit = work.limit_s(device) if work else seconds / (os.cpu_count() or 1)
    counts = (f"{work.flops / 1e9:.4g}", f"{work.bytes / 1e9:.3g}") if work else ("", "")
    measured = (f"{seconds:.3g}", f"{limit / seconds:.0%}") if seconds > 0 else ("–", "–")
    return *counts, f"{limit:.3g}", *measured


def phases(case: Case) -> dict[str, Work]:
    """Work of the phases of a step."""
    workload, shape = case.workload, case.workload.shape
    item, layers = workload.dtype_bytes, shape.num_hidden_layers * shape.layer_parameters
    head = shape.vocab_size * shape.hidden_size
    episodes, weights = case.tasks * case.group, item * (layers + head)
    tokens, scored = case.tasks * (case.prompt + case.group * case.reply), episodes * case.reply
    prompts = case.tasks * attention_flops(shape, 0, case.prompt)
    forward = Work(
        2 * layers * tokens
        + 2 * head * scored
        + prompts
        + episodes * attention_flops(shape, case.prompt, case.reply),
        weights,
    )
    prefill = 2 * layers * case.tasks * case.prompt + 2 * head * case.tasks + prompts
    work = {
        "prefill": Work(prefill, weights),
        "decode": decode_work(case, weights),
        "update": update_work(case, forward, tokens),
    }
    return work | ({"reference": forward} if case.kl_coef else {})


def attention_flops(shape: ModelShape, before: int, new: int) -> int:
    """Scores and weighted values of ``new`` tokens after ``before``: 4H for each visible token."""
    visible = before * new + new * (new + 1) // 2
    return 4 * shape.num_hidden_layers * shape.query_width * visible


def decode_work(case: Case, weights: int) -> Work:
    """All decoding steps; a step of all slots reads the weights, prompts once, and replies.

    The first token of a reply could be sampled by the prefill.
    """
    workload, shape = case.workload, case.workload.shape
    rows = min(case.tasks * case.group, case.slots)
    waves = -(-case.tasks * case.group // rows)
    per_token = 2 * shape.num_hidden_layers * shape.key_width * workload.dtype_bytes
    steps = case.reply - 1
    cached = steps * rows * case.prompt // case.group + rows * steps * (steps + 1) // 2
    layers = shape.num_hidden_layers * shape.layer_parameters
    products = 2 * rows * steps * (layers + shape.vocab_size * shape.hidden_size)
    flops = products + rows * attention_flops(shape, case.prompt, steps)
    return Work(waves * flops, waves * (steps * weights + per_token * cached))


def update_work(case: Case, forward: Work, tokens: int) -> Work:
    """Forward and backward passes, and the optimizer step.

    A backward pass has the gradients of inputs and, unless LoRA, of weights, each as many FLOPs as
    the forward pass. AdamW reads gradient, moments and weight and writes the last two, in float32.
    """
    workload = case.workload
    trained, has_lora = workload.trainable_parameters, workload.has_lora
    passes = (2 if has_lora else 3) + case.is_checkpointed
    adapters = 6 * tokens * trained if has_lora else 0
    copies = 0 if has_lora or workload.dtype_bytes == 4 else workload.dtype_bytes
    optimizer = (4 * 7 + copies) * trained
    micro_batches = len(workload.micro_batches)
    reads = passes * forward.bytes * micro_batches
    return Work(passes * forward.flops + adapters, reads + optimizer)


def measure_device(target: torch.device, dtype: str) -> Device:
    """Throughput of a large matrix product and of a copy."""
    is_gpu = target.type == "cuda"
    size, numbers = (8192, 2**30) if is_gpu else (1024, 2**26)
    kind: torch.dtype = getattr(torch, dtype)
    left = torch.randn(size, size, device=target).to(kind)
    for _ in range(50 if is_gpu else 0):
        torch.matmul(left, left)  # an idle GPU runs at a lower clock
    source = torch.zeros(numbers, dtype=torch.uint8, device=target)
    copy = torch.empty_like(source)
    product_s = timed(lambda: torch.matmul(left, left), target, 7)
    copy_s = timed(lambda: copy.copy_(source), target, 7)
    return Device(2 * size**3 / product_s, 2 * numbers / copy_s)


def timed(run: Callable[[], object], target: torch.device, repeats: int) -> float:
    """Median seconds of a call, after one that is not counted."""
    seconds: list[float] = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        run()
        if target.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def measure(case: Case, target: torch.device, repeats: int) -> Iterator[tuple[str, float]]:
    """The phases and their seconds."""
    rng, config = Random(0), case.config
    policy = build(case, target)
    groups = [random_group(case, rng) for _ in range(case.tasks)]
    advantages = [[rng.uniform(-1, 1) for _ in range(case.group)] for _ in groups]
    sampler = transformers_sampler_for(policy, config)
    # Graphs decode several tokens, so the shortest reply is a prefill and as many steps.
    counts = (GRAPH_STEPS, case.reply // 2, case.reply)
    shortest_s, half_s, sample_s = (
        timed(partial(sample, case, sampler, groups, count), target, repeats) for count in counts
    )
    step_s = (sample_s - half_s) / (counts[2] - counts[1])
    prefill_s = shortest_s - GRAPH_STEPS * step_s
    print(f"{case.name}: {1000 * step_s:.2f} ms per late decode step", flush=True)
    yield "prefill", prefill_s
    yield "decode", sample_s - max(prefill_s, 0.0)
    del sampler
    free()  # its KV cache and graphs, so that the update of the largest case fits
    if case.kl_coef:
        yield "reference", timed(lambda: score(case, policy, groups), target, repeats)
    # The update is measured alone: reference log-probs are a phase of their own.
    plain = config.model_copy(update={"kl_coef": 0.0})
    learner = Learner(policy, plain, DistributedContext.initialize(device=target))
    yield "update", timed(lambda: learner.update(groups, advantages), target, repeats)
    yield "tools", tool_seconds(case.tasks * case.group)


def sample(
    case: Case, sampler: TransformersSampler, groups: Sequence[TrajectoryGroup], count: int
) -> None:
    """One reply of ``count`` tokens for every episode."""
    traces = [t.tokens for group in groups for t in group.trajectories if t.tokens]
    sampler.submit(
        GenerationRequest(number, number, trace.ids[: case.prompt], count, 1.0, 1.0, (), number)
        for number, trace in enumerate(traces)
    )
    waiting = set(range(len(traces)))
    while waiting:
        waiting -= {done.id for done in sampler.poll()}
    for number in range(len(traces)):
        sampler.release(number)
    sampler.release_all()


def score(case: Case, policy: PolicyModel, groups: Sequence[TrajectoryGroup]) -> None:
    """Log-probs of all replies without gradients, as of the reference model."""
    traces = [t.tokens for group in groups for t in group.trajectories if t.tokens]
    budget = case.config.optimizer.micro_batch_tokens
    with torch.no_grad():
        for part in micro_batches(sft_samples(traces), budget):
            batch = collate(part, policy.device)
            policy.logprobs(
                batch.ids_BT, batch.attention_BT, mask_BT=batch.mask_BT, layout=batch.layout
            )


def tool_seconds(count: int) -> float:
    """Seconds of ``count`` scripted episodes: environments, without a model and its user."""
    domain = load_domain(TOOL_DOMAIN)
    tasks = domain.tasks("train")
    played = [tasks[number % len(tasks)] for number in range(count)]
    actor = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
    config = RolloutConfig(user="solo")
    run_episodes(actor, {domain.name: domain}, played[:1], config)  # parses the database
    started = time.perf_counter()
    run_episodes(actor, {domain.name: domain}, played, config)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
