"""What the episodes that an engine plays have in common: settings, domains, users, the oracle."""

import os
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.advantages import INFRASTRUCTURE
from grpo_cl.config import GRPOConfig
from grpo_cl.domains import Domain, load_domain
from grpo_cl.domains.overlay import deep_update
from grpo_cl.episodes import episode_log
from grpo_cl.errors import ConfigError
from grpo_cl.evaluation import episode_seed
from grpo_cl.models.line import Line
from grpo_cl.plans import planned_settings
from grpo_cl.rewards import RewardOracle, learned_value
from grpo_cl.trainer.cast import FROZEN, POLICY, Cast
from grpo_cl.types import Reward, Task, Trajectory
from grpo_cl.users import ModelUsers

SHORT: dict[str, tuple[str, str]] = {
    "user_strategy": ("rollout", "user"),
    "user_model": ("user", "model"),
    "user_base_url": ("user", "base_url"),
    "judge_model": ("judge", "model"),
    "max_turns": ("rollout", "max_turns"),
}
"""Names that engines' settings have for keys of a run's config."""


def episode_config(options: Mapping[str, Any]) -> GRPOConfig:
    """A config from an engine's flat settings: short names, and sections of a run's config.

    Where a plan is followed they are changes of the planned run's settings.
    """
    told = {name: value for name, value in options.items() if name not in SHORT}
    settings: dict[str, Any] = deep_update(planned_settings(os.environ), told)
    for name in SHORT.keys() & options.keys():
        section, key = SHORT[name]
        settings[section] = {**settings.get(section, {}), key: options[name]}
    try:
        return GRPOConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(
            f"environment settings {dict(options)!r} are no settings of a run; they are "
            f"{', '.join(SHORT)} and the sections of docs/training.md: {error}"
        ) from error


class Outcome(NamedTuple):
    """An episode that is over."""

    trajectory: Trajectory
    reward: Reward
    learned: float | None
    """What to learn from, as in a local run; None where a failing endpoint ended the episode, which
    then belongs in no batch and in no baseline."""


class Venue:
    """Where the episodes of one process are played and scored, as a local run does it."""

    def __init__(self, config: GRPOConfig) -> None:
        if config.user.model in {POLICY, FROZEN}:
            raise ConfigError(
                f"user.model={config.user.model!r} is the policy of a local run, and here another "
                "engine has it; name the user's model as PROVIDER/MODEL"
            )
        self.config = config
        # A failed endpoint ends the episode: replies that an engine has made cannot be taken back.
        self.rollout = config.rollout.model_copy(update={"replays": 0})
        self.line = Line()
        """The loop of episodes that are stepped from threads."""
        self._domains: dict[str, Domain] = {}
        self._cast = Cast(config)
        self._oracle = RewardOracle(
            self._domains,
            basis=config.reward.basis,
            judge=self._cast.judge,
            memory=self._cast.memory,
        )
        # Asked for by name: some engines put another object in the place of ``os.environ``.
        self._log = episode_log(os.environ)
        self._opened: Counter[tuple[str, str]] = Counter()

    def domain(self, name: str) -> Domain:
        """The domain called ``name``, loaded once."""
        if name not in self._domains:
            found = load_domain(name, self.config.tau2_data_dir)
            self._domains[name] = found.configured(self.config)
        return self._domains[name]

    def task(self, domain: str, task_id: str) -> Task:
        """One task by its name."""
        return self.domain(domain).task(task_id)

    @property
    def users(self) -> ModelUsers | None:
        """Makes users that models play; None where no model does."""
        return self._cast.users(_NoPolicies()) if self.config.user.model else None

    @property
    def has_judge(self) -> bool:
        """Whether a score may wait for a model."""
        return self._cast.judge is not None

    def next_seed(self, task: Task) -> int:
        """A seed for the next episode of ``task`` in this process."""
        played = self._opened[task.domain, task.id]
        self._opened[task.domain, task.id] += 1
        return episode_seed(self.config.seed, "engine", task.domain, task.id, played)

    def score(self, trajectory: Trajectory) -> Outcome:
        """The reward that a local run gives; the episode is written down where a plan asks."""
        self.domain(trajectory.task.domain)
        (scored,) = self._oracle.score_all([trajectory])
        if self._log is not None:
            self._log.add(*scored)
        value = learned_value(scored.reward, self.config.reward)
        is_lost = scored.trajectory.termination in INFRASTRUCTURE
        return Outcome(scored.trajectory, scored.reward, None if is_lost else value)

    def close(self) -> None:
        """Close every connection and end what is under way."""
        self.line.close()
        self._cast.close()


class _NoPolicies:
    """Stands where a run's policies would; ``Venue`` refuses users that they would play."""

    def actor(self, *, temperature: float) -> Any:
        raise AssertionError(f"no policy plays a user here, at temperature {temperature} or any")

    frozen_actor = actor


_SHARED: dict[str, Venue] = {}
_LOCK = threading.Lock()


def shared_venue(config: GRPOConfig) -> Venue:
    """The one venue of this process for ``config``: engines make an environment per episode."""
    key = config.model_dump_json()
    with _LOCK:
        if key not in _SHARED:
            _SHARED[key] = Venue(config)
        return _SHARED[key]
