"""A Hugging Face model, or the embedded one, as a policy of Mem-α's trainer."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_cl.errors import ConfigError
from grpo_cl.integrations.mem_alpha.policy_model import Completion
from grpo_cl.integrations.mem_alpha.settings import MemorySettings
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, Task, Trajectory, UserScenario

if TYPE_CHECKING:
    from grpo_cl.policy.runtime import PolicyRuntime


class HuggingFacePolicy:
    """A language model with the interface of ``PolicyModel``.

    Training does not call ``generate`` chunk by chunk: it samples the episodes of a batch together,
    each in one growing context. The weights are loaded on first use.
    """

    def __init__(
        self, model_name_or_path: str | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        name = {} if model_name_or_path is None else {"model_name_or_path": model_name_or_path}
        self.settings = MemorySettings.read({**(config or {}), **name})

    @cached_property
    def runtime(self) -> "PolicyRuntime":
        """The model, its sampler and its learner."""
        from grpo_cl.policy.runtime import PolicyRuntime  # noqa: PLC0415  # torch is slow to import

        return PolicyRuntime(self.settings.run({}, {}))

    def configure(self, settings: MemorySettings) -> None:
        """Take the settings of a trainer, except for the name of the model."""
        name = {"model_name_or_path": self.settings.model_name_or_path}
        settings = settings.model_copy(update=name)
        if "runtime" in self.__dict__ and settings != self.settings:
            raise ConfigError(
                f"the policy {settings.model_name_or_path!r} is loaded with other settings than "
                "the trainer's; give both the same config, or make the trainer before its first use"
            )
        self.settings = settings

    def reset(self, settings: MemorySettings) -> None:
        """Load the initial weights again, with other settings, on the next use."""
        self.__dict__.pop("runtime", None)
        self.settings = settings

    def generate(self, prompt: str, *, temperature: float = 1.0, seed: int = 0) -> Completion:
        """A response to ``prompt`` as a single user message, with its exact tokens."""
        self.runtime.sync_weights()
        actor = self.runtime.actor(temperature=temperature)
        agent = actor.join(_scene(seed))
        turn = agent.act([Message(role="user", content=prompt)])
        with ThreadPoolExecutor(1) as pool:  # a notebook runs its own event loop in this thread
            pool.submit(asyncio.run, turn).result()
        trace = agent.trace()
        ((start, end),) = trace.turns
        return Completion(self._decode(trace.ids[start:end]), trace.ids[start:end], trace.logprobs)

    def get_log_prob(self, prompt: str, completion: Completion) -> Any:
        """A tensor with the log-prob of each token under the current weights, with a gradient."""
        message = Message(role="user", content=prompt)
        opening = self.runtime.model.chat.opening(_scene(0), [message])
        return self.runtime.completion_logprobs(opening, completion.ids)

    def update(self, loss: Any, *, learning_rate: float | None = None) -> Mapping[str, float]:
        """One optimizer step on a loss made of ``get_log_prob``; returns metrics."""
        configured = self.settings.learning_rate
        if learning_rate not in (None, configured):
            raise ConfigError(
                f"learning_rate={learning_rate}, and the policy is configured with {configured}; "
                "give it in config"
            )
        step = self.runtime.learner.optimizer_step([], (), auxiliary=lambda _: loss)
        assert step is not None
        return step._asdict()

    def transcript(self, trajectory: Trajectory) -> list[tuple[str, str]]:
        """The observation and the decoded response of each turn.

        The exact tokens, prompts included, are in ``trajectory.tokens``.
        """
        trace = trajectory.tokens
        if trace is None:
            return []
        prompts = [
            message.content or "" for message in trajectory.messages if message.role == "user"
        ]
        responses = [self._decode(trace.ids[start:end]) for start, end in trace.turns]
        return list(zip(prompts, responses, strict=False))  # the last message ends the episode

    def save_state(self, folder: Path) -> None:
        """Write weights and optimizer state into an existing folder."""
        self.runtime.save_state(folder)

    def load_state(self, folder: Path) -> None:
        """Restore what ``save_state`` wrote."""
        self.runtime.load_state(folder)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.runtime.model.tokenizer.decode(list(ids)))


def _scene(seed: int) -> Scene:
    task = Task(id="prompt", domain="memory", user_scenario=UserScenario(instructions=""))
    return Scene(task=task, system="", tools=(), solo=False, seed=seed)
