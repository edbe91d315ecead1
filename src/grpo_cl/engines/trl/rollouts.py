"""TRL's ``rollout_func``: episodes played by this project's own loop, token in and token out."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from trl.models.utils import unwrap_model_for_generation

from grpo_cl.engines.venue import Outcome, Venue
from grpo_cl.errors import ConfigError
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.chat import chat_for
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.rewards.oracle import JUDGED_AT_ONCE
from grpo_cl.rollout import run_episodes
from grpo_cl.types import Task, Trajectory

REWARD = "grpo_cl_reward"
"""The name under which rewards go from the rollouts to the reward function."""


class Tokens(NamedTuple):
    """An episode as TRL takes it; all but the prompt have the same length."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    mask: list[int]
    """1 on what the policy wrote."""


def rollout_row(task: Task) -> dict[str, Any]:
    """A row of the dataset: TRL gives the rollouts nothing but the prompt, so it is the name."""
    return {"prompt": [{"role": "user", "content": _name(task)}]}


def reward(prompts: Sequence[Any], **columns: Any) -> list[float | None]:
    """TRL's reward function: what the rollouts found; None leaves an episode out."""
    del prompts
    return columns[REWARD]


def _name(task: Task) -> str:
    return f"{task.domain}/{task.id}"


class Rollouts:
    """Plays one episode per prompt with the weights of TRL's trainer."""

    def __init__(
        self, venue: Venue, tokenizer: PreTrainedTokenizerBase, tasks: Sequence[Task]
    ) -> None:
        self._venue = venue
        self._tasks = {_name(task): task for task in tasks}
        self._tokenizer = tokenizer
        self._chat = chat_for(tokenizer, venue.config.sampling.dialect)
        self.outcomes: list[Outcome] = []
        """Of the last call, in the order of its prompts."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play the tasks that ``prompts`` name, one episode for each time they name it."""
        tasks = [self._task(prompt) for prompt in prompts]
        self.outcomes = self._scored(self._play(tasks, trainer))
        rows = [self._tokens(outcome.trajectory) for outcome in self.outcomes]
        return {
            "prompt_ids": [row.prompt for row in rows],
            "completion_ids": [row.completion for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            REWARD: [outcome.learned for outcome in self.outcomes],
        }

    def _task(self, prompt: Sequence[Mapping[str, str]]) -> Task:
        name = prompt[-1]["content"]
        if name not in self._tasks:
            raise ConfigError(
                f"the prompt {name[:60]!r} names none of the {len(self._tasks)} tasks of these "
                "rollouts; make the dataset's rows with rollout_row"
            )
        return self._tasks[name]

    def _play(self, tasks: Sequence[Task], trainer: Any) -> list[Trajectory]:
        config, rank = self._venue.config, trainer.accelerator.process_index
        # The episodes of one group may be spread over processes and must still differ.
        seeds = [self._venue.next_seed(task) + rank for task in tasks]
        domains = {task.domain: self._venue.domain(task.domain) for task in tasks}
        unwrapped = unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator)
        with unwrapped as module:
            sampler = TransformersSampler(
                module,
                context=self._context(module),
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
                actor, domains, tasks, config.rollout, seeds=seeds, models=self._venue.users
            )

    def _context(self, module: Any) -> int:
        own: int = module.config.get_text_config().max_position_embeddings
        return min(own, self._venue.config.sampling.max_context or own)

    def _scored(self, played: Sequence[Trajectory]) -> list[Outcome]:
        if not self._venue.has_judge:
            return [self._venue.score(trajectory) for trajectory in played]
        with ThreadPoolExecutor(JUDGED_AT_ONCE) as pool:  # a judge takes its time
            return list(pool.map(self._venue.score, played))

    def _tokens(self, trajectory: Trajectory) -> Tokens:
        trace = trajectory.tokens
        if trace is None or not trace.turns:
            # TRL needs a token of each; nothing is learned from one that the policy did not write.
            end = int(str(self._tokenizer.eos_token_id))
            return Tokens([end], [end], [0.0], [0])
        start = trace.turns[0][0]
        drawn = iter(trace.logprobs)
        return Tokens(
            prompt=list(trace.ids[:start]),
            completion=list(trace.ids[start:]),
            logprobs=[next(drawn) if own else 0.0 for own in trace.mask[start:]],
            mask=[int(own) for own in trace.mask[start:]],
        )
