"""Instances: chunks of text, and the questions a memory of them must answer."""

from typing import Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from grpo_cl.envs.memory.retrieval.tokenizer import count_tokens
from grpo_cl.errors import TaskDataError
from grpo_cl.types import InitializationData, InitialState, Record, Task

Metric = Literal["exact", "contains", "keywords", "boxed", "judge"]

INSTANCE = "instance"
"""The key of the instance in the initial state of a task."""


class Chunk(Record):
    """A part of a conversation or document, read in one step."""

    chunk_id: int
    content: str
    timestamp: str | None = None
    """The date as the source writes it; never the system clock."""
    labels: dict[str, JsonValue] | None = None
    """The generator's labels; None for an unlabelled chunk."""


class Question(Record):
    """A question with its gold answers."""

    question_id: str
    question: str
    answers: tuple[str, ...]
    """Alternatives (``keywords`` needs all of them); empty for an unanswerable question."""
    qtype: str
    """The question type, by which scores are reported."""
    metric: Metric = "exact"
    evidence: tuple[int, ...] = ()
    """The chunks with the answer, if known."""
    ask_after: int | None = None
    """The chunk after which it is asked; None for the last."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def is_unanswerable(self) -> bool:
        """Whether the right answer is that there is none."""
        return not self.answers


class Instance(Record):
    """Chunks in reading order, and the questions about them."""

    id: str
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...]
    source: str
    license: str
    """The licence of the text, as stated by its source."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The total length of the chunks."""
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


def instance_of(task: Task) -> Instance:
    """The instance in the initial state of ``task``."""
    initial = task.initial_state
    data = initial.initialization_data if initial else None
    try:
        return Instance.model_validate((data.agent_data or {})[INSTANCE] if data else None)
    except (KeyError, ValidationError) as error:
        raise TaskDataError(
            f"task {task.id!r} of domain {task.domain!r} holds no instance ({error}); "
            "only tasks of the memory domain do"
        ) from error


def initial_state(instance: Instance) -> InitialState:
    """The initial state of a task over ``instance``."""
    data = InitializationData(agent_data={INSTANCE: instance.model_dump(mode="json")})
    return InitialState(initialization_data=data)
