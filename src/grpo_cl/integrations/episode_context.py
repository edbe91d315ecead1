"""What the episodes of one engine process share: settings, domains, users and the reward oracle."""

import os
import threading
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.config import LOCAL_USERS, GRPOConfig, deep_update
from grpo_cl.envs import Domain, domain_for
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.plan import planned_settings
from grpo_cl.llm.background_loop import BackgroundLoop
from grpo_cl.rewards import training_reward
from grpo_cl.rewards.advantages import INFRASTRUCTURE
from grpo_cl.runs.episodes import episode_log
from grpo_cl.trainer.auxiliary_models import AuxiliaryModels, require_models
from grpo_cl.trainer.evaluate import episode_seed
from grpo_cl.types import Reward, Task, Trajectory
from grpo_cl.users import STRATEGIES, LLMUserFactory

SHORT_OPTIONS: dict[str, tuple[str, str]] = {
    "user_strategy": ("rollout", "user"),
    "user_model": ("user", "model"),
    "user_base_url": ("user", "base_url"),
    "judge_model": ("judge", "model"),
    "max_turns": ("rollout", "max_turns"),
}
"""Short option names that engine settings accept, with the config key each one sets."""


def episode_config(options: Mapping[str, Any]) -> GRPOConfig:
    """The run config for an engine's settings: short option names and sections of a run's config.

    Under a plan they override the settings of the planned run.
    """
    sections = {name: value for name, value in options.items() if name not in SHORT_OPTIONS}
    settings: dict[str, Any] = deep_update(planned_settings(os.environ), sections)
    for name in SHORT_OPTIONS.keys() & options.keys():
        section, key = SHORT_OPTIONS[name]
        settings[section] = {**settings.get(section, {}), key: options[name]}
    try:
        return GRPOConfig.model_validate(settings)
    except ValidationError as error:
        problems = "; ".join(_problem(problem) for problem in error.errors())
        raise ConfigError(
            f"invalid environment settings {dict(options)!r}: {problems}; allowed are "
            f"{', '.join(SHORT_OPTIONS)} and the config sections of docs/training.md"
        ) from error


def _problem(problem: Any) -> str:
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] != "extra_forbidden":
        return f"{name}: {problem['msg'].removeprefix('Value error, ')}"
    close = get_close_matches(name, (*SHORT_OPTIONS, *GRPOConfig.model_fields), n=1)
    return f"unknown setting {name!r}" + (f", did you mean {close[0]!r}?" if close else "")


def require_hosted_models(config: GRPOConfig) -> None:
    """Refuse a user that needs a model and has none, or that needs the policy under training."""
    strategy, model = config.rollout.user, config.user.model
    if strategy in STRATEGIES and (model is None or model in LOCAL_USERS):
        lacking = "needs a local policy, but here another engine has it" if model else "is not set"
        raise ConfigError(
            f"the user {strategy!r} is driven by a model and user.model={model!r} {lacking}; name "
            "the user's model as PROVIDER/MODEL, such as openai/gpt-4o"
        )
    require_models(config)


def require_tools(domain: Domain, task: Task) -> None:
    """Refuse a task with gold actions that no agent can perform in ``domain``."""
    names = {tool["function"]["name"] for tool in domain.tools(solo=True)}
    for action in task.gold_actions:
        if action.name not in names:
            raise ConfigError(
                f"task {task.id!r} needs the tool {action.name!r}, which domain {domain.name!r} "
                "does not have; if it is an own tool, name its file with the setting tools=FILE.py"
            )


class Outcome(NamedTuple):
    """A finished and scored episode."""

    trajectory: Trajectory
    reward: Reward
    training_reward: float | None
    """The reward to train on, as in a local run. None if an endpoint failure ended the episode:
    leave it out of the batch and of the group's baseline."""


class EpisodeContext:
    """Runs and scores the episodes of one process with the settings of a local run."""

    def __init__(self, config: GRPOConfig) -> None:
        require_hosted_models(config)
        self.config = config
        # No retries after an endpoint failure: the engine has already sampled replies.
        self.rollout = config.rollout.model_copy(update={"replays": 0})
        self.background_loop = BackgroundLoop()
        """The event loop of episodes that are stepped from threads."""
        self._domains: dict[str, Domain] = {}
        self._models = AuxiliaryModels(config)
        self._oracle = self._models.oracle(self._domains)
        # Read at run time: some engines replace ``os.environ`` by another object.
        self._log = episode_log(os.environ)
        self._episode_counts: Counter[tuple[str, str]] = Counter()

    def domain(self, name: str) -> Domain:
        """The domain called ``name``, loaded once."""
        if name not in self._domains:
            self._domains[name] = domain_for(self.config, name)
        return self._domains[name]

    def task(self, domain: str, task_id: str) -> Task:
        """The task ``task_id`` of a domain."""
        return self.domain(domain).task(task_id)

    @property
    def users(self) -> LLMUserFactory | None:
        """Factory of LLM users; None if the config names no user model."""
        return self._models.users(_NoPolicies()) if self.config.user.model else None

    @property
    def has_judge(self) -> bool:
        """Whether scoring may call a judge model."""
        return self._models.judge is not None

    def next_seed(self, task: Task) -> int:
        """A seed for the next episode of ``task`` in this process."""
        index = self._episode_counts[task.domain, task.id]
        self._episode_counts[task.domain, task.id] += 1
        return episode_seed(self.config.seed, "engine", task.domain, task.id, index)

    def score(self, trajectory: Trajectory) -> Outcome:
        """Score an episode as a local run does, and log it if ``GRPO_CL_ROLLOUTS`` is set."""
        self.domain(trajectory.task.domain)
        (scored,) = self._oracle.score_all([trajectory])
        if self._log is not None:
            self._log.add(*scored)
        value = training_reward(scored.reward, self.config.reward)
        is_failed = scored.trajectory.termination in INFRASTRUCTURE
        return Outcome(scored.trajectory, scored.reward, None if is_failed else value)

    def close(self) -> None:
        """Cancel running episodes and close all connections."""
        self.background_loop.close()
        self._models.close()


class _NoPolicies:
    """Placeholder for the local policies; ``EpisodeContext`` rejects users that would need them."""

    def actor(self, *, temperature: float) -> Any:
        raise AssertionError(f"no local policy to play a user (temperature {temperature})")

    frozen_actor = actor


_SHARED: dict[str, EpisodeContext] = {}
_LOCK = threading.Lock()


def shared_context(config: GRPOConfig) -> EpisodeContext:
    """The context for ``config``, shared by all episodes of this process."""
    key = config.model_dump_json()
    with _LOCK:
        if key not in _SHARED:
            _SHARED[key] = EpisodeContext(config)
        return _SHARED[key]
