"""The ``skyrl_gym`` environment ``grpo_cl``: one episode of any domain."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

from collections.abc import Mapping
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import registry

from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import Outcome, episode_config, shared_context
from grpo_cl.integrations.rows import ENVIRONMENT
from grpo_cl.integrations.session import SyncSession
from grpo_cl.integrations.text_chat import ChatMessage, TextChat
from grpo_cl.policy.chat.dialects import DIALECTS
from grpo_cl.types import Task

FAILED_METRIC = "lost"
"""Name of the metric that is 1 if an endpoint failure ended the episode."""


def register() -> None:
    """Register ``grpo_cl`` with ``skyrl_gym`` in this process."""
    if ENVIRONMENT not in registry:
        skyrl_gym.register(id=ENVIRONMENT, entry_point=f"{__name__}:{GrpoClEnv.__name__}")


class GrpoClEnv(BaseTextEnv):
    """One episode of a row's task with the environment, user and reward of a local run."""

    def __init__(
        self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        extras = extras or {}
        info = extras["extra_info"]
        options = {"user_strategy": info["user"], "max_turns": extras.get("max_turns")}
        options |= dict(env_config or {})
        self._chat = TextChat(_dialect_of(options))
        task = Task.model_validate_json(info["task"])
        self._domain = task.domain
        self._session = SyncSession(shared_context(episode_config(options)), task)
        self._is_over = False
        self._outcome: Outcome | None = None

    def init(self, prompt: list[ChatMessage]) -> tuple[list[ChatMessage], dict[str, Any]]:
        """The messages before the first reply, with tools and the user's first message.

        The row's prompt, which SkyRL filters rows by, has neither and is ignored.
        """
        del prompt
        turn = self._session.open()
        self._is_over = turn.done
        return self._chat.opening(self._session.scene, turn.messages), {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Continue with a reply; the reward is returned with the last one."""
        self.turns += 1
        observations: list[ChatMessage] = []
        if not self._is_over:  # the user may stop first; SkyRL still samples a reply
            turn = self._session.step(self._chat.reply(action))
            self._is_over = turn.done
            observations = [] if turn.done else self._chat.observation(turn.messages)
        return BaseTextEnvStepOutput(
            observations=observations,
            reward=self._training_reward() if self._is_over else 0.0,
            done=self._is_over,
            metadata={},
        )

    def get_metrics(self) -> dict[str, float]:
        """Metrics of the episode, called by SkyRL at its end."""
        outcome = self._finished()
        is_failed = outcome.training_reward is None
        metrics = {FAILED_METRIC: float(is_failed), "turns": float(self.turns)}
        if not is_failed:
            metrics |= {
                "reward": outcome.reward.value,
                f"reward/{self._domain}": outcome.reward.value,
            }
            if outcome.reward.tool_accuracy is not None:
                metrics["tool_accuracy"] = outcome.reward.tool_accuracy
        return metrics

    def close(self) -> None:
        """Cancel the episode."""
        self._session.close()

    def _training_reward(self) -> float:
        return self._finished().training_reward or 0.0

    def _finished(self) -> Outcome:
        if self._outcome is None:
            self._outcome = self._session.finish()
        return self._outcome


def _dialect_of(options: dict[str, Any]) -> str:
    """The option ``dialect``, which is not part of an episode's config."""
    dialect = options.pop("dialect", None)
    if dialect is None:
        raise ConfigError(
            f"the dialect of {ENVIRONMENT!r} is not set: the environment does not know the model. "
            "`python -m grpo_cl.integrations.skyrl` reads it from the model's chat template; with "
            f"another generator, set environment.skyrl_gym.{ENVIRONMENT}.dialect to the model's "
            f"tool-call format, one of {', '.join(DIALECTS)}"
        )
    return dialect
