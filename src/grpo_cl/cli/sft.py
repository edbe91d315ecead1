"""``grpo-cl sft``: a supervised warm start from demonstrations of generated tasks."""

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from grpo_cl.cli.options import read_config
from grpo_cl.config import TINY, GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.reach import stretch
from grpo_cl.policy.runtime import use_few_threads
from grpo_cl.policy.sft import Example, Lesson, all_examples, all_traces, batches, trace
from grpo_cl.policy.supervised import supervised_update
from grpo_cl.policy.tabular import TabularChat
from grpo_cl.policy.tiny_model import Size, new_tiny
from grpo_cl.types import TokenTrace

IMITATION: dict[str, Any] = {"learning_rate": 1e-4, "kl_coef": 0.0}
"""What imitation takes for a model of one's own: no reward, so larger steps and no reference."""


def sft(arguments: argparse.Namespace) -> int:
    """Make demonstrations, learn from them, save the policy."""
    started = time.monotonic()
    config = _config(arguments)
    lessons = _lessons(arguments, config)
    examples: list[Example] | None = None
    if arguments.new_tiny:
        made = all_examples(lessons, workers=arguments.workers)
        examples = list(chain.from_iterable(made))
        size = Size(width=arguments.width, layers=arguments.layers)
        new_tiny(examples, arguments.out, seed=arguments.seed, size=size)
    if arguments.context is not None:
        stretch(config, arguments.out, tokens=arguments.context)
        config = config.model_copy(update={"model_name_or_path": str(arguments.out)})
        lessons = _lessons(arguments, config)
    policy = PolicyModel.load(config, device=Ranks().device)
    use_few_threads(policy)
    traces = _traces(policy, lessons, examples, workers=arguments.workers)
    print(f"{len(traces)} demonstrations in {time.monotonic() - started:.0f} s", flush=True)
    learn(policy, traces, config, arguments)
    policy.save(arguments.out)
    print(f"saved to {arguments.out}")
    return 0


def _lessons(arguments: argparse.Namespace, config: GRPOConfig) -> list[Lesson]:
    levels: list[float | None] = arguments.difficulty or [None]
    return [
        Lesson(
            domain,
            arguments.seed,
            count,
            config.tasks.difficulty_of(domain) if level is None else level,
            is_compact=config.rollout.prompt == "compact",
            mistakes=arguments.mistakes,
            config=config,
        )
        for level in levels
        for domain, count in zip(arguments.domain, _counts(arguments), strict=True)
    ]


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
    settings: list[str] = arguments.settings
    if arguments.new_tiny:
        settings = [*settings, "--model_name_or_path", str(arguments.out)]
    is_tiny = arguments.new_tiny or read_config(settings).model_name_or_path == "tiny"
    schedule = {"warmup_steps": 100, "decay_steps": arguments.steps, "weight_decay": 0.01}
    return read_config(settings, {**(TINY if is_tiny else IMITATION), "optimizer": schedule})


def _traces(
    policy: PolicyModel,
    lessons: Sequence[Lesson],
    examples: Sequence[Example] | None,
    *,
    workers: int,
) -> list[TokenTrace]:
    """What the policy would have read and written; made now unless there are ``examples``."""
    chat, context = policy.chat, policy.context
    if isinstance(chat, TabularChat):
        raise ConfigError("the tabular policy writes no sentences to imitate; give another model")
    found = (
        list(chain.from_iterable(all_traces(lessons, workers=workers, context=context)))
        if examples is None
        else [trace(chat, example, context=context) for example in examples]
    )
    fitting = [each for each in found if each is not None]
    if len(fitting) < len(found):
        print(f"{len(found) - len(fitting)} demonstrations are longer than {context} tokens")
    return fitting


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
