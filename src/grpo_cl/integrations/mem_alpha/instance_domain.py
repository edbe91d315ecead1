"""The ``memory`` domain over instances made in Python, scored by a ``RewardCalculator``."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

from typing_extensions import override

from grpo_cl.config import MemoryConfig
from grpo_cl.envs.database import to_json
from grpo_cl.envs.memory import Instance
from grpo_cl.envs.memory.domain import MemoryDomain, task_of
from grpo_cl.envs.memory.generator import SOURCE
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode
from grpo_cl.envs.memory.rewards.formulas import Weights
from grpo_cl.envs.memory.rewards.llm_answerer import LLMAnswerer
from grpo_cl.envs.memory.rewards.llm_content_judge import LLMContentJudge
from grpo_cl.envs.memory.rewards.question_answering import Answerer, GradedAnswer
from grpo_cl.envs.memory.rewards.scorer import BASIS, BASIS_NAME, MemoryScorer, answer_check
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.mem_alpha.agent import LLM, AgentAction
from grpo_cl.integrations.mem_alpha.data import TrainingInstance
from grpo_cl.integrations.mem_alpha.evaluation import COMPONENTS
from grpo_cl.integrations.mem_alpha.question_answering import CallableAnswerer, QAResult
from grpo_cl.integrations.mem_alpha.rewards import RewardCalculator
from grpo_cl.llm import ModelPool
from grpo_cl.types import Reward, StepReward, Trajectory

Transcript = Callable[[Trajectory], Sequence[tuple[str, str]]]
"""The exact prompt and response of each turn of a trajectory."""


class Scoring(NamedTuple):
    """How episodes are scored."""

    calculator: RewardCalculator
    answerer: LLM | None
    """Answers the questions; None for the model of the config, or for rules."""
    transcript: Transcript


class InstanceDomain(MemoryDomain):
    """The ``memory`` domain whose tasks are given instances, by split."""

    def __init__(
        self, instances: Mapping[str, Sequence[Instance]], settings: MemoryConfig, scoring: Scoring
    ) -> None:
        super().__init__(settings=settings)
        self._instances = instances
        self._scoring = scoring
        every = [instance for split in instances.values() for instance in split]
        self._require_answers(every)
        ids = [instance.id for instance in every]
        if len(set(ids)) < len(ids):
            raise ConfigError(
                f"an instance id occurs twice in {', '.join(sorted(ids))}; ids must be distinct, "
                "and no instance may be in both the training and the validation data"
            )

    @property
    @override
    def release(self) -> str:
        digest = hashlib.sha256(to_json(self._raw_tasks).encode()).hexdigest()
        return f"{self.name} instances sha256:{digest[:12]}"

    @override
    def scorer(self, models: ModelPool | None = None) -> "CalculatorScorer":
        scoring, settings = self._scoring, self.settings
        judge = LLMContentJudge(models, settings.judge) if models and settings.judge.model else None
        evidence = settings.evidence_share if settings.credit == "evidence" else 0.0
        weights = Weights(scoring.calculator.beta, scoring.calculator.gamma, evidence)
        scoring = scoring._replace(calculator=scoring.calculator.configured(weights, judge))
        return CalculatorScorer(settings, scoring, self._answerer(models))

    @cached_property
    @override
    def _raw_tasks(self) -> dict[str, dict[str, Any]]:
        return {
            instance.id: task_of(instance).model_dump(mode="json")
            for split in self._instances.values()
            for instance in split
        }

    @cached_property
    @override
    def _splits(self) -> dict[str, list[str]]:
        ids = {split: [one.id for one in found] for split, found in self._instances.items()}
        # Without validation data the training instances are evaluated.
        return {"test": ids["train"], **ids, "base": list(self._raw_tasks)}

    def _answerer(self, models: ModelPool | None) -> Answerer | None:
        if models is None:
            return None
        if self._scoring.answerer is not None:
            return CallableAnswerer(self._scoring.answerer)
        settings = self.settings.answerer
        return LLMAnswerer(models, settings) if settings.model else None

    def _require_answers(self, instances: Sequence[Instance]) -> None:
        if self._scoring.answerer or self.settings.answerer.model:
            return
        foreign = next((instance for instance in instances if instance.source != SOURCE), None)
        if foreign is not None:
            raise ConfigError(
                f"the questions of {foreign.id!r} are not generated, and only generated ones are "
                "answered by rules; give answerer=FUNCTION, or the setting "
                "memory.answerer.model=PROVIDER/MODEL"
            )


class CalculatorScorer(MemoryScorer):
    """Scores episodes by a ``RewardCalculator``."""

    def __init__(self, config: MemoryConfig, scoring: Scoring, answerer: Answerer | None) -> None:
        super().__init__(config, answerer=answerer)
        self._calculator = scoring.calculator
        self._transcript = scoring.transcript
        self.calls_models = self.calls_models or scoring.calculator.calls_models
        has_callable = scoring.answerer or scoring.calculator.llm_judge
        # Episodes are scored in threads; a function of the user may not be thread-safe.
        self._lock: AbstractContextManager[Any] = Lock() if has_callable else nullcontext()

    @override
    def score(self, trajectory: Trajectory) -> Reward:
        with self._lock:
            return super().score(trajectory)

    @override
    def reward(
        self, trajectory: Trajectory, episode: MemoryEpisode, answers: Sequence[GradedAnswer]
    ) -> Reward:
        chunks = episode.instance.chunks
        if len(episode.steps) != len(chunks):  # cut short, or a scripted baseline
            return super().reward(trajectory, episode, answers)
        actions = actions_of(trajectory, episode, self._transcript(trajectory))
        if [action.chunk_id for action in actions] != [chunk.chunk_id for chunk in chunks]:
            return super().reward(trajectory, episode, answers)  # a baseline's calls in one chunk
        results = [QAResult.of(answer, "") for answer in answers]
        instance = TrainingInstance.of(episode.instance)
        found = self._calculator.evaluate(instance, actions, episode.memory, results)
        values = (found.r1, found.r2, found.r3, found.r4)
        answerer_calls = [call for answer in answers for call in answer.calls]
        return Reward(
            value=found.r1,
            basis=BASIS,
            basis_name=BASIS_NAME,
            components=dict(zip(COMPONENTS.values(), values, strict=True)),
            steps=tuple(StepReward(value=value) for value in found.steps),
            answer_checks=tuple(map(answer_check, answers)),
            model_calls=(*answerer_calls, *found.model_calls),
        )


def actions_of(
    trajectory: Trajectory, episode: MemoryEpisode, transcript: Sequence[tuple[str, str]]
) -> list[AgentAction]:
    """One action for each step of an episode."""
    turns = [message for message in trajectory.messages if message.role == "assistant"]
    results = {m.id: m.content or "" for m in trajectory.messages if m.role == "tool"}
    texts = transcript or [("", turn.content or "") for turn in turns]  # of a scripted episode
    actions: list[AgentAction] = []
    for step, turn, (prompt, response) in zip(episode.steps, turns, texts, strict=True):
        calls = turn.tool_calls or ()
        messages = tuple(results[call.id] for call in calls)
        actions.append(AgentAction(step.chunk.chunk_id, prompt, response, calls, messages, step))
    return actions
