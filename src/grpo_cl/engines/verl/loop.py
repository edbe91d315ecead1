"""The agent loop ``grpo_cl`` of verl: one episode of the task of a row.

The prompt, the tools with their whole schemas, and what tools answer are rendered here, by the
model's own chat template; verl's tools, their shortened schemas and cut answers are not used.
"""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

import asyncio
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from grpo_cl.engines.venue import Outcome, Venue, episode_config, shared_venue
from grpo_cl.engines.verl.desk import Lengths, ServerDesk
from grpo_cl.policy.actor import ChatFormat, PolicyActor
from grpo_cl.policy.chat import chat_for
from grpo_cl.rollout import play
from grpo_cl.types import Task


@lru_cache(maxsize=4)
def _chat(tokenizer: Any, dialect: str) -> ChatFormat:
    """Kept, since verl makes a loop per episode and a template takes a while to understand."""
    return chat_for(tokenizer, dialect)


class GrpoClLoop(AgentLoopBase):
    """Plays as a local run does, with replies from verl's server; the reward is in the output.

    verl finds it by ``agent_loop_config_path``. It does not register itself: on the first import
    that would replace the entry of that file, and the settings in it.
    """

    def __init__(
        self, *args: Any, settings: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._settings = dict(settings or {})

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """One episode; ``row`` is one of ``grpo-cl prepare-data``."""
        started = time.monotonic()
        info = row["extra_info"]
        task = Task.model_validate_json(info["task"])
        options = {"user_strategy": info["user"], **self._settings}
        venue = shared_venue(episode_config(options))
        lengths = Lengths(self.rollout_config.prompt_length, self.rollout_config.response_length)
        desk = ServerDesk(self.server_manager, sampling_params, lengths)
        outcome = await self._play(venue, task, desk)
        spent = time.monotonic() - started
        return self._output(outcome, desk, spent)

    async def _play(self, venue: Venue, task: Task, desk: ServerDesk) -> Outcome:
        config = venue.config
        actor = PolicyActor(
            _chat(self.tokenizer, config.sampling.dialect),
            desk.sampler,
            temperature=config.temperature,
            max_new_tokens=config.max_new_tokens,
            top_p=config.sampling.top_p,
        )
        actor.desk = desk
        trajectory = await play(
            actor,
            venue.domain(task.domain),
            task,
            config.rollout,
            seed=venue.next_seed(task),
            models=venue.users,
        )
        return await asyncio.to_thread(venue.score, trajectory)

    def _output(self, outcome: Outcome, desk: ServerDesk, spent_s: float) -> AgentLoopOutput:
        trajectory, is_lost = outcome.trajectory, outcome.learned is None
        trace = trajectory.tokens
        assert trace is not None
        start = trace.turns[0][0] if trace.turns else 0
        # Where a user's endpoint failed before the first reply there is nothing to learn from, but
        # verl wants a token of each kind.
        end = [self.tokenizer.eos_token_id]
        drawn = iter(trace.logprobs)
        own = trace.mask[start:] or (False,)
        return AgentLoopOutput(
            prompt_ids=list(trace.ids[:start]) or end,
            response_ids=list(trace.ids[start:]) or end,
            # verl cannot leave an episode out of its group; one that is lost teaches nothing.
            response_mask=[int(written and not is_lost) for written in own],
            response_logprobs=[next(drawn) if written else 0.0 for written in own],
            reward_score=outcome.learned or 0.0,
            num_turns=len(trajectory.messages),
            metrics=AgentLoopMetrics(
                generate_sequences=desk.generating_s,
                tool_calls=max(0.0, spent_s - desk.generating_s),
            ),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": min(desk.steps, default=None),
                "max_global_steps": max(desk.steps, default=None),
                "reward_extra_info": {"success": outcome.reward.value, "lost": float(is_lost)},
            },
        )
