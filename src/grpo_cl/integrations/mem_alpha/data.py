"""Mem-α's data classes: chunks, questions and training instances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from grpo_cl.envs.memory import instances
from grpo_cl.envs.memory.loaders.chunks import metric_for

USER_SOURCE = "user"
"""The source of instances made in Python."""

Metadata = Mapping[str, JsonValue]


@dataclass(frozen=True)
class ConversationChunk:
    """A part of a conversation, read in one step."""

    chunk_id: int
    content: str
    timestamp: str | None = None
    metadata: Metadata = field(default_factory=dict)
    labels: Mapping[str, JsonValue] | None = None
    """The generator's labels."""

    def record(self) -> instances.Chunk:
        """The chunk as a record of the memory domain."""
        return instances.Chunk(
            chunk_id=self.chunk_id,
            content=self.content,
            timestamp=self.timestamp,
            labels=None if self.labels is None else dict(self.labels),
        )


@dataclass(frozen=True)
class Question:
    """A question with its gold answers."""

    question_id: str | int
    question: str
    answer: str | None
    """None for an unanswerable question."""
    metadata: Metadata = field(default_factory=dict)
    answers: Sequence[str] = ()
    """Alternative answers."""
    evidence: Sequence[int] = ()
    """The chunks with the answer, if known."""
    qtype: str = "question"
    metric: instances.Metric | None = None
    """How an answer is graded; None chooses by the length of the gold answers."""
    ask_after: int | None = None
    """The chunk after which it is asked; None for the last."""

    def record(self) -> instances.Question:
        """The question as a record of the memory domain."""
        answers = (*(() if self.answer is None else (self.answer,)), *self.answers)
        return instances.Question(
            question_id=str(self.question_id),
            question=self.question,
            answers=answers,
            qtype=self.qtype,
            metric=self.metric or metric_for(answers),
            evidence=tuple(self.evidence),
            ask_after=self.ask_after,
            meta=dict(self.metadata),
        )

    @staticmethod
    def of(question: instances.Question) -> "Question":
        """A question of a generated or loaded instance."""
        return Question(
            question.question_id,
            question.question,
            question.answers[0] if question.answers else None,
            question.meta,
            question.answers[1:],
            question.evidence,
            question.qtype,
            question.metric,
            question.ask_after,
        )


@dataclass(frozen=True)
class TrainingInstance:
    """A conversation and the questions about it."""

    instance_id: str
    chunks: Sequence[ConversationChunk]
    questions: Sequence[Question] = ()
    metadata: Metadata = field(default_factory=dict)
    source: str = USER_SOURCE
    """The origin; the questions of generated instances are answered by rules."""
    license: str = "not stated"

    def record(self) -> instances.Instance:
        """The instance as a record of the memory domain."""
        return instances.Instance(
            id=self.instance_id,
            chunks=tuple(chunk.record() for chunk in self.chunks),
            questions=tuple(question.record() for question in self.questions),
            source=self.source,
            license=self.license,
            meta=dict(self.metadata),
        )

    @staticmethod
    def of(instance: instances.Instance) -> "TrainingInstance":
        """A generated or loaded instance as a training instance."""
        return TrainingInstance(
            instance.id,
            [
                ConversationChunk(c.chunk_id, c.content, c.timestamp, labels=c.labels)
                for c in instance.chunks
            ],
            [Question.of(question) for question in instance.questions],
            instance.meta,
            instance.source,
            instance.license,
        )
