"""Supervised fine-tuning on demonstrations of generated tasks, with an exact resume.

Demonstrations and batches are functions of the settings and the step, so that a checkpoint has only
weights, optimizer state and the number of steps.
"""

import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from grpo_cl.config import GRPOConfig
from grpo_cl.config.sft import SFTSettings
from grpo_cl.errors import ConfigError
from grpo_cl.policy.learner.learner import Learner, supervised_update
from grpo_cl.policy.learner.sft_data import (
    ChatEncoder,
    DemonstrationSpec,
    demonstration_specs,
    fresh_batches,
    generate_examples_parallel,
    shuffled_batches,
    tokenize_example,
    tokenize_examples_parallel,
)
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.loading import ModelSource, resolve
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.rope_scaling import extend_context
from grpo_cl.policy.model.tabular import TabularChat
from grpo_cl.policy.model.tiny_model import Size, create_tiny_model
from grpo_cl.policy.runtime import limit_threads
from grpo_cl.rollout.demonstrations import Example
from grpo_cl.runs.sft_dir import MadeModel, SFTCheckpoint, SFTDir, model_dir
from grpo_cl.trainer.process import Interruption
from grpo_cl.types import TokenTrace

Item = TypeVar("Item")


class _Start(NamedTuple):
    """The model to start from, and what is known about it."""

    source: ModelSource
    made: MadeModel | None = None
    examples: Sequence[Example] | None = None
    """The demonstrations, if a new tokenizer was trained on them."""


class _Work(NamedTuple):
    """What training needs."""

    learner: Learner
    batches: Generator[list[TokenTrace]]
    """The batches of the steps to come."""
    step: int
    """The number of steps made."""


def fine_tune(directory: SFTDir, settings: SFTSettings, *, resume: bool) -> None:
    """Train on demonstrations and leave the model in ``directory``, whose lock is held.

    On SIGTERM the state is saved after the present step, and the process exits with status 143.
    """
    checkpoint = _latest(directory) if resume else None
    if checkpoint is None or checkpoint.step < settings.options.steps:
        with Interruption() as interruption, directory.workspace() as folder:
            if resume:
                start = _resumed_start(directory, settings)
            else:
                start = _first_start(settings, folder, interruption)
            _require_base(directory, settings.config, start.source)
            work = _prepare(settings, start, checkpoint, interruption)
            if resume:
                directory.write_settings(settings)
            else:
                directory.begin(settings, start.made)  # nothing is refused from here on
            with closing(work.batches):
                checkpoint = _train(directory, settings, work, interruption)
    directory.publish(checkpoint)


def _latest(directory: SFTDir) -> SFTCheckpoint | None:
    checkpoint, damaged = directory.latest()
    for damage in damaged:
        _say(f"{damage.path} is damaged ({damage.problem}) and is not used")
    _say(f"continuing after step {checkpoint.step}" if checkpoint else "starting again at step 0")
    return checkpoint


def _first_start(settings: SFTSettings, folder: Path, interruption: Interruption) -> _Start:
    """The model that the settings name, or one that is written to ``folder``."""
    options, config = settings.options, settings.config
    if not options.makes_model:
        return _Start(resolve(config.model_name_or_path))
    examples, origin = None, ""
    if options.new_tiny:
        examples = _new_tiny(settings, folder, interruption)
        config = config.model_copy(update={"model_name_or_path": str(folder)})
    else:
        origin = resolve(config.model_name_or_path).name
    if options.context is not None:
        extend_context(config, folder, tokens=options.context)
    made = MadeModel(folder, origin)
    return _Start(_source(made), made, examples)


def _resumed_start(directory: SFTDir, settings: SFTSettings) -> _Start:
    """The same model, since how a module is computed is chosen by its first weights."""
    made = directory.made_model()
    if made is None:
        return _Start(resolve(settings.config.model_name_or_path))
    return _Start(_source(made), made)


def _source(made: MadeModel) -> ModelSource:
    return resolve(str(made.folder))._replace(name=made.origin)


def _new_tiny(settings: SFTSettings, folder: Path, interruption: Interruption) -> list[Example]:
    options, config = settings.options, settings.config
    size = Size(width=options.width, layers=options.layers)
    size.check()
    if config.lora.r:
        raise ConfigError(
            f"--new_tiny makes a new base model, and lora.r={config.lora.r} trains only an "
            "adapter; set lora.r=0"
        )
    batches = generate_examples_parallel(demonstration_specs(settings), workers=options.workers)
    examples = list(chain.from_iterable(_until(interruption, batches)))
    create_tiny_model(examples, folder, seed=options.seed, size=size)
    return examples


def _require_base(directory: SFTDir, config: GRPOConfig, source: ModelSource) -> None:
    base = source.directory
    if config.lora.r and base is not None and base.resolve() == directory.root.resolve():
        raise ConfigError(
            f"{directory.root} is the base model of the adapter that lora.r={config.lora.r} "
            "trains, and would be replaced by it; choose another --out"
        )


def _prepare(
    settings: SFTSettings,
    start: _Start,
    checkpoint: SFTCheckpoint | None,
    interruption: Interruption,
) -> _Work:
    """Load policy, optimizer and demonstrations."""
    options, config = settings.options, settings.config
    policy = PolicyModel.load(config, device=DistributedContext().device, source=start.source)
    limit_threads(policy)
    chat, context = policy.chat, policy.context
    if isinstance(chat, TabularChat):
        raise ConfigError(
            "the tabular policy generates no text and cannot be fine-tuned; give another model"
        )
    step = 0 if checkpoint is None else checkpoint.step
    if options.fresh and options.steps:
        batches = fresh_batches(
            _specs(settings, start),
            size=options.batch_size,
            start=step,
            workers=options.workers,
            context=context,
        )
    else:
        traces = _traces(chat, context, settings, start, interruption)
        batches = _fixed_batches(traces, settings, step)
    learner = Learner(policy, config, DistributedContext(device=policy.device))
    if checkpoint is not None:
        learner.load_state(checkpoint.path)
    return _Work(learner, batches, step)


def _specs(settings: SFTSettings, start: _Start) -> list[DemonstrationSpec]:
    """The demonstrations, for the tokenizer of the model to start from."""
    named = {"model_name_or_path": start.source.place} if start.made else {}
    config = settings.config.model_copy(update=named)
    return demonstration_specs(settings.model_copy(update={"config": config}))


def _fixed_batches(
    traces: Sequence[TokenTrace], settings: SFTSettings, step: int
) -> Generator[list[TokenTrace]]:
    options = settings.options
    if not options.steps:
        return (batch for batch in ())
    return shuffled_batches(traces, size=options.batch_size, seed=options.seed, start=step)


def _traces(
    chat: ChatEncoder,
    context: int,
    settings: SFTSettings,
    start: _Start,
    interruption: Interruption,
) -> list[TokenTrace]:
    """The demonstrations as token traces, without those longer than ``context``."""
    started = time.monotonic()
    if start.examples is not None:
        traces = [tokenize_example(chat, example, context=context) for example in start.examples]
    else:
        batches = tokenize_examples_parallel(
            _specs(settings, start), workers=settings.options.workers, context=context
        )
        traces = list(chain.from_iterable(_until(interruption, batches)))
    fitting = [trace for trace in traces if trace is not None]
    if len(fitting) < len(traces):
        _say(f"{len(traces) - len(fitting)} demonstrations are longer than {context} tokens")
    _say(f"{len(fitting)} demonstrations in {time.monotonic() - started:.0f} s")
    return fitting


def _train(
    directory: SFTDir, settings: SFTSettings, work: _Work, interruption: Interruption
) -> SFTCheckpoint:
    """Train to the last step, and save checkpoints and the final model."""
    options, learner = settings.options, work.learner
    save = partial(directory.save, keep=settings.config.logging.keep_checkpoints)
    started = time.monotonic()
    for step, batch in zip(range(work.step, options.steps), work.batches, strict=False):
        metrics = supervised_update(learner, batch)
        if step % options.log_interval == 0 or step == options.steps - 1:
            seconds = time.monotonic() - started
            _say(f"Step {step}: loss={metrics['loss']:.4f}, {seconds:.0f} s")
        if step == options.steps - 1:
            break
        is_ending = interruption.is_requested
        if is_ending or (step + 1) % options.save_interval == 0:
            save(step + 1, partial(_write_checkpoint, learner))
        if is_ending:
            interruption.end(
                f"saved after step {step + 1}", f"grpo-cl sft --resume_from {directory.root}"
            )
    return save(options.steps, lambda folder: learner.policy.save(model_dir(folder)))


def _write_checkpoint(learner: Learner, folder: Path) -> None:
    learner.policy.save(model_dir(folder))
    learner.save_state(folder)


def _until(interruption: Interruption, batches: Iterable[Item]) -> Iterator[Item]:
    """The batches of demonstrations, which are not saved if the process is asked to end."""
    for batch in batches:
        if interruption.is_requested:
            interruption.end("nothing to save yet", "the same command")
        yield batch


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
