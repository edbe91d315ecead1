"""``grpo-cl sft``: a supervised warm start from demonstrations of generated tasks."""

import argparse
import sys
import time

from grpo_cl.cli.options import read_config
from grpo_cl.config import TINY, GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.runtime import use_few_threads
from grpo_cl.policy.sft import Example, Lesson, all_examples, batches, trace
from grpo_cl.policy.supervised import supervised_update
from grpo_cl.policy.tabular import TabularChat
from grpo_cl.policy.tiny_model import Size, new_tiny
from grpo_cl.types import TokenTrace


def sft(arguments: argparse.Namespace) -> int:
    """Make demonstrations, learn from them, save the policy."""
    started = time.monotonic()
    if arguments.new_tiny:
        arguments.settings += ["--model_name_or_path", str(arguments.out)]
    config = _config(arguments)
    lessons = [
        Lesson(
            domain,
            arguments.seed,
            count,
            difficulty,
            is_compact=True,
            mistakes=arguments.mistakes,
            config=config,
        )
        for difficulty in arguments.difficulty
        for domain, count in zip(arguments.domain, _counts(arguments), strict=True)
    ]
    examples = [
        example for part in all_examples(lessons, workers=arguments.workers) for example in part
    ]
    print(f"{len(examples)} demonstrations in {time.monotonic() - started:.0f} s", flush=True)
    if arguments.new_tiny:
        size = Size(width=arguments.width, layers=arguments.layers)
        new_tiny(examples, arguments.out, seed=arguments.seed, size=size)
    policy = PolicyModel.load(config, device=Ranks().device)
    use_few_threads(policy)
    learn(policy, _traces(policy, examples), config, arguments)
    policy.save(arguments.out)
    print(f"saved to {arguments.out}")
    return 0


def _counts(arguments: argparse.Namespace) -> list[int]:
    counts: list[int] = arguments.count
    if len(counts) == 1:
        return counts * len(arguments.domain)
    if len(counts) != len(arguments.domain):
        raise ConfigError(
            f"--count has {len(counts)} numbers for {len(arguments.domain)} domains; "
            "give one for all or one for each"
        )
    return counts


def _config(arguments: argparse.Namespace) -> GRPOConfig:
    schedule = {"warmup_steps": 100, "decay_steps": arguments.steps, "weight_decay": 0.01}
    return read_config(arguments.settings, {**TINY, "optimizer": schedule})


def _traces(policy: PolicyModel, examples: list[Example]) -> list[TokenTrace]:
    chat = policy.chat
    if isinstance(chat, TabularChat):
        raise ConfigError("the tabular policy writes no sentences to imitate; give another model")
    found = (trace(chat, example, context=policy.context) for example in examples)
    return [each for each in found if each is not None]


def learn(
    policy: PolicyModel, traces: list[TokenTrace], config: GRPOConfig, arguments: argparse.Namespace
) -> None:
    """Imitate the traces for the given number of steps."""
    learner = Learner(policy, config, Ranks(device=policy.device))
    endless = batches(traces, size=arguments.batch_size, seed=arguments.seed)
    started = time.monotonic()
    for step, batch in zip(range(arguments.steps), endless, strict=False):
        numbers = supervised_update(learner, batch)
        if step % arguments.log_interval == 0 or step == arguments.steps - 1:
            seconds = time.monotonic() - started
            sys.stdout.write(f"Step {step}: loss={numbers['loss']:.4f}, {seconds:.0f} s\n")
            sys.stdout.flush()
        if (step + 1) % arguments.save_interval == 0:
            policy.save(arguments.out)
