"""What a memory is built from and asked about: chunks of text and questions."""

from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from grpo_cl.memory.tokens import count_tokens
from grpo_cl.records import Record

Metric = Literal["exact", "contains", "keywords", "boxed", "judge"]


class Chunk(Record):
    """A piece of a conversation or document that is read in one step."""

    chunk_id: int
    content: str
    timestamp: str | None = None
    """When it was said, in the words of its source; never the clock's."""
    labels: dict[str, JsonValue] | None = None
    """What a generator knows about the chunk; None where nobody labelled it."""


class Question(Record):
    """Something a good memory can answer."""

    question_id: str
    question: str
    answers: tuple[str, ...]
    """Any of them is right, but ``keywords`` wants all; none: right is not to know."""
    qtype: str
    """The kind of question, under which scores are reported."""
    metric: Metric = "exact"
    evidence: tuple[int, ...] = ()
    """The chunks that hold the answer, as far as known."""
    ask_after: int | None = None
    """The chunk after which it is asked; None for after the last."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def is_unanswerable(self) -> bool:
        """Whether the right answer is that the memory does not hold one."""
        return not self.answers


class Instance(Record):
    """Chunks in the order they are read, and the questions about them."""

    id: str
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...]
    source: str
    license: str
    """Under which terms the text may be used, as far as its source says."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The length of all chunks."""
        return sum(count_tokens(chunk.content) for chunk in self.chunks)

    @model_validator(mode="after")
    def _ids_fit(self) -> Self:
        chunk_ids = [chunk.chunk_id for chunk in self.chunks]
        if not chunk_ids:
            raise ValueError(f"instance {self.id!r} has no chunks; it needs at least one")
        if chunk_ids != sorted(set(chunk_ids)):
            raise ValueError(f"chunk ids {chunk_ids} of {self.id!r} must rise; number them anew")
        question_ids = [question.question_id for question in self.questions]
        if len(set(question_ids)) < len(question_ids):
            raise ValueError(f"a question id of {self.id!r} occurs twice; ids must be distinct")
        for question in self.questions:
            self._check_references(question, set(chunk_ids))
        return self

    def _check_references(self, question: Question, chunk_ids: set[int]) -> None:
        ask_after = () if question.ask_after is None else (question.ask_after,)
        unknown = {*question.evidence, *ask_after} - chunk_ids
        if unknown:
            raise ValueError(
                f"question {question.question_id!r} of {self.id!r} refers to chunks "
                f"{sorted(unknown)}; it may only refer to those there are"
            )
