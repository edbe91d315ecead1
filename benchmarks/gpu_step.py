"""What one GRPO step costs on a GPU, against TRL on the same work in the same call.

    python benchmarks/gpu_step.py --model DIR --ways ours ours-vllm trl trl-vllm

The work: 16 prompts of about 525 tokens, 8 replies each of at most 256 tokens, a KL penalty and one
update per batch; a machine without a GPU needs less (--prompts 2 --reply_tokens 16). Each way
runs in a process of its own, so that none finds memory or caches as another left them. The
figures are medians over the steps after the first two.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from tempfile import mkdtemp
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer, TrainerCallback

from grpo_cl.advantages import group_advantages
from grpo_cl.cli.world import table
from grpo_cl.config import GRPOConfig
from grpo_cl.domains import load_domain
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.policy.sampler import Completion, Request
from grpo_cl.types import Reward, Task, Termination, TokenTrace, Trajectory, TrajectoryGroup

KL = 0.04
WARM_UP = 2


class Work(NamedTuple):
    """What a step does."""

    model: str
    steps: int
    prompts: int = 16
    samples: int = 8
    prompt_tokens: int = 525
    reply_tokens: int = 256

    @property
    def replies(self) -> int:
        """Of one step."""
        return self.prompts * self.samples


def main() -> None:
    """Run every way and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ways", nargs="+", choices=sorted(WAYS), default=["ours", "trl"])
    parser.add_argument("--steps", type=int, default=8)
    for name, default in Work._field_defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = vars(parser.parse_args())
    ways, one = arguments.pop("ways"), arguments.pop("one")
    work = Work(**arguments)
    if one:
        print(json.dumps(WAYS[one](work)))
        return
    rows: list[Sequence[object]] = []
    for way in ways:
        found = _in_own_process(way, work)
        cells = [f"{found.get(name, float('nan')):.3f}" for name in COLUMNS]
        rows.append((way, *cells, f"{found['spread']:.3f}", f"{found['tokens']:.0f}"))
    print(table([("way", *(f"{name} s" for name in COLUMNS), "spread", "new tokens"), *rows]))


COLUMNS = ("step", "sample", "score", "update", "sync")


def _in_own_process(way: str, work: Work) -> dict[str, float]:
    options = [f"--{name}={value}" for name, value in work._asdict().items()]
    command = [sys.executable, __file__, *options, "--one", way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{way} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return {"spread": float("nan"), "tokens": float("nan")}
    return json.loads(done.stdout.splitlines()[-1])


def summary(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Medians over the steps that are warm, and the range of their totals."""
    warm = steps[WARM_UP:]
    found = {name: statistics.median(step[name] for step in warm) for name in warm[0]}
    totals = [step["step"] for step in warm]
    return {**found, "spread": max(totals) - min(totals)}


def prompts(tokenizer: Any, work: Work) -> list[list[dict[str, str]]]:
    """Conversations of one message: a piece of a policy text to be told in other words."""
    ids = tokenizer(load_domain("airline").policy_text()).input_ids * 2
    stride = (len(ids) - work.prompt_tokens) // work.prompts
    pieces = [ids[n * stride : n * stride + work.prompt_tokens - 35] for n in range(work.prompts)]
    return [
        [{"role": "user", "content": f"Explain these rules:\n{tokenizer.decode(piece)}"}]
        for piece in pieces
    ]


def worth(text: str) -> float:
    """A reward that differs between replies: the share of words that are new."""
    words = text.split()
    return len(set(words)) / max(1, len(words))


class Ours:
    """The policy, its sampler and its learner, on single replies."""

    def __init__(self, work: Work, engine: str) -> None:
        self.work = work
        self.config = GRPOConfig.model_validate(
            {
                "model_name_or_path": work.model,
                "log_dir": mkdtemp(),
                "kl_coef": KL,
                "temperature": 1.0,
                "num_samples_per_prompt": work.samples,
                "learning_rate": 1e-6,
                "sampling": {
                    "engine": engine,
                    "slots": work.replies,
                    "max_context": work.prompt_tokens + work.reply_tokens + 64,
                    "cuda_graphs": engine == "transformers",
                },
                "optimizer": {"micro_batch_tokens": 65536},
            }
        )
        self.runtime = PolicyRuntime(self.config)
        self.tokenizer: Any = self.runtime.model.tokenizer
        self.task = load_domain("airline").tasks("base")[0]
        self.prompts: list[list[int]] = [
            self.tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)
            for one in prompts(self.tokenizer, work)
        ]

    def step(self, number: int) -> dict[str, float]:
        """Replies, rewards, one update."""
        marks = [time.perf_counter()]
        (replies,) = self.runtime.spread(1, lambda _: [self._replies(number, marks)])
        _mark(marks)
        groups = self._groups(replies)
        advantages = [group_advantages(group.training_rewards, "mean") for group in groups]
        _mark(marks)
        self.runtime.update(groups, advantages, auxiliary=None, transform=None)
        _mark(marks)
        sync, sample, score, update = (b - a for a, b in pairwise(marks))
        tokens = sum(len(reply.ids) for reply in replies)
        whole = marks[-1] - marks[0]
        parts = {"sync": sync, "sample": sample, "score": score, "update": update}
        return {"step": whole, **parts, "tokens": float(tokens)}

    def _replies(self, number: int, marks: list[float]) -> list[Completion]:
        _mark(marks)  # the weights have been brought to the sampler
        actor = self.runtime.actor(temperature=1.0)
        assert isinstance(actor, PolicyActor)
        sampler = actor.desk.sampler
        stop = (self.tokenizer.eos_token_id,)
        total = self.work.replies
        sampler.submit(
            Request(
                id=place,
                sequence=place,
                append=self.prompts[place // self.work.samples],
                max_new_tokens=self.work.reply_tokens,
                temperature=1.0,
                top_p=1.0,
                stop_ids=stop,
                seed=number * total + place,
            )
            for place in range(total)
        )
        found: list[Completion] = []
        while len(found) < total:
            found += sampler.poll()
        for place in range(total):
            sampler.release(place)
        return sorted(found, key=lambda reply: reply.id)

    def _groups(self, replies: Sequence[Completion]) -> list[TrajectoryGroup]:
        groups: list[TrajectoryGroup] = []
        size = self.work.samples
        for place, prompt in enumerate(self.prompts):
            own = replies[place * size : (place + 1) * size]
            values = [worth(text) for text in self.tokenizer.batch_decode([r.ids for r in own])]
            groups.append(
                TrajectoryGroup(
                    task=self.task,
                    trajectories=tuple(_trajectory(self.task, prompt, reply) for reply in own),
                    rewards=tuple(Reward(value=v, basis=None, basis_name="none") for v in values),
                    training_rewards=tuple(values),
                )
            )
        return groups


def _trajectory(task: Task, prompt: Sequence[int], reply: Completion) -> Trajectory:
    start, end = len(prompt), len(prompt) + len(reply.ids)
    trace = TokenTrace(
        ids=(*prompt, *reply.ids),
        mask=(*[False] * start, *[True] * len(reply.ids)),
        logprobs=tuple(reply.logprobs),
        turns=((start, end),),
    )
    return Trajectory(task=task, messages=(), termination=Termination.AGENT_STOP, tokens=trace)


def _mark(marks: list[float]) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    marks.append(time.perf_counter())


def ours(given: Work, *, engine: str = "transformers") -> dict[str, float]:
    """By the pieces that a run is made of."""
    work = Ours(given, engine)
    return summary([work.step(number) for number in range(given.steps)])


def trl(work: Work, *, vllm: bool = False) -> dict[str, float]:
    """TRL's own trainer, with its defaults where the work does not say otherwise."""
    datasets: Any = import_module("datasets")
    theirs: Any = import_module("trl")
    tokenizer: Any = AutoTokenizer.from_pretrained(work.model)
    times: list[float] = []

    class Clock(TrainerCallback):
        """Notes when steps end."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """One more step."""
            _mark(times)

    lengths: list[int] = []

    def reward(
        completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float]:
        lengths.append(sum(map(len, completion_ids)))
        return [worth(one[0]["content"]) for one in completions]

    options: dict[str, Any] = {"vllm_gpu_memory_utilization": 0.3, "vllm_mode": "colocate"}
    settings = theirs.GRPOConfig(
        output_dir=mkdtemp(),
        per_device_train_batch_size=min(64, work.replies),
        gradient_accumulation_steps=max(1, work.replies // 64),
        num_generations=work.samples,
        max_completion_length=work.reply_tokens,
        beta=KL,
        temperature=1.0,
        learning_rate=1e-6,
        max_steps=work.steps,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        logging_steps=1000,
        save_strategy="no",
        report_to=[],
        use_vllm=vllm,
        model_init_kwargs={"dtype": "bfloat16"},
        **(options if vllm else {}),
    )
    trainer = theirs.GRPOTrainer(
        model=work.model,
        reward_funcs=reward,
        args=settings,
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts(tokenizer, work) * work.steps}),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    started = time.perf_counter()
    trainer.train()
    ends = [started, *times]
    steps_s = [{"step": b - a} for a, b in pairwise(ends)]
    return {**summary(steps_s), "tokens": statistics.median(lengths[WARM_UP:])}


WAYS: dict[str, Callable[[Work], dict[str, float]]] = {
    "ours": ours,
    "ours-vllm": partial(ours, engine="vllm"),
    "trl": trl,
    "trl-vllm": partial(trl, vllm=True),
}


if __name__ == "__main__":
    main()
