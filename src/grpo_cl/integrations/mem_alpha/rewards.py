"""Mem-α's rewards: r1 + r2 + β·r3 + γ·r4 for each completion."""

import json
import re
from collections.abc import Sequence
from copy import copy
from math import isfinite
from statistics import fmean
from typing import NamedTuple, Self

from grpo_cl.envs.memory import MemorySystem
from grpo_cl.envs.memory.rewards.content import ContentJudge, RuleContentJudge, Verdicts
from grpo_cl.envs.memory.rewards.episode import ExecutedCall, MemoryEpisode, Step
from grpo_cl.envs.memory.rewards.formulas import Weights, answer_rate, compression, score_steps
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.mem_alpha.agent import LLM, AgentAction
from grpo_cl.integrations.mem_alpha.data import TrainingInstance
from grpo_cl.integrations.mem_alpha.question_answering import QAResult
from grpo_cl.types import ModelCall

JUDGE_PROMPT = """\
Somebody reads a text and changes a long-term memory. A change is valid if what it stores is said in
the text to be true, can be understood without the text, and is no placeholder. Answer with one
word, VALID or INVALID."""

_VERDICT = re.compile(r"\b(IN)?VALID\b")


class EvaluationResult(NamedTuple):
    """The rewards of a conversation; ``steps`` are trained on."""

    r1: float
    """Mean score of the answers."""
    r2: float
    """Fraction of successful calls, mean over completions."""
    r3: float
    """1 minus the length of the memory over that of the conversation."""
    r4: float
    """Fraction of calls with valid content, mean over completions."""
    steps: tuple[float, ...]
    """The reward of each completion."""
    successful_actions: int = 0
    """Calls that succeeded."""
    total_actions: int = 0
    """Calls that were attempted, malformed ones included."""
    model_calls: tuple[ModelCall, ...] = ()
    """Calls of a hosted judge."""

    @property
    def total(self) -> float:
        """The mean reward of the completions, which is what training raises."""
        return fmean(self.steps) if self.steps else 0.0

    @property
    def total_reward(self) -> float:
        """As ``total``."""
        return self.total


class RewardCalculator:
    """Computes the rewards of an agent's actions by the formulas of the ``memory`` domain.

    A subclass may override ``evaluate``; training uses the ``steps`` of its result.
    """

    def __init__(
        self, beta: float = 0.05, gamma: float = 0.1, llm_judge: LLM | None = None
    ) -> None:
        for name, weight in (("beta", beta), ("gamma", gamma)):
            if not (isfinite(weight) and weight >= 0):
                raise ConfigError(f"{name}={weight} is no weight; give a number of at least 0")
        self.llm_judge = llm_judge
        self._weights = Weights(beta, gamma)
        self._judge: ContentJudge = (
            RuleContentJudge() if llm_judge is None else _CallableJudge(llm_judge)
        )

    @property
    def beta(self) -> float:
        """Weight of r3."""
        return self._weights.beta

    @property
    def gamma(self) -> float:
        """Weight of r4."""
        return self._weights.gamma

    @property
    def calls_models(self) -> bool:
        """Whether a model judges the content of calls."""
        return not isinstance(self._judge, RuleContentJudge)

    def configured(self, weights: Weights, judge: ContentJudge | None) -> Self:
        """A copy with these weights, and with ``judge`` unless it has an ``llm_judge``."""
        configured = copy(self)
        configured._weights = weights
        if judge is not None and self.llm_judge is None:
            configured._judge = judge
        return configured

    def evaluate(
        self,
        instance: TrainingInstance,
        actions: Sequence[AgentAction],
        memory: MemorySystem,
        results: Sequence[QAResult],
    ) -> EvaluationResult:
        """The rewards of the actions on ``instance``, one action per chunk."""
        action_ids = [action.chunk_id for action in actions]
        chunk_ids = [chunk.chunk_id for chunk in instance.chunks]
        if action_ids != chunk_ids:
            raise ConfigError(
                f"actions of the chunks {action_ids} do not fit the chunks {chunk_ids} of "
                f"{instance.instance_id!r}; give one action for each, in order"
            )
        episode = MemoryEpisode(instance.record(), memory)
        episode.steps.extend(action.step for action in actions)
        answers = [result.answered for result in results]
        verdicts = self._judge.judge(episode.steps)
        steps = score_steps(episode, verdicts.valid, answers, self._weights)
        return EvaluationResult(
            answer_rate(answers),
            fmean(step.calls for step in steps),
            compression(memory, episode.instance),
            fmean(step.content for step in steps),
            tuple(step.total(self._weights) for step in steps),
            sum(action.num_succeeded for action in actions),
            sum(action.step.num_attempts for action in actions),
            verdicts.calls,
        )

    calculate = evaluate


class _CallableJudge:
    """A content judge over a function from prompt to completion."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def judge(self, steps: Sequence[Step]) -> Verdicts:
        """A verdict for each call of each step; failed calls are invalid without a model call."""
        return Verdicts(
            [
                [call.outcome.ok and self._is_valid(call, step) for call in step.calls]
                for step in steps
            ]
        )

    def _is_valid(self, call: ExecutedCall, step: Step) -> bool:
        change = f"{call.outcome.tool}({json.dumps(call.arguments, ensure_ascii=False)})"
        reply = self._llm(f"{JUDGE_PROMPT}\n\nText:\n{step.chunk.content}\n\nChange: {change}\n")
        verdict = _VERDICT.search(reply.upper())
        return verdict is not None and verdict[1] is None
