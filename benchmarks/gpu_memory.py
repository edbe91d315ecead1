"""What ``grpo-cl estimate-memory`` says, against what a GPU measures.

    PYTHONPATH=src python benchmarks/gpu_memory.py

Each case builds a model of a known shape with random weights and makes two steps: the sampler reads
and writes, the learner updates. The peaks are those that it logs in the second. No files are read.
Every group has a random prompt of its own, so that no two share a beginning.
"""

import argparse
import gc
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from gpu_work import one_reply
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from grpo_cl.cli.world import table
from grpo_cl.config import GRPOConfig
from grpo_cl.footprint import Estimate, Plan, estimate, known_shapes
from grpo_cl.footprint.overheads import GIB, MIB
from grpo_cl.footprint.shape import shape_of
from grpo_cl.policy.engines import own_sampler
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.loading import Source, with_new_adapter
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.peaks import Meter
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.sampler import Request
from grpo_cl.types import (
    Reward,
    Task,
    Termination,
    Trajectory,
    TrajectoryGroup,
    UserScenario,
)

WRITTEN = 4
"""Tokens of each of an episode's two replies here: a cache is as large however it is filled."""
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
    """One run to be measured."""

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

    @property
    def name(self) -> str:
        """As a table shows it."""
        kind = f"LoRA {self.rank}" if self.rank else "full"
        again = ", checkpointing" if self.is_checkpointed else ""
        again += ", graphs" if self.graphs else ""
        return f"{self.model} {self.dtype} {kind}{again}, {self.prompt}+{self.reply}"

    @property
    def config(self) -> GRPOConfig:
        """The run's settings."""
        return GRPOConfig.model_validate(
            {
                "model_name_or_path": self.model,
                "model_dtype": self.dtype,
                "lora": {"r": self.rank},
                "gradient_checkpointing": self.is_checkpointed,
                "kl_coef": self.kl_coef,
                "temperature": 1.0,
                "num_samples_per_prompt": self.group,
                "batch_size_per_gpu": self.tasks,
                "gradient_accumulation_steps": 1,
                "max_new_tokens": self.reply,
                "sampling": {"slots": self.slots, "cuda_graphs": self.graphs},
                "optimizer": {"micro_batch_tokens": self.micro_batch_tokens},
            }
        )

    @property
    def shape(self) -> dict[str, Any]:
        """The model's config."""
        return {**known_shapes(), "dry": TINY_SHAPE}[self.model]

    @property
    def plan(self) -> Plan:
        """What is estimated."""
        return Plan(
            config=self.config,
            shape=shape_of(self.shape, self.model),
            prompt_tokens=self.prompt,
            reply_tokens=self.reply,
            turn_tokens=self.reply - 2 * WRITTEN,
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
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has it")
    parser.add_argument("--dry", action="store_true", help="tiny models, to try the program itself")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        print("Here is no GPU, so there is nothing to measure; --device cpu --dry tries the rest.")
        return
    head = ("case", "phase", "estimate GiB", "measured GiB", "estimate/measured", "s")
    rows: list[Sequence[object]] = [head]
    for case in DRY if arguments.dry else CASES:
        if arguments.only in case.name:
            rows += compare(case, torch.device(arguments.device))
            print("\t".join(map(str, rows[-1])), flush=True)  # kept if a later case fails
    print(table(rows))


def compare(case: Case, device: torch.device) -> Iterator[Sequence[object]]:
    """A row for each phase."""
    started = time.perf_counter()
    found = measure(case, device)
    seconds = f"{time.perf_counter() - started:.0f}"
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    for phase in estimate_of(case).phases:
        measured = found.get(phase.name)
        shown = ("-", "-")
        if measured:
            shown = (f"{measured / GIB:.2f}", f"{phase.peak / measured:.3f}")
        yield case.name, phase.name, f"{phase.peak / GIB:.2f}", *shown, seconds


def estimate_of(case: Case) -> Estimate:
    """What is to be compared with the measurement."""
    return estimate(case.plan)


def measure(case: Case, device: torch.device, meter: Meter | None = None) -> dict[str, int]:
    """Bytes of each phase at its peak, as the learner logs them; none where nobody counts."""
    rng, config = Random(0), case.config
    policy = build(case, device)
    learner = Learner(policy, config, Ranks.join(), meter=meter)
    sampler = own_sampler(policy, config)  # as in a run it outlives a rollout, and graphs with it
    groups = [random_group(case, rng) for _ in range(case.tasks)]
    advantages = [[rng.uniform(-1, 1) for _ in range(case.group)] for _ in groups]
    numbers: dict[str, float] = {}
    for _ in range(2):  # from the first update on there are moments
        write(case, sampler, groups)
        numbers = learner.update(groups, advantages)
    names = {phase: f"peak_{phase}_mb" for phase in ("sample", "score", "update")}
    return {phase: round(numbers[name] * MIB) for phase, name in names.items() if name in numbers}


def build(case: Case, device: torch.device) -> PolicyModel:
    """A policy with random weights."""
    config = case.config
    settings = dict(case.shape)
    shape = AutoConfig.for_model(settings.pop("model_type"), **settings)
    shape.dtype = case.dtype
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        module = AutoModelForCausalLM.from_config(shape, dtype=case.dtype)
    source = Source(name="random", place="random")
    if config.gradient_checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora.r:
        module.name_or_path = source.name  # what peft writes down as the base
        module = with_new_adapter(module, source, config)
    words = Tokenizer(WordLevel({"w": 0}, unk_token="w"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w")
    return PolicyModel(module.to(device).eval(), tokenizer, source, config)


def random_group(case: Case, rng: Random) -> TrajectoryGroup:
    """Episodes that share a prompt and nothing after it."""
    words = range(1, case.shape["vocab_size"])
    prompt = rng.choices(words, k=case.prompt)
    traces = [
        one_reply(prompt, rng.choices(words, k=case.reply), [-4.0] * case.reply)
        for _ in range(case.group)
    ]
    played = [
        Trajectory(task=TASK, messages=(), termination=Termination.AGENT_STOP, tokens=trace)
        for trace in traces
    ]
    reward = Reward(value=0.0, basis=None, basis_name="tau2")
    return TrajectoryGroup(
        task=TASK,
        trajectories=tuple(played),
        rewards=(reward,) * case.group,
        training_rewards=(0.0,) * case.group,
    )


def write(case: Case, sampler: TransformersSampler, groups: Sequence[TrajectoryGroup]) -> None:
    """Let the sampler hold all episodes at once: a prompt, a reply, an answer, a reply."""
    traces = [one.tokens for group in groups for one in group.trajectories if one.tokens]
    turn = case.prompt + case.reply - 2 * WRITTEN
    for part in (slice(0, case.prompt), slice(case.prompt, turn)):
        waiting = set(range(len(traces)))
        sampler.submit(
            Request(number, number, trace.ids[part], WRITTEN, 1.0, 1.0, (), number)
            for number, trace in enumerate(traces)
        )
        while waiting:
            waiting -= {done.id for done in sampler.poll()}
    for number in range(len(traces)):
        sampler.release(number)


if __name__ == "__main__":
    main()
