"""Policies of Mem-α's trainer: the protocol of an own policy, and its adapter to the trainer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol, runtime_checkable

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.mem_alpha.agent import chunk_prompt, parse_reply
from grpo_cl.rewards.advantages import GroupAdvantages
from grpo_cl.rollout import Scene
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.trainer.evaluate import episode_seed
from grpo_cl.types import Message, TokenTrace, Trajectory, TrajectoryGroup, number_calls

UPDATES = "updates.json"


class Completion(NamedTuple):
    """A sampled response."""

    text: str
    """Tool calls as JSON objects, or any text for none."""
    ids: Sequence[int]
    """The sampled tokens, in the vocabulary of the policy; at least one."""
    log_probs: Sequence[float]
    """The log-prob of each token at the temperature it was sampled with."""


@runtime_checkable
class PolicyModel(Protocol):
    """A policy that can be trained: it samples, computes log-probs with gradients, and updates.

    ``TorchPolicy`` implements all but ``generate`` and ``get_log_prob`` for a PyTorch module.
    """

    def generate(self, prompt: str, *, temperature: float, seed: int) -> Completion:
        """A response, which depends on the weights and ``seed`` only; temperature 0 is greedy."""
        ...

    def get_log_prob(self, prompt: str, completion: Completion) -> Any:
        """A tensor with the log-prob of each token under the current weights, with a gradient."""
        ...

    def update(self, loss: Any, *, learning_rate: float) -> Mapping[str, float]:
        """One optimizer step on a loss made of ``get_log_prob``; returns metrics."""
        ...

    def save_state(self, folder: Path) -> None:
        """Write weights and optimizer state into an existing folder."""
        ...

    def load_state(self, folder: Path) -> None:
        """Restore what ``save_state`` wrote."""
        ...


class CompletionTrace(TokenTrace):
    """The tokens of all completions of an episode, each with its own prompt."""

    prompts: tuple[str, ...]
    responses: tuple[str, ...]

    def completions(self) -> list[tuple[str, Completion]]:
        """The prompt and the completion of each turn."""
        return [
            (prompt, Completion(text, self.ids[start:end], self.logprobs[start:end]))
            for prompt, text, (start, end) in zip(
                self.prompts, self.responses, self.turns, strict=True
            )
        ]


class PromptActor:
    """An own policy as an actor: one prompt and one completion per chunk."""

    def __init__(self, model: PolicyModel, temperature: float) -> None:
        self.model = model
        self.temperature = temperature

    def join(self, scene: Scene) -> "PromptAgent":
        """The agent of one episode."""
        return PromptAgent(self, scene.seed)


class PromptAgent:
    """An own policy in one episode."""

    def __init__(self, actor: PromptActor, seed: int) -> None:
        self._actor = actor
        self._seed = seed
        self._turns: list[tuple[str, Completion]] = []
        self._num_calls = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        """The reply to the last message, which has a view of the memory and a chunk."""
        prompt = chunk_prompt(messages[-1].content or "")
        seed = Random(f"{self._seed}/{len(self._turns)}").getrandbits(63)
        actor = self._actor
        completion = actor.model.generate(prompt, temperature=actor.temperature, seed=seed)
        _require_tokens(completion)
        self._turns.append((prompt, completion))
        content, parsed = parse_reply(completion.text)
        calls = number_calls(parsed, self._num_calls)
        self._num_calls += len(calls)
        return Message(role="assistant", content=content, tool_calls=calls or None)

    def trace(self) -> CompletionTrace:
        """The tokens of the completions."""
        ids: list[int] = []
        turns: list[tuple[int, int]] = []
        for _, completion in self._turns:
            turns.append((len(ids), len(ids) + len(completion.ids)))
            ids += completion.ids
        return CompletionTrace(
            ids=tuple(ids),
            mask=(True,) * len(ids),
            logprobs=tuple(
                value for _, completion in self._turns for value in completion.log_probs
            ),
            turns=tuple(turns),
            prompts=tuple(prompt for prompt, _ in self._turns),
            responses=tuple(completion.text for _, completion in self._turns),
        )


class PromptPolicy:
    """An own policy with the interface that the training loop uses (``trainer.Policy``)."""

    is_main = True
    is_language_model = False
    world_size = 1

    def __init__(self, model: PolicyModel, config: GRPOConfig) -> None:
        _require_supported(config)
        self._own = model
        self._config = config
        self._updates = 0

    def actor(self, *, temperature: float) -> PromptActor:
        """An actor that samples with the current weights."""
        return PromptActor(self._own, temperature)

    def frozen_actor(self, *, temperature: float) -> PromptActor:
        """Refused: an own policy has one set of weights."""
        raise self._refusal("a frozen copy of its weights")

    @property
    def model(self) -> Any:
        """Refused: algorithms need a language model."""
        raise self._refusal("a language model")

    @property
    def learner(self) -> Any:
        """Refused: algorithms need a language model."""
        raise self._refusal("the learner of a language model")

    def loss(self, groups: Sequence[TrajectoryGroup], advantages: Sequence[GroupAdvantages]) -> Any:
        """The loss of groups with its graph, without a step."""
        return self._loss_result(groups, advantages)[0]

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        advantages: Sequence[GroupAdvantages],
        *,
        auxiliary: Callable[[Any], Any] | None = None,
        transform: Callable[[Sequence[tuple[str, Any]]], None] | None = None,
    ) -> dict[str, float]:
        """Update the weights on groups and return metrics; without samples no step is made."""
        del auxiliary, transform  # of algorithms that need a language model
        metrics: dict[str, float] = {"loss": 0.0, "grad_norm": 0.0}
        for _ in range(self._config.loss.updates_per_batch if groups else 0):
            loss, numbers = self._loss_result(groups, advantages)
            found = self._own.update(loss, learning_rate=self._config.learning_rate)
            metrics |= {**numbers, **found}
            self._updates += 1
        return metrics

    def transcript(self, trajectory: Trajectory) -> list[tuple[str, str]]:
        """The exact prompt and response of each turn."""
        trace = trajectory.tokens
        if not isinstance(trace, CompletionTrace):
            return []
        return list(zip(trace.prompts, trace.responses, strict=True))

    def sync_weights(self) -> None:
        """Nothing: the policy samples with its own weights."""

    def full_parameters(self) -> AbstractContextManager[None]:
        """Nothing: the weights are not sharded."""
        return nullcontext()

    def map_over_ranks(
        self, count: int, run: Callable[[Sequence[int]], Sequence[Any]]
    ) -> list[Any]:
        """``run`` over the indices below ``count``."""
        return list(run(range(count)))

    def any_rank(self, *, flag: bool) -> bool:
        """The flag: there is one rank."""
        return flag

    def drift(self, domain: str, traces: Sequence[TokenTrace]) -> None:
        """None: it is not measured."""

    def remember(self, domain: str) -> None:
        """Nothing: drift is not measured."""

    def save(self, folder: Path) -> None:
        """Write the state of the policy."""
        folder.mkdir(parents=True, exist_ok=True)
        self._own.save_state(folder)

    def save_state(self, folder: Path) -> None:
        """Write everything an exact resume needs."""
        self._own.save_state(folder)
        write_json(folder / UPDATES, {"updates": self._updates})

    def load_state(self, folder: Path) -> None:
        """Restore what ``save_state`` wrote."""
        self._own.load_state(folder)
        self._updates = read_json(folder / UPDATES)["updates"]

    def _loss_result(
        self, groups: Sequence[TrajectoryGroup], advantages: Sequence[GroupAdvantages]
    ) -> tuple[Any, dict[str, float]]:
        from grpo_cl.policy.learner.completion_loss import (  # noqa: PLC0415  # torch is slow
            CompletionSample,
            completion_loss,
            seeded,
            zero_loss,
        )

        rows = _rows(groups, advantages)
        if not rows:
            return zero_loss(), {}
        with seeded(episode_seed(self._config.seed, "update", self._updates)):
            samples = [
                CompletionSample(
                    self._own.get_log_prob(prompt, completion), completion.log_probs, advantage
                )
                for prompt, completion, advantage in rows
            ]
            result = completion_loss(samples, self._config)
        return result.loss, {"loss": result.loss.item(), **result.metrics.summary()}

    def _refusal(self, needed: str) -> ConfigError:
        return ConfigError(
            f"{type(self._own).__name__} is an own PolicyModel without {needed}; leave "
            "cl_algorithm and user.model out, or train a Hugging Face model"
        )


def _rows(
    groups: Sequence[TrajectoryGroup], advantages: Sequence[GroupAdvantages]
) -> list[tuple[str, Completion, float]]:
    """Prompt, completion and advantage of each turn of each episode."""
    rows: list[tuple[str, Completion, float]] = []
    for group, group_advantages in zip(groups, advantages, strict=True):
        for trajectory, advantage in zip(group.trajectories, group_advantages, strict=True):
            trace = trajectory.tokens
            if advantage is None or not isinstance(trace, CompletionTrace):
                continue
            turns = trace.completions()
            values = [advantage] * len(turns) if isinstance(advantage, int | float) else advantage
            rows += [(*turn, value) for turn, value in zip(turns, values, strict=True)]
    return rows


def _require_supported(config: GRPOConfig) -> None:
    if config.kl_coef:
        raise ConfigError(
            f"kl_coef={config.kl_coef} needs a reference model, and an own PolicyModel has none; "
            "set it to 0 and add a penalty in update, or train a Hugging Face model"
        )


def _require_tokens(completion: Any) -> None:
    if not isinstance(completion, Completion):
        raise ConfigError(
            f"generate returned {type(completion).__name__!r}; return "
            "Completion(text, ids, log_probs), since the tokens and their log-probs are trained on"
        )
    if not completion.ids or len(completion.ids) != len(completion.log_probs):
        raise ConfigError(
            f"generate returned {len(completion.ids)} tokens with {len(completion.log_probs)} "
            "log-probs; return one log-prob per token, and at least one token"
        )
