"""AReaL's rollout workflow: one episode, token in and token out, rendered by our own chat."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

import uuid
from collections.abc import Mapping
from typing import Any

import torch
from areal import workflow_context
from areal.api import InferenceEngine, ModelRequest, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters
from areal.utils import stats_tracker
from areal.utils.hf_utils import load_hf_tokenizer

from grpo_cl.advantages import has_variance
from grpo_cl.engines.areal.tape import Tape
from grpo_cl.engines.session import Session, Turn, unnamed
from grpo_cl.engines.venue import Outcome, episode_config, shared_venue
from grpo_cl.policy.actor import MIN_REPLY
from grpo_cl.policy.chat import chat_for
from grpo_cl.types import Task


def is_telling(group: Mapping[str, Any]) -> bool:
    """Whether the episodes of a group differ in reward, for ``dynamic_filter_fn``."""
    return has_variance(group["rewards"].flatten().tolist())


class GrpoClWorkflow(RolloutWorkflow):
    """Plays the task of a row with AReaL's engine as the policy.

    ``settings`` are those of ``episode_config``; ``tokenizer`` is one, or where to load it.
    """

    def __init__(
        self, settings: Mapping[str, Any], gconfig: GenerationHyperparameters, tokenizer: Any
    ) -> None:
        self._venue = shared_venue(episode_config(settings))
        if isinstance(tokenizer, str):
            tokenizer = load_hf_tokenizer(tokenizer)
        self._tokenizer = tokenizer
        self._chat = chat_for(tokenizer, self._venue.config.sampling.dialect)
        self._gconfig = gconfig.new(n_samples=1, stop_token_ids=list(self._chat.stop_ids))

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> dict[str, torch.Tensor] | None:
        """The episode as tensors; None where a failing endpoint ended it: it is left out."""
        session = Session(self._venue, Task.model_validate_json(data["task"]))
        tape = Tape()
        try:
            turn = await session.open()
            has_ended = await self._play(engine, session, turn, tape)
            outcome = await session.finish(tape.trace(is_truncated=not has_ended))
        finally:
            await session.close()
        reward = outcome.learned if tape.turns else None
        self._log(outcome, tape, is_lost=reward is None)
        return None if reward is None else _tensors(tape, reward)

    async def _play(
        self, engine: InferenceEngine, session: Session, turn: Turn, tape: Tape
    ) -> bool:
        """Write replies until the episode or the context ends; whether the last one ended."""
        name = uuid.uuid4().hex  # one name keeps an episode at the server that has its cache
        has_ended = True
        unread = self._chat.opening(session.scene, turn.messages)
        while not turn.done:
            tape.read(unread)
            if self._gconfig.max_tokens - len(tape.ids) < MIN_REPLY:
                break
            request = ModelRequest(
                rid=name,
                input_ids=list(tape.ids),
                gconfig=self._gconfig,
                tokenizer=self._tokenizer,
            )
            reply = await engine.agenerate(request)
            tape.write(reply.output_tokens, reply.output_logprobs, reply.output_versions)
            has_ended = bool(reply.output_tokens) and (
                reply.output_tokens[-1] in self._chat.stop_ids
            )
            turn = await session.step(unnamed(self._chat.read(reply.output_tokens)))
            if not turn.done:
                unread = self._chat.continuation(turn.messages, ended=has_ended)
        return has_ended

    def _log(self, outcome: Outcome, tape: Tape, *, is_lost: bool) -> None:
        told = {"lost": float(is_lost), "turns": float(len(tape.turns))}
        if not is_lost:
            told["reward"] = outcome.reward.value
            told[f"reward_{outcome.trajectory.task.domain}"] = outcome.reward.value
        stats_tracker.get(workflow_context.stat_scope()).scalar(**told)


def _tensors(tape: Tape, reward: float) -> dict[str, torch.Tensor]:
    """The tape as AReaL's trainer takes it, one row."""
    rows = {
        "input_ids": torch.tensor(tape.ids, dtype=torch.int32),
        "attention_mask": torch.ones(len(tape.ids), dtype=torch.bool),
        "loss_mask": torch.tensor(tape.mask, dtype=torch.int32),
        "logprobs": torch.tensor(tape.logprobs, dtype=torch.float32),
        "versions": torch.tensor(tape.versions, dtype=torch.int32),
        "rewards": torch.tensor(reward, dtype=torch.float32),
    }
    return {name: row.unsqueeze(0) for name, row in rows.items()}
