"""Compares the estimate of ``grpo-cl estimate-memory`` with the measured GPU memory.

    PYTHONPATH=src python benchmarks/gpu_memory.py

Each case builds a model of a known shape with random weights and runs two steps of sampling and
update. The peaks are those the learner logs in the second step. No files are read. Every group has
a different random prompt, so that no two groups share a prefix.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from gpu_work import free, one_reply
from grpo_cl.cli.output import table
from grpo_cl.config import GRPOConfig
from grpo_cl.gpu_memory import MemoryEstimate, Workload, estimate, known_shapes
from grpo_cl.gpu_memory.constants import GIB, MIB
from grpo_cl.gpu_memory.shape import shape_of
from grpo_cl.policy.inference.backends import transformers_sampler_for
from grpo_cl.policy.inference.sampler import GenerationRequest
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.learner.memory_stats import MemoryMeter
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.loading import ModelSource, with_new_adapter
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.types import (
    Reward,
    Task,
    Termination,
    Trajectory,
    TrajectoryGroup,
    UserScenario,
)

REPLY_TOKENS = 4
"""Sampled tokens per reply: the KV cache is allocated for the whole context anyway."""
TASK = Task(id="random", domain="random", user_scenario=UserScenario(instructions=""))
TINY_SHAPE: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 512,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


class Case(NamedTuple):
    """One run to measure."""

    model: str
    dtype: str = "bfloat16"
    rank: int = 0
    is_checkpointed: bool = False
    prompt: int = 525
    reply: int = 256
    micro_batch_tokens: int = 16384
    tasks: int = 8
    group: int = 8
    kl_coef: float = 0.04
    slots: int = 64
    graphs: bool = False
    accumulation: int = 1
    settings: dict[str, Any] | None = None
    """The model's config; None for that of a known shape."""

    @property
    def name(self) -> str:
        """Name in the table."""
        training = f"LoRA {self.rank}" if self.rank else "full"
        options = ", checkpointing" if self.is_checkpointed else ""
        options += ", graphs" if self.graphs else ""
        return f"{self.model} {self.dtype} {training}{options}, {self.prompt}+{self.reply}"

    @property
    def config(self) -> GRPOConfig:
        """The run's config."""
        return GRPOConfig.model_validate(
            {
                "model_name_or_path": self.model,
                "model_dtype": self.dtype,
                "lora": {"r": self.rank},
                "gradient_checkpointing": self.is_checkpointed,
                "kl_coef": self.kl_coef,
                "temperature": 1.0,
                "num_samples_per_prompt": self.group,
                "batch_size_per_gpu": self.tasks // self.accumulation,
                "gradient_accumulation_steps": self.accumulation,
                "max_new_tokens": self.reply,
                "sampling": {"slots": self.slots, "cuda_graphs": self.graphs},
                "optimizer": {"micro_batch_tokens": self.micro_batch_tokens},
            }
        )

    @property
    def shape(self) -> dict[str, Any]:
        """The model's config."""
        return self.settings or {**known_shapes(), "dry": TINY_SHAPE}[self.model]

    @property
    def workload(self) -> Workload:
        """The workload to estimate."""
        return Workload(
            config=self.config,
            shape=shape_of(self.shape, self.model),
            prompt_tokens=self.prompt,
            reply_tokens=self.reply,
            turn_tokens=self.reply - 2 * REPLY_TOKENS,
        )


CASES = (
    Case("smollm2-135m", dtype="float32"),
    Case("smollm2-135m"),
    Case("smollm2-135m", prompt=4096, reply=512),
    Case("smollm2-135m", graphs=True, prompt=2048, reply=512),
    Case("smollm2-135m", rank=16),
    Case("qwen2.5-1.5b", is_checkpointed=True),
    Case("qwen2.5-1.5b", is_checkpointed=True, prompt=6000, reply=512, kl_coef=0.0),
    Case("qwen2.5-7b", rank=16, micro_batch_tokens=8192, tasks=4),
    Case("qwen2.5-7b", rank=16, is_checkpointed=True, prompt=6000, reply=512, tasks=4),
)
DRY = (
    Case("dry", dtype="float32", prompt=40, reply=24, tasks=2, group=3),
    Case("dry", rank=4, is_checkpointed=True, prompt=40, reply=24, tasks=2, group=3),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only cases whose name contains TEXT"
    )
    parser.add_argument("--dry", action="store_true", help="tiny models, to test this program")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        print("No GPU to measure; use --device cpu --dry to test this program.")
        return
    header = ("case", "phase", "estimate GiB", "measured GiB", "estimate/measured", "s")
    rows: list[Sequence[object]] = [header]
    for case in DRY if arguments.dry else CASES:
        if arguments.only in case.name:
            rows += compare(case, torch.device(arguments.device))
            print("\t".join(map(str, rows[-1])), flush=True)  # kept if a later case fails
    print(table(rows))


def compare(case: Case, device: torch.device) -> Iterator[Sequence[object]]:
    """One table row per phase."""
    started = time.perf_counter()
    peaks = measure(case, device)
    seconds = f"{time.perf_counter() - started:.0f}"
    free()
    for phase in estimate_of(case).phases:
        measured = peaks.get(phase.name)
        cells = ("-", "-")
        if measured:
            cells = (f"{measured / GIB:.2f}", f"{phase.peak / measured:.3f}")
        yield case.name, phase.name, f"{phase.peak / GIB:.2f}", *cells, seconds


def estimate_of(case: Case) -> MemoryEstimate:
    """The memory estimate of a case."""
    return estimate(case.workload)


def measure(case: Case, device: torch.device, meter: MemoryMeter | None = None) -> dict[str, int]:
    """Peak bytes of each phase, as logged by the learner; empty if memory is not measured."""
    rng, config = Random(0), case.config
    policy = build(case, device)
    learner = Learner(policy, config, DistributedContext.initialize(), meter=meter)
    # As in a run, the sampler and its CUDA graphs live longer than one rollout.
    sampler = transformers_sampler_for(policy, config)
    groups = [random_group(case, rng) for _ in range(case.tasks)]
    advantages = [[rng.uniform(-1, 1) for _ in range(case.group)] for _ in groups]
    metrics: dict[str, float] = {}
    for _ in range(2):  # the first update allocates the optimizer moments
        sample(case, sampler, groups)
        metrics = learner.update(groups, advantages)
    names = {phase: f"peak_{phase}_mb" for phase in ("sample", "score", "update")}
    return {phase: round(metrics[name] * MIB) for phase, name in names.items() if name in metrics}


def build(case: Case, device: torch.device) -> PolicyModel:
    """A policy with random weights."""
    config = case.config
    settings = dict(case.shape)
    shape = AutoConfig.for_model(settings.pop("model_type"), **settings)
    shape.dtype = case.dtype
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        module = AutoModelForCausalLM.from_config(shape, dtype=case.dtype)
    source = ModelSource(name="random", place="random")
    if config.gradient_checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora.r:
        module.name_or_path = source.name  # peft stores it as the base model
        module = with_new_adapter(module, source, config)
    vocabulary = Tokenizer(WordLevel({"w": 0}, unk_token="w"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="w")
    return PolicyModel.build(module.to(device).eval(), tokenizer, source, config)


def random_group(case: Case, rng: Random) -> TrajectoryGroup:
    """A group of episodes with the same prompt and random replies."""
    token_ids = range(1, case.shape["vocab_size"])
    prompt = rng.choices(token_ids, k=case.prompt)
    traces = [
        one_reply(prompt, rng.choices(token_ids, k=case.reply), [-4.0] * case.reply)
        for _ in range(case.group)
    ]
    trajectories = [
        Trajectory(task=TASK, messages=(), termination=Termination.AGENT_STOP, tokens=trace)
        for trace in traces
    ]
    reward = Reward(value=0.0, basis=None, basis_name="tau2")
    return TrajectoryGroup(
        task=TASK,
        trajectories=tuple(trajectories),
        rewards=(reward,) * case.group,
        training_rewards=(0.0,) * case.group,
    )


def sample(case: Case, sampler: TransformersSampler, groups: Sequence[TrajectoryGroup]) -> None:
    """Sample two replies of all episodes at once, with a tool result between them."""
    traces = [t.tokens for group in groups for t in group.trajectories if t.tokens]
    turn = case.prompt + case.reply - 2 * REPLY_TOKENS
    for part in (slice(0, case.prompt), slice(case.prompt, turn)):
        waiting = set(range(len(traces)))
        sampler.submit(
            GenerationRequest(number, number, trace.ids[part], REPLY_TOKENS, 1.0, 1.0, (), number)
            for number, trace in enumerate(traces)
        )
        while waiting:
            waiting -= {done.id for done in sampler.poll()}
    for number in range(len(traces)):
        sampler.release(number)


if __name__ == "__main__":
    main()
