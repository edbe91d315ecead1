"""What a memory is built from and asked about, as plain objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from grpo_cl.memory import instances
from grpo_cl.memory.loaders.chunks import metric_for

OWN = "user"
"""The source of instances that somebody makes in Python."""

Metadata = Mapping[str, JsonValue]


@dataclass(frozen=True)
class ConversationChunk:
    """A piece of a conversation that is read in one step."""

    chunk_id: int
    content: str
    timestamp: str | None = None
    metadata: Metadata = field(default_factory=dict)
    labels: Mapping[str, JsonValue] | None = None
    """What a generator knows about the chunk."""

    def record(self) -> instances.Chunk:
        """The chunk as the rest of the package knows it."""
        return instances.Chunk(
            chunk_id=self.chunk_id,
            content=self.content,
            timestamp=self.timestamp,
            labels=None if self.labels is None else dict(self.labels),
        )


@dataclass(frozen=True)
class Question:
    """Something a good memory can answer."""

    question_id: str | int
    question: str
    answer: str | None
    """None where right is not to know."""
    metadata: Metadata = field(default_factory=dict)
    answers: Sequence[str] = ()
    """Other right answers."""
    evidence: Sequence[int] = ()
    """The chunks that hold the answer, as far as known."""
    qtype: str = "question"
    metric: instances.Metric | None = None
    """How an answer is marked; None goes by its length."""

    def record(self) -> instances.Question:
        """The question as the rest of the package knows it."""
        answers = (*(() if self.answer is None else (self.answer,)), *self.answers)
        return instances.Question(
            question_id=str(self.question_id),
            question=self.question,
            answers=answers,
            qtype=self.qtype,
            metric=self.metric or metric_for(answers),
            evidence=tuple(self.evidence),
            meta=dict(self.metadata),
        )


@dataclass(frozen=True)
class TrainingInstance:
    """A conversation to read and the questions about it."""

    instance_id: str
    chunks: Sequence[ConversationChunk]
    questions: Sequence[Question] = ()
    metadata: Metadata = field(default_factory=dict)
    source: str = OWN
    """Where it comes from; questions about generated instances need no model to be answered."""
    license: str = "not stated"

    def record(self) -> instances.Instance:
        """The instance as the rest of the package knows it."""
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
        """A generated or loaded instance under these names."""
        return TrainingInstance(
            instance.id,
            [
                ConversationChunk(c.chunk_id, c.content, c.timestamp, labels=c.labels)
                for c in instance.chunks
            ],
            [_question(question) for question in instance.questions],
            instance.meta,
            instance.source,
            instance.license,
        )


def _question(question: instances.Question) -> Question:
    first = question.answers[0] if question.answers else None
    return Question(
        question.question_id,
        question.question,
        first,
        question.meta,
        question.answers[1:],
        question.evidence,
        question.qtype,
        question.metric,
    )
