"""TRL's ``rollout_func``: episodes run by this project's episode loop on token ids."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from trl.models.utils import unwrap_model_for_generation

from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import EpisodeContext, Outcome
from grpo_cl.policy.chat.chat import chat_for
from grpo_cl.policy.inference.policy_agent import PolicyActor
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.rewards.oracle import JUDGE_THREADS
from grpo_cl.rollout import run_episodes
from grpo_cl.types import Task, Trajectory

REWARD = "grpo_cl_reward"
"""Column that carries rewards from the rollout function to the reward function."""


class EpisodeTokens(NamedTuple):
    """Token columns of one episode for TRL; all but ``prompt`` have equal length."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    mask: list[int]
    """1 for tokens sampled by the policy."""


def rollout_row(task: Task) -> dict[str, Any]:
    """A dataset row; its prompt is the task's name: ``rollout_func`` gets nothing but prompts."""
    return {"prompt": [{"role": "user", "content": _name(task)}]}


def reward(prompts: Sequence[Any], **columns: Any) -> list[float | None]:
    """TRL's reward function: the rewards of the rollouts; None excludes an episode."""
    del prompts
    return columns[REWARD]


def _name(task: Task) -> str:
    return f"{task.domain}/{task.id}"


class RolloutFunction:
    """Runs one episode per prompt with the weights of TRL's trainer."""

    def __init__(
        self, context: EpisodeContext, tokenizer: PreTrainedTokenizerBase, tasks: Sequence[Task]
    ) -> None:
        self._context = context
        self._tasks = {_name(task): task for task in tasks}
        self._tokenizer = tokenizer
        self._chat = chat_for(tokenizer, context.config.sampling.dialect)
        self.outcomes: list[Outcome] = []
        """Outcomes of the last call, in prompt order."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Run one episode per prompt and return TRL's columns."""
        tasks = [self._task(prompt) for prompt in prompts]
        self.outcomes = self._score(self._play(tasks, trainer))
        rows = [self._tokens(outcome.trajectory) for outcome in self.outcomes]
        return {
            "prompt_ids": [row.prompt for row in rows],
            "completion_ids": [row.completion for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            REWARD: [outcome.training_reward for outcome in self.outcomes],
        }

    def _task(self, prompt: Sequence[Mapping[str, str]]) -> Task:
        name = prompt[-1]["content"]
        if name not in self._tasks:
            raise ConfigError(
                f"the prompt {name[:60]!r} names none of the {len(self._tasks)} tasks of this "
                "rollout function; create the dataset's rows with rollout_row"
            )
        return self._tasks[name]

    def _play(self, tasks: Sequence[Task], trainer: Any) -> list[Trajectory]:
        config, rank = self._context.config, trainer.accelerator.process_index
        # Episodes of one group may run in different processes and need different seeds.
        seeds = [self._context.next_seed(task) + rank for task in tasks]
        domains = {task.domain: self._context.domain(task.domain) for task in tasks}
        unwrapped = unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator)
        with unwrapped as module:
            sampler = TransformersSampler(
                module,
                context=self._context_length(module),
                slots=config.sampling.slots,
                device=trainer.accelerator.device,
            )
            actor = PolicyActor(
                self._chat,
                sampler,
                temperature=trainer.temperature,
                max_new_tokens=config.max_new_tokens,
                top_p=trainer.top_p,
            )
            return run_episodes(
                actor, domains, tasks, config.rollout, seeds=seeds, models=self._context.users
            )

    def _context_length(self, module: Any) -> int:
        model_length: int = module.config.get_text_config().max_position_embeddings
        return min(model_length, self._context.config.sampling.max_context or model_length)

    def _score(self, trajectories: Sequence[Trajectory]) -> list[Outcome]:
        if not self._context.has_judge:
            return [self._context.score(trajectory) for trajectory in trajectories]
        with ThreadPoolExecutor(JUDGE_THREADS) as pool:  # judge calls are slow
            return list(pool.map(self._context.score, trajectories))

    def _tokens(self, trajectory: Trajectory) -> EpisodeTokens:
        trace = trajectory.tokens
        if trace is None or not trace.turns:
            # TRL needs at least one token in each column; the mask excludes it from the loss.
            end = int(str(self._tokenizer.eos_token_id))
            return EpisodeTokens([end], [end], [0.0], [0])
        start = trace.turns[0][0]
        logprobs = iter(trace.logprobs)
        return EpisodeTokens(
            prompt=list(trace.ids[:start]),
            completion=list(trace.ids[start:]),
            logprobs=[next(logprobs) if is_sampled else 0.0 for is_sampled in trace.mask[start:]],
            mask=[int(is_sampled) for is_sampled in trace.mask[start:]],
        )
