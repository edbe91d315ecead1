"""Score an episode of the memory domain: what was kept answers the questions.

The memory at the end is rebuilt from the recorded calls, so a stored trajectory can be scored
again.
"""

from collections.abc import Sequence
from random import Random
from statistics import fmean

from grpo_cl.errors import TaskDataError
from grpo_cl.memory.answerers import Answerer
from grpo_cl.memory.content import ContentJudge, Rules
from grpo_cl.memory.examination import Answered, Examiner, Reading, choose
from grpo_cl.memory.generator import LexiconReader
from grpo_cl.memory.scoring import StepScore, Weights, answer_rate, compression, score_steps
from grpo_cl.memory.steps import Call, Diary
from grpo_cl.memory.tasks import instance_of
from grpo_cl.roles import MemoryConfig
from grpo_cl.transcripts import AnswerCheck
from grpo_cl.types import Message, Reward, RewardType, StepReward, Task, Trajectory

BASIS = (RewardType.ANSWERS,)
BASIS_NAME = "memory"


class MemoryScorer:
    """Asks the questions of a task about the memory that an episode left."""

    def __init__(
        self,
        config: MemoryConfig | None = None,
        *,
        answerer: Answerer | None = None,
        judge: ContentJudge | None = None,
    ) -> None:
        self._config = config or MemoryConfig()
        asked = self._config.answerer
        self._examiner = Examiner(
            answerer or LexiconReader(),
            reading=Reading(asked.context_tokens, asked.context_entries),
        )
        self._judge = judge or Rules()
        share = self._config.evidence_share if self._config.credit == "evidence" else 0.0
        self._weights = Weights(self._config.beta, self._config.gamma, share)

    def score(self, trajectory: Trajectory) -> Reward:
        """The share of questions answered right, and what each step earned.

        Raises ``ModelCallError`` where a model is asked and does not answer.
        """
        task = trajectory.task
        try:
            diary = replay(task, trajectory.messages, stamp=self._config.stamp)
        except TaskDataError as error:
            reason = f"scoring failed: {error}"
            return Reward(value=0.0, basis=None, basis_name=BASIS_NAME, reason=reason)
        # The episodes of a group must be asked the same.
        rng = Random(f"questions/{task.id}")
        questions = choose(diary.instance.questions, self._config.answerer.question_share, rng)
        answered = self._examiner.examine_diary(diary, questions)
        verdicts = self._judge.judge(diary.steps)
        steps = score_steps(diary, verdicts.valid, answered, self._weights)
        calls = [call for each in answered for call in each.calls]
        return Reward(
            value=answer_rate(answered),
            basis=BASIS,
            basis_name=BASIS_NAME,
            components=_components(diary, answered, steps),
            steps=tuple(_step(step, self._weights) for step in steps),
            answer_checks=tuple(map(_check, answered)),
            model_calls=(*calls, *verdicts.calls),
        )


def replay(task: Task, messages: Sequence[Message], *, stamp: bool = False) -> Diary:
    """What was done with each chunk, in a recorded conversation.

    Raises ``TaskDataError`` where a call has no answer or answers differently than it did.
    """
    diary = Diary(instance_of(task), stamp=stamp)
    told = {message.id: message.content for message in messages if message.role == "tool"}
    for message in messages[len(task.message_history) :]:
        if message.role == "user":
            diary.read_on()
        if message.role != "assistant":
            continue
        made: list[Call] = []
        for call in message.tool_calls or ():
            made.append(diary.call(call.name, call.arguments))
            _require_same(made[-1], told.get(call.id))
        diary.keep(made, message.content or "")
    return diary


def answer_text(call: Call) -> str:
    """What the agent reads after a call."""
    return call.outcome.message if call.outcome.ok else f"Error: {call.outcome.message}"


def _require_same(call: Call, recorded: str | None) -> None:
    if answer_text(call) != recorded:
        raise TaskDataError(
            f"{call.name} answered {answer_text(call)!r} on replay, recorded is {recorded!r}"
        )


def _components(
    diary: Diary, answered: Sequence[Answered], steps: Sequence[StepScore]
) -> dict[RewardType, float]:
    return {
        RewardType.ANSWERS: answer_rate(answered),
        RewardType.CALLS: fmean(step.calls for step in steps) if steps else 0.0,
        RewardType.COMPRESSION: compression(diary.memory, diary.instance),
        RewardType.CONTENT: fmean(step.content for step in steps) if steps else 0.0,
    }


def _step(step: StepScore, weights: Weights) -> StepReward:
    components = {
        RewardType.ANSWERS: step.answers,
        RewardType.CALLS: step.calls,
        RewardType.COMPRESSION: step.compression,
        RewardType.CONTENT: step.content,
    }
    return StepReward(value=step.total(weights), components=components)


def _check(answered: Answered) -> AnswerCheck:
    return AnswerCheck(
        question_id=answered.question.question_id,
        qtype=answered.question.qtype,
        answer=answered.answer,
        score=answered.score,
        evidence=answered.evidence,
    )
