"""Rollout workflow for AReaL: one episode on token ids, rendered with ``policy.chat``."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

import uuid
from collections.abc import Mapping
from typing import Any

import torch
from areal import workflow_context
from areal.api import InferenceEngine, ModelRequest, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters
from areal.utils import stats_tracker
from areal.utils.hf_utils import load_hf_tokenizer

from grpo_cl.integrations.areal.token_recorder import TokenRecorder
from grpo_cl.integrations.episode_context import Outcome, episode_config, shared_context
from grpo_cl.integrations.session import Session, Turn, without_call_ids
from grpo_cl.policy.chat.chat import chat_for
from grpo_cl.rewards.advantages import has_variance
from grpo_cl.rollout import MIN_REPLY
from grpo_cl.types import Task


def has_reward_variance(group: Mapping[str, Any]) -> bool:
    """Whether the rewards of a group differ; AReaL's ``dynamic_filter_fn``."""
    return has_variance(group["rewards"].flatten().tolist())


class GrpoClWorkflow(RolloutWorkflow):
    """Runs one episode of a row's task with replies from AReaL's inference engine.

    ``settings`` are options of ``episode_config``; ``tokenizer`` is a tokenizer or its path.
    """

    def __init__(
        self, settings: Mapping[str, Any], gconfig: GenerationHyperparameters, tokenizer: Any
    ) -> None:
        self._context = shared_context(episode_config(settings))
        if isinstance(tokenizer, str):
            tokenizer = load_hf_tokenizer(tokenizer)
        self._tokenizer = tokenizer
        self._chat = chat_for(tokenizer, self._context.config.sampling.dialect)
        self._gconfig = gconfig.new(n_samples=1, stop_token_ids=list(self._chat.stop_ids))

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> dict[str, torch.Tensor] | None:
        """The episode as tensors, or None to drop it because an endpoint failure ended it."""
        session = Session(self._context, Task.model_validate_json(data["task"]))
        tokens = TokenRecorder()
        try:
            turn = await session.open()
            is_complete = await self._play(engine, session, turn, tokens)
            outcome = await session.finish(tokens.trace(is_truncated=not is_complete))
        finally:
            await session.close()
        reward = outcome.training_reward if tokens.turns else None
        self._log(outcome, tokens, is_failed=reward is None)
        return None if reward is None else _tensors(tokens, reward)

    async def _play(
        self, engine: InferenceEngine, session: Session, turn: Turn, tokens: TokenRecorder
    ) -> bool:
        """Sample replies until the episode ends or the context is full.

        Returns whether the last reply ended with a stop token.
        """
        request_id = uuid.uuid4().hex  # same id: the server that has the KV cache answers
        is_complete = True
        new_ids = self._chat.opening(session.scene, turn.messages)
        while not turn.done:
            tokens.add_prompt(new_ids)
            if self._gconfig.max_tokens - len(tokens.ids) < MIN_REPLY:
                break
            request = ModelRequest(
                rid=request_id,
                input_ids=list(tokens.ids),
                gconfig=self._gconfig,
                tokenizer=self._tokenizer,
            )
            reply = await engine.agenerate(request)
            tokens.add_completion(reply.output_tokens, reply.output_logprobs, reply.output_versions)
            is_complete = bool(reply.output_tokens) and (
                reply.output_tokens[-1] in self._chat.stop_ids
            )
            turn = await session.step(without_call_ids(self._chat.parse_reply(reply.output_tokens)))
            if not turn.done:
                new_ids = self._chat.continuation(turn.messages, ended=is_complete)
        return is_complete

    def _log(self, outcome: Outcome, tokens: TokenRecorder, *, is_failed: bool) -> None:
        stats = {"lost": float(is_failed), "turns": float(len(tokens.turns))}
        if not is_failed:
            stats["reward"] = outcome.reward.value
            stats[f"reward_{outcome.trajectory.task.domain}"] = outcome.reward.value
        stats_tracker.get(workflow_context.stat_scope()).scalar(**stats)


def _tensors(tokens: TokenRecorder, reward: float) -> dict[str, torch.Tensor]:
    """The episode as a batch of one row for AReaL's trainer."""
    columns = {
        "input_ids": torch.tensor(tokens.ids, dtype=torch.int32),
        "attention_mask": torch.ones(len(tokens.ids), dtype=torch.bool),
        "loss_mask": torch.tensor(tokens.mask, dtype=torch.int32),
        "logprobs": torch.tensor(tokens.logprobs, dtype=torch.float32),
        "versions": torch.tensor(tokens.versions, dtype=torch.int32),
        "rewards": torch.tensor(reward, dtype=torch.float32),
    }
    return {name: column.unsqueeze(0) for name, column in columns.items()}
