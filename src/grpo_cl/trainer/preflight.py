"""Checks before a run: settings with which nothing can be learned or measured are refused."""

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

from grpo_cl.algorithms import require_algorithm
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import HELD_OUT, TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.experiment_trackers import require_trackers
from grpo_cl.rewards import find_shaping
from grpo_cl.rollout import MIN_REPLY, Opening, Scene, known_opening
from grpo_cl.trainer.auxiliary_models import require_models
from grpo_cl.types import Message, RewardType, Task

logger = logging.getLogger(__name__)

DEFAULT_TRAIN_SPLIT: float = GRPOConfig.model_fields["train_split"].default


class PromptEncoder(Protocol):
    """Renders the prompt of an episode's first reply."""

    def opening(self, scene: Scene, messages: Sequence[Message]) -> Sequence[int]:
        """The token ids of the prompt."""
        ...


def check_training(config: GRPOConfig, tasks: TaskDataLoader | None = None) -> None:
    """Refuse what cannot be trained, before a model is loaded.

    A resumed run passed these checks when it began, or is older than they are; only its domains
    are checked, because some may have been appended. A fork is a new run.
    """
    require_trackers(config)
    _require_engine(config)
    require_models(config)
    loader = tasks or TaskDataLoader(config)
    if config.resume_from is None or config.fork is not None:
        require_algorithm(config.cl_algorithm)
        if config.reward.shaping is not None:
            find_shaping(config.reward.shaping)
        _require_samples(config)
        _require_effective_split(config, loader)
    for domain in config.task_order:
        loader.require_evaluation_tasks(domain)
        loader.require_train_tasks(domain)


def warn_of_limits(config: GRPOConfig, tasks: TaskDataLoader) -> None:
    """Warn of limits that work in another way than their names suggest."""
    context, limit = config.sampling.max_context, config.max_tasks_per_domain
    if context is not None and config.max_new_tokens >= context:
        logger.warning(
            "max_new_tokens=%d is not below sampling.max_context=%d: one reply may fill the whole "
            "episode",
            *(config.max_new_tokens, context),
        )
    counts = [len(tasks.evaluation_tasks(domain)) for domain in config.task_order]
    if limit is not None and config.evaluation.max_tasks is None and max(counts) > limit:
        logger.warning(
            "max_tasks_per_domain=%d limits training tasks; every evaluation plays %d tasks, which "
            "evaluation.max_tasks limits",
            *(limit, sum(counts)),
        )
    if config.judge.model is not None and not _has_judged_tasks(config, tasks):
        logger.warning(
            "judge.model=%r is never called: the reward of no task of %s has natural-language "
            "assertions; leave it out, or give tasks that have some with tau2_data_dir",
            *(config.judge.model, ", ".join(config.task_order)),
        )


def _has_judged_tasks(config: GRPOConfig, tasks: TaskDataLoader) -> bool:
    played = (
        task
        for domain in config.task_order
        for task in (*tasks.train_tasks(domain), *tasks.evaluation_tasks(domain))
    )
    criteria = (task.evaluation_criteria for task in played)
    return config.reward.basis == "tau2" and any(
        found is not None and RewardType.NL_ASSERTION in found.reward_basis and found.nl_assertions
        for found in criteria
    )


def check_prompts(
    tasks: Sequence[Task], encoder: PromptEncoder, context: int, loader: TaskDataLoader
) -> None:
    """Refuse a domain none of whose prompts leaves room for a reply; warn if some do not."""
    for domain in dict.fromkeys(task.domain for task in tasks):
        openings = [
            known_opening(loader.domains[domain], task, loader.config.rollout)
            for task in tasks
            if task.domain == domain
        ]
        _check_openings(domain, openings, encoder, context, loader.config)


def _check_openings(
    domain: str,
    openings: Sequence[Opening],
    encoder: PromptEncoder,
    context: int,
    config: GRPOConfig,
) -> None:
    reply = min(MIN_REPLY, config.max_new_tokens)
    # Tools and policy text are the same in all tasks, so the longest text has the most tokens;
    # where it fits, the others are not encoded.
    if len(encoder.opening(*max(openings, key=_num_characters))) + reply <= context:
        return
    lengths = [len(encoder.opening(*opening)) for opening in openings]
    num_fitting = sum(length + reply <= context for length in lengths)
    is_set = config.sampling.max_context == context
    limit = f"sampling.max_context={context}" if is_set else f"the model's context of {context}"
    change = "raise sampling.max_context" if is_set else "choose a model with a longer context"
    if config.rollout.prompt == "full":
        change = f"{change}, or set rollout.prompt=compact for a policy that was trained on it"
    if not num_fitting:
        raise ConfigError(
            f"no prompt of {domain} fits: the shortest of {len(lengths)} has {min(lengths)} "
            f"tokens, and {limit} must hold {reply} more for a reply; {change}"
        )
    if num_fitting < len(lengths):
        logger.warning(
            "%s: %d of %d prompts have up to %d tokens and leave no room for a reply in %s; these "
            "episodes score 0; %s",
            *(domain, len(lengths) - num_fitting, len(lengths), max(lengths), limit, change),
        )


def _num_characters(opening: Opening) -> int:
    return len(opening.scene.system) + sum(len(m.content or "") for m in opening.messages)


def _require_engine(config: GRPOConfig) -> None:
    if config.sampling.engine == "vllm" and find_spec("vllm") is None:
        raise ConfigError(
            "sampling.engine='vllm' needs the package vllm, which is not installed; run "
            "`pip install 'grpo-cl[vllm]'`, or set sampling.engine='transformers'"
        )


def _require_samples(config: GRPOConfig) -> None:
    if not config.temperature:
        raise ConfigError(
            "temperature=0 makes all episodes of a group equal, so that no episode has an "
            "advantage and nothing is learned; set temperature above 0 (evaluations with "
            "evaluation.trials=1 decode greedily at any temperature)"
        )


def _require_effective_split(config: GRPOConfig, tasks: TaskDataLoader) -> None:
    are_split = all(set(HELD_OUT) <= set(domain.splits) for domain in tasks.domains.values())
    if config.train_split != DEFAULT_TRAIN_SPLIT and are_split:
        raise ConfigError(
            f"train_split={config.train_split} has no effect, because these domains have their "
            f"own train/test split: {', '.join(tasks.domains)}; leave train_split out"
        )
