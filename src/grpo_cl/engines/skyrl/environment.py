"""The environment ``grpo_cl`` of ``skyrl_gym``: one episode of any domain."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

from collections.abc import Mapping
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import registry

from grpo_cl.engines.session import SyncSession
from grpo_cl.engines.venue import Outcome, episode_config, shared_venue
from grpo_cl.engines.wording import ChatMessage, Wording
from grpo_cl.rows import ENVIRONMENT
from grpo_cl.types import Task

LOST = "lost"
"""The metric that is 1 for an episode that a failing endpoint ended."""


def register() -> None:
    """Make ``grpo_cl`` known to ``skyrl_gym`` in this process."""
    if ENVIRONMENT not in registry:
        skyrl_gym.register(id=ENVIRONMENT, entry_point=f"{__name__}:{GrpoClEnv.__name__}")


class GrpoClEnv(BaseTextEnv):
    """One episode of the task of a row; the same world, user and reward as in a local run."""

    def __init__(
        self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        extras = extras or {}
        info = extras["extra_info"]
        options = {"user_strategy": info["user"], "max_turns": extras.get("max_turns")}
        options |= dict(env_config or {})
        self._wording = Wording(options.pop("dialect", "hermes"))
        task = Task.model_validate_json(info["task"])
        self._domain = task.domain
        self._session = SyncSession(shared_venue(episode_config(options)), task)
        self._is_over = False
        self._outcome: Outcome | None = None

    def init(self, prompt: list[ChatMessage]) -> tuple[list[ChatMessage], dict[str, Any]]:
        """The conversation before the first reply, with tools and the user's first words.

        The row's own prompt has neither and is what SkyRL measures lengths by; it is not read.
        """
        del prompt
        turn = self._session.open()
        self._is_over = turn.done
        return self._wording.opening(self._session.scene, turn.messages), {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take a reply; the reward comes with the last."""
        self.turns += 1
        said: list[ChatMessage] = []
        if not self._is_over:  # a user may have gone before the first reply, which SkyRL asks for
            turn = self._session.step(self._wording.reply(action))
            self._is_over = turn.done
            said = [] if turn.done else self._wording.observation(turn.messages)
        return BaseTextEnvStepOutput(
            observations=said,
            reward=self._learned() if self._is_over else 0.0,
            done=self._is_over,
            metadata={},
        )

    def get_metrics(self) -> dict[str, float]:
        """Numbers of the episode; SkyRL asks at the end, whoever ended it."""
        outcome = self._finished()
        lost = outcome.learned is None
        found = {LOST: float(lost), "turns": float(self.turns)}
        if not lost:
            found |= {
                "reward": outcome.reward.value,
                f"reward/{self._domain}": outcome.reward.value,
            }
            if outcome.reward.tool_accuracy is not None:
                found["tool_accuracy"] = outcome.reward.tool_accuracy
        return found

    def close(self) -> None:
        """Drop the episode."""
        self._session.close()

    def _learned(self) -> float:
        return self._finished().learned or 0.0

    def _finished(self) -> Outcome:
        if self._outcome is None:
            self._outcome = self._session.finish()
        return self._outcome
