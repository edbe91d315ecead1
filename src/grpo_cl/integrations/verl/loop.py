"""The verl agent loop ``grpo_cl``: one episode of a row's task.

Prompt, full tool schemas and tool results are rendered here with the model's chat template; verl's
own tools, which truncate schemas and results, are not used.
"""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from grpo_cl.integrations.episode_context import (
    EpisodeContext,
    Outcome,
    episode_config,
    shared_context,
)
from grpo_cl.integrations.verl.server_queue import ServerRequestQueue, TokenLimits
from grpo_cl.policy.chat.chat import chat_for
from grpo_cl.policy.inference.policy_agent import ChatFormat, PolicyActor
from grpo_cl.rollout import play
from grpo_cl.types import Task


@lru_cache(maxsize=4)
def _chat(tokenizer: Any, dialect: str) -> ChatFormat:
    """Cached: verl creates a loop per episode, and analysing a chat template is slow."""
    return chat_for(tokenizer, dialect)


class GrpoClLoop(AgentLoopBase):
    """Runs an episode as a local run does, with replies from verl's server; returns the reward too.

    verl finds the class through ``agent_loop_config_path``. It is not registered with verl's
    decorator, which would replace the entry of that file, with its settings, on the first import.
    """

    def __init__(
        self, *args: Any, settings: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._settings = dict(settings or {})

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Run one episode; ``row`` is a row of ``grpo-cl prepare-data``."""
        started = time.monotonic()
        info = row["extra_info"]
        task = Task.model_validate_json(info["task"])
        options = {"user_strategy": info["user"], **self._settings}
        context = shared_context(episode_config(options))
        limits = TokenLimits(self.rollout_config.prompt_length, self.rollout_config.response_length)
        queue = ServerRequestQueue(self.server_manager, sampling_params, limits)
        outcome = await self._play(context, task, queue)
        # Without a reply no server reported the step of its weights, and verl needs an integer.
        steps = queue.steps or [row.get("global_steps", 1) - 1]
        return self._output(outcome, queue.generation_s, steps, time.monotonic() - started)

    async def _play(
        self, context: EpisodeContext, task: Task, queue: ServerRequestQueue
    ) -> Outcome:
        config = context.config
        actor = PolicyActor(
            _chat(self.tokenizer, config.sampling.dialect),
            queue.sampler,
            temperature=config.temperature,
            max_new_tokens=config.max_new_tokens,
            top_p=config.sampling.top_p,
        )
        actor.queue = queue
        trajectory = await play(
            actor,
            context.domain(task.domain),
            task,
            config.rollout,
            seed=context.next_seed(task),
            models=context.users,
        )
        return await asyncio.to_thread(context.score, trajectory)

    def _output(
        self, outcome: Outcome, generation_s: float, steps: Sequence[int], duration_s: float
    ) -> AgentLoopOutput:
        trajectory, is_failed = outcome.trajectory, outcome.training_reward is None
        trace = trajectory.tokens
        assert trace is not None
        start = trace.turns[0][0] if trace.turns else 0
        # If an endpoint failed before the first reply there are no tokens, but verl needs at least
        # one prompt and one response token.
        padding = [self.tokenizer.eos_token_id]
        logprobs = iter(trace.logprobs)
        mask = trace.mask[start:] or (False,)
        return AgentLoopOutput(
            prompt_ids=list(trace.ids[:start]) or padding,
            response_ids=list(trace.ids[start:]) or padding,
            # verl cannot drop an episode from its group: the tokens of a failed one are masked.
            response_mask=[int(is_sampled and not is_failed) for is_sampled in mask],
            response_logprobs=[next(logprobs) if is_sampled else 0.0 for is_sampled in mask],
            reward_score=outcome.training_reward or 0.0,
            num_turns=len(trajectory.messages),
            metrics=AgentLoopMetrics(
                generate_sequences=generation_s,
                tool_calls=max(0.0, duration_s - generation_s),
            ),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": min(steps),
                "max_global_steps": max(steps),
                "reward_extra_info": {"success": outcome.reward.value, "lost": float(is_failed)},
            },
        )
