"""``grpo-cl sft``: supervised fine-tuning on demonstrations of generated tasks."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_cl.cli.extras import require
from grpo_cl.cli.options import read_config
from grpo_cl.config import TINY, GRPOConfig
from grpo_cl.config.sft import SFTOptions, SFTSettings
from grpo_cl.errors import ConfigError
from grpo_cl.policy.learner.sft_data import demonstration_specs, require_tasks
from grpo_cl.runs.sft_dir import SFTDir

SFT_DEFAULTS: dict[str, Any] = {"learning_rate": 1e-4, "kl_coef": 0.0}
"""Defaults for a user's model: larger steps than in RL, and no reference model."""


def sft(arguments: argparse.Namespace) -> int:
    """Generate demonstrations, train on them, save the policy."""
    require("torch", "transformers")
    is_resumed = arguments.resume_from is not None
    directory = SFTDir(_place(arguments))
    with directory.opened():
        settings = _resumed(directory, arguments) if is_resumed else _new(directory, arguments)
        for spec in demonstration_specs(settings):
            require_tasks(spec)
        if is_resumed and directory.is_finished:
            print(f"{directory.root} is complete; nothing is left to do")
            return 0
        from grpo_cl.trainer.sft import fine_tune  # torch is slow to import

        fine_tune(directory, settings, resume=is_resumed)
    print(f"saved to {directory.root}")
    return 0


def sft_config(words: Sequence[str], options: SFTOptions) -> GRPOConfig:
    """The settings of a new fine-tuning: ``words``, over defaults for the model they name."""
    given = read_config(words)
    if given.resume_from is not None or given.fork is not None:
        raise ConfigError(
            "sft continues the fine-tuning of a directory as --resume_from DIR, and has no fork; "
            "to start another one from a model, name it with --model_name_or_path"
        )
    is_tiny = options.new_tiny or given.model_name_or_path == "tiny"
    base: dict[str, Any] = dict(TINY if is_tiny else SFT_DEFAULTS)
    if options.new_tiny:
        base["model_name_or_path"] = "tiny"  # not loaded: a new one takes its place
    base["optimizer"] = {"warmup_steps": 100, "decay_steps": options.steps, "weight_decay": 0.01}
    config = read_config(words, base)
    decay_steps = config.optimizer.decay_steps
    if 0 < decay_steps < options.steps:
        # A config file of a GRPO run has the schedule of that run.
        raise ConfigError(
            f"optimizer.decay_steps {decay_steps} ends learning before step {options.steps}; give "
            f"--optimizer.decay_steps {options.steps}, or 0 for a constant learning rate"
        )
    return config


def _place(arguments: argparse.Namespace) -> Path:
    out, resumed = arguments.out, arguments.resume_from
    if resumed is None:
        if out is None:
            raise ConfigError("sft needs --out DIR for a new model, or --resume_from DIR")
        return out
    if arguments.overwrite:
        raise ConfigError(
            f"--resume_from {resumed} continues a fine-tuning and --overwrite starts a new one; "
            "give one of them"
        )
    if out is not None and out.resolve() != resumed.resolve():
        raise ConfigError(
            f"--out is {str(out)!r} and --resume_from is {str(resumed)!r}; leave --out out: the "
            "model is saved where its fine-tuning is"
        )
    return resumed


def _new(directory: SFTDir, arguments: argparse.Namespace) -> SFTSettings:
    given = _given(arguments)
    options = SFTOptions(**given)
    for name in ("width", "layers"):
        if name in given and not options.new_tiny:
            raise ConfigError(
                f"--{name} is the size of a new tiny policy; give --new_tiny too, or leave it out"
            )
    settings = SFTSettings(options=options, config=sft_config(arguments.settings, options))
    directory.require_vacant(overwrite=arguments.overwrite)
    return settings


def _resumed(directory: SFTDir, arguments: argparse.Namespace) -> SFTSettings:
    own = directory.read_settings()
    config = read_config(arguments.settings, own.config.model_dump(mode="json"))
    options = SFTOptions.model_validate(own.options.model_dump() | _given(arguments))
    settings = SFTSettings(options=options, config=config)
    directory.require_same(own, settings)
    return settings


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by name."""
    values = {name: getattr(arguments, name) for name in SFTOptions.model_fields}
    return {
        name: value for name, value in values.items() if value is not None and value is not False
    }
