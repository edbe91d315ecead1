"""The scorer of the memory domain: the final memory must answer the questions of the task.

The memory is rebuilt from the recorded calls, so a stored trajectory can be scored again.
"""

from collections.abc import Sequence
from random import Random
from statistics import fmean

from grpo_cl.config import MemoryConfig
from grpo_cl.envs.memory.generator import RuleAnswerer
from grpo_cl.envs.memory.instances import instance_of
from grpo_cl.envs.memory.rewards.content import ContentJudge, RuleContentJudge
from grpo_cl.envs.memory.rewards.episode import ExecutedCall, MemoryEpisode
from grpo_cl.envs.memory.rewards.formulas import (
    StepScore,
    Weights,
    answer_rate,
    compression,
    score_steps,
)
from grpo_cl.envs.memory.rewards.question_answering import (
    Answerer,
    ContextBudget,
    GradedAnswer,
    QAPipeline,
    sample_questions,
)
from grpo_cl.errors import TaskDataError
from grpo_cl.types import AnswerCheck, Message, Reward, RewardType, StepReward, Task, Trajectory

BASIS = (RewardType.ANSWERS,)
BASIS_NAME = "memory"


class MemoryScorer:
    """Scores an episode by the answers that its memory allows, and each step by r1 to r4."""

    def __init__(
        self,
        config: MemoryConfig | None = None,
        *,
        answerer: Answerer | None = None,
        judge: ContentJudge | None = None,
    ) -> None:
        self._config = config or MemoryConfig()
        self.calls_models = answerer is not None or judge is not None
        limits = self._config.answerer
        self._pipeline = QAPipeline(
            answerer or RuleAnswerer(),
            budget=ContextBudget(limits.context_tokens, limits.context_entries),
        )
        self._judge = judge or RuleContentJudge()
        evidence = self._config.evidence_share if self._config.credit == "evidence" else 0.0
        self._weights = Weights(self._config.beta, self._config.gamma, evidence)

    def score(self, trajectory: Trajectory) -> Reward:
        """The fraction of questions answered correctly, and the reward of each step.

        Raises ``ModelCallError`` if a model is needed and does not answer.
        """
        task = trajectory.task
        try:
            episode = replay(task, trajectory.messages, stamp=self._config.stamp)
        except TaskDataError as error:
            reason = f"scoring failed: {error}"
            return Reward(value=0.0, basis=None, basis_name=BASIS_NAME, reason=reason)
        # Seeded by the task: the episodes of a group are asked the same questions.
        rng = Random(f"questions/{task.id}")
        fraction = self._config.answerer.question_share
        questions = sample_questions(episode.instance.questions, fraction, rng)
        answers = self._pipeline.answer_episode(episode, questions)
        return self.reward(trajectory, episode, answers)

    def reward(
        self, trajectory: Trajectory, episode: MemoryEpisode, answers: Sequence[GradedAnswer]
    ) -> Reward:
        """The reward of a replayed trajectory with its graded answers."""
        del trajectory
        verdicts = self._judge.judge(episode.steps)
        steps = score_steps(episode, verdicts.valid, answers, self._weights)
        answerer_calls = [call for answer in answers for call in answer.calls]
        return Reward(
            value=answer_rate(answers),
            basis=BASIS,
            basis_name=BASIS_NAME,
            components=_components(episode, answers, steps),
            steps=tuple(_step_reward(step, self._weights) for step in steps),
            answer_checks=tuple(map(answer_check, answers)),
            model_calls=(*answerer_calls, *verdicts.calls),
        )


def replay(task: Task, messages: Sequence[Message], *, stamp: bool = False) -> MemoryEpisode:
    """The memory episode of a recorded conversation.

    Raises ``TaskDataError`` if a call has no recorded result or another one than on replay.
    """
    episode = MemoryEpisode(instance_of(task), stamp=stamp)
    recorded = {message.id: message.content for message in messages if message.role == "tool"}
    for message in messages[len(task.message_history) :]:
        if message.role == "user":
            episode.next_chunk()
        if message.role != "assistant":
            continue
        executed: list[ExecutedCall] = []
        for call in message.tool_calls or ():
            executed.append(episode.call(call.name, call.arguments))
            _require_same_result(executed[-1], recorded.get(call.id))
        episode.record_step(executed, message.content or "")
    return episode


def result_text(call: ExecutedCall) -> str:
    """The tool result the agent reads."""
    return call.outcome.message if call.outcome.ok else f"Error: {call.outcome.message}"


def _require_same_result(call: ExecutedCall, recorded: str | None) -> None:
    if result_text(call) != recorded:
        raise TaskDataError(
            f"{call.name} answered {result_text(call)!r} on replay, recorded is {recorded!r}"
        )


def _components(
    episode: MemoryEpisode, answers: Sequence[GradedAnswer], steps: Sequence[StepScore]
) -> dict[RewardType, float]:
    return {
        RewardType.ANSWERS: answer_rate(answers),
        RewardType.CALLS: fmean(step.calls for step in steps) if steps else 0.0,
        RewardType.COMPRESSION: compression(episode.memory, episode.instance),
        RewardType.CONTENT: fmean(step.content for step in steps) if steps else 0.0,
    }


def _step_reward(step: StepScore, weights: Weights) -> StepReward:
    components = {
        RewardType.ANSWERS: step.answers,
        RewardType.CALLS: step.calls,
        RewardType.COMPRESSION: step.compression,
        RewardType.CONTENT: step.content,
    }
    return StepReward(value=step.total(weights), components=components)


def answer_check(answer: GradedAnswer) -> AnswerCheck:
    """A graded answer as part of a reward."""
    return AnswerCheck(
        question_id=answer.question.question_id,
        qtype=answer.question.qtype,
        answer=answer.answer,
        score=answer.score,
        evidence=answer.evidence,
    )
