"""Who plays the user of a run, and who judges."""

from pathlib import Path
from typing import Protocol

from grpo_cl.casting import policy_as_user
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import BudgetError, ConfigError
from grpo_cl.models import Endpoint, Manner, Models
from grpo_cl.rewards.answerer import ModelAnswerer
from grpo_cl.rewards.content import ModelContentJudge
from grpo_cl.rewards.judge import ModelJudge
from grpo_cl.rewards.memory import MemoryScorer
from grpo_cl.roles import MemoryConfig
from grpo_cl.rollout import Actor
from grpo_cl.users import STRATEGIES, ModelUsers, require_user

LEDGER = "spending.jsonl"
"""What a run paid for, a line for each reply."""

POLICY, FROZEN = "policy", "frozen"
"""Names of user models that are no endpoints: today's policy, and the one the run began with."""


class Policies(Protocol):
    """Where actors come from."""

    def actor(self, *, temperature: float) -> Actor:
        """An actor that writes with today's weights."""
        ...

    def frozen_actor(self, *, temperature: float) -> Actor:
        """An actor that writes with the weights the run started from."""
        ...


class Cast:
    """The models of a run that are not learning, and what they may cost."""

    def __init__(self, config: GRPOConfig) -> None:
        require_cast(config)
        self._config = config.user
        self._models = Models(config.models)
        self.judge = ModelJudge(self._models, config.judge) if config.judge.model else None
        self.memory = self._memory_scorer(config.memory)
        self.is_paid_to_score = bool(
            self.judge or config.memory.answerer.model or config.memory.judge.model
        )
        """Whether scoring asks models, so that it should be done once and not by every process."""
        self._hosted: Endpoint | None = None
        if config.user.model not in {None, POLICY, FROZEN}:
            self._hosted = self._models.open_role(config.user, "user")

    def users(self, policies: Policies) -> ModelUsers | None:
        """Makes users that models play; None where no model does."""
        if self._config.model is None:
            return None
        if self._hosted is not None:
            hosted = self._hosted
            return ModelUsers(self._config, lambda task: hosted)
        # An actor of its own: one that also plays agents may have no place left for a user.
        make = policies.frozen_actor if self._config.model == FROZEN else policies.actor
        actor = make(temperature=self._config.temperature)
        return ModelUsers(self._config, policy_as_user(actor, self._config.model))

    def open(self, model: str, manner: Manner, *, base_url: str | None) -> Endpoint:
        """One more model, within the same budget."""
        return self._models.open(model, manner, base_url=base_url)

    def _memory_scorer(self, config: MemoryConfig) -> MemoryScorer:
        return MemoryScorer(
            config,
            answerer=ModelAnswerer(self._models, config.answerer)
            if config.answerer.model
            else None,
            judge=ModelContentJudge(self._models, config.judge) if config.judge.model else None,
        )

    @property
    def spent(self) -> tuple[int, float]:
        """Tokens and money so far."""
        return self._models.budget.tokens, self._models.budget.money

    def open_ledger(self, run_dir: Path) -> None:
        """Count what the run has spent before, and write down what it spends from now on."""
        self._models.budget.open_ledger(run_dir / LEDGER)

    def covers_another_step(self) -> bool:
        """Whether the budget is enough for a step as dear as the dearest so far."""
        return self._models.budget.covers_another()

    def end(self) -> None:
        """Raise what ends a run whose budget is spent."""
        raise BudgetError(self._models.budget.verdict())

    def close(self) -> None:
        """Close every connection."""
        self._models.close()


def require_cast(config: GRPOConfig) -> None:
    """Refuse a user that has no model though it needs one, or one that has no use for it."""
    strategy, model = config.rollout.user, config.user.model
    require_user(strategy)
    if (strategy in STRATEGIES) == (model is not None):
        return
    if model is None:
        raise ConfigError(
            f"rollout.user={strategy!r} is played by a model; name it with "
            "user.model=PROVIDER/MODEL, policy or frozen"
        )
    raise ConfigError(
        f"user.model={model!r} has no part: rollout.user is {strategy!r}; choose one of "
        f"{', '.join(sorted(STRATEGIES))}, or leave user.model out"
    )
