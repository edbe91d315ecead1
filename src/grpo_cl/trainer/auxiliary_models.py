"""Models of a run that are not trained: user simulator, judges, answerers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from grpo_cl.config import GRPOConfig
from grpo_cl.envs.base import Domain
from grpo_cl.errors import BudgetError, ConfigError
from grpo_cl.llm import GenerationParams, HostedModel, ModelPool, ModelUse
from grpo_cl.rewards import RewardOracle
from grpo_cl.rewards.judge import LLMJudge
from grpo_cl.rollout import Actor
from grpo_cl.rollout.llm_actor import policy_as_user
from grpo_cl.runs.layout import RunDir
from grpo_cl.users import STRATEGIES, LLMUserFactory, require_user

POLICY, FROZEN = "policy", "frozen"
"""User models that are no endpoints: the current policy, and the policy the run started from."""


class Policies(Protocol):
    """Makes actors of the trained policy."""

    def actor(self, *, temperature: float) -> Actor:
        """An actor that samples with the current weights."""
        ...

    def frozen_actor(self, *, temperature: float) -> Actor:
        """An actor that samples with the weights the run started from."""
        ...


class AuxiliaryModels:
    """The models of a run that are not trained, within one budget."""

    def __init__(self, config: GRPOConfig) -> None:
        require_models(config)
        self._config = config.user
        self._reward_config = config.reward
        self._models = ModelPool(config.models)
        self.judge = LLMJudge(self._models, config.judge) if config.judge.model else None
        self._hosted: HostedModel | None = None
        if config.user.model not in {None, POLICY, FROZEN}:
            self._hosted = self._models.open_role(config.user, "user")

    def oracle(self, domains: Mapping[str, Domain]) -> RewardOracle:
        """The reward oracle of the run, with its judges."""
        return RewardOracle(
            domains, basis=self._reward_config.basis, judge=self.judge, models=self._models
        )

    def users(self, policies: Policies) -> LLMUserFactory | None:
        """Makes model-driven user simulators; None where the user is not a model."""
        if self._config.model is None:
            return None
        if self._hosted is not None:
            hosted = self._hosted
            return LLMUserFactory(self._config, lambda task: hosted)
        # A separate actor: the agents' actor may have no free slot for the user's requests.
        make = policies.frozen_actor if self._config.model == FROZEN else policies.actor
        actor = make(temperature=self._config.temperature)
        return LLMUserFactory(self._config, policy_as_user(actor, self._config.model))

    def open(self, model: str, params: GenerationParams, *, base_url: str | None) -> HostedModel:
        """One more model, within the same budget."""
        return self._models.open(model, params, base_url=base_url)

    @property
    def use(self) -> ModelUse:
        """Calls of the models and waiting times."""
        return self._models.use

    @property
    def spent(self) -> tuple[int, float]:
        """Tokens and money so far."""
        return self._models.budget.tokens, self._models.budget.money

    def open_ledger(self, run_dir: Path) -> None:
        """Add what the run spent before a resume, and record further spending."""
        self._models.budget.open_journal(RunDir(run_dir).spending)

    def covers_another_step(self) -> bool:
        """Whether the budget covers a step as expensive as the most expensive so far."""
        return self._models.budget.covers_next_step()

    def end(self) -> None:
        """Raise ``BudgetError``: the budget is spent."""
        raise BudgetError(self._models.budget.exhausted_message())

    def close(self) -> None:
        """Close every connection."""
        self._models.close()


def require_models(config: GRPOConfig) -> None:
    """Refuse a model-driven user without a model, and a model that no user needs."""
    strategy, model = config.rollout.user, config.user.model
    require_user(strategy)
    if (strategy in STRATEGIES) == (model is not None):
        return
    if model is None:
        raise ConfigError(
            f"rollout.user={strategy!r} is driven by a model; name it with "
            "user.model=PROVIDER/MODEL, policy or frozen"
        )
    raise ConfigError(
        f"user.model={model!r} is unused: rollout.user is {strategy!r}; choose one of "
        f"{', '.join(sorted(STRATEGIES))}, or leave user.model out"
    )
