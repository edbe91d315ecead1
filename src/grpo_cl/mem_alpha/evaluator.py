"""Ask a frozen answerer what a memory knows."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.mem_alpha.agent import LLM
from grpo_cl.mem_alpha.data import Question
from grpo_cl.memory import MemorySystem
from grpo_cl.memory.answerers import Answer, Context
from grpo_cl.memory.examination import Answered, Examiner, Reading
from grpo_cl.memory.generator import LexiconReader
from grpo_cl.rewards.answerer import READER, read_answer

RIGHT = 1 - 1e-9
"""The least score of an answer that is right."""


class QAResult(NamedTuple):
    """A question with what was answered."""

    question: Question
    retrieved_context: str
    """All that the answerer read."""
    predicted_answer: str
    is_correct: bool
    score: float
    answered: Answered
    """The answer as rewards see it."""


class QAEvaluator:
    """Answers questions from what a search finds in a memory, within a budget of tokens.

    ``llm_callable`` must not be the policy that wrote the memory: it would grade itself. Without it
    questions about generated instances are answered by rules.
    """

    def __init__(
        self,
        memory: MemorySystem,
        llm_callable: LLM | None = None,
        *,
        context_tokens: int = 256,
        context_entries: int = 10,
    ) -> None:
        self._memory = memory
        answerer = LexiconReader() if llm_callable is None else _Asked(llm_callable)
        self._examiner = Examiner(answerer, reading=Reading(context_tokens, context_entries))

    def evaluate_questions(self, questions: Sequence[Question]) -> list[QAResult]:
        """Each question with its answer and what that is worth, in their order."""
        found = self._examiner.examine(self._memory, [each.record() for each in questions])
        return [
            QAResult(
                question,
                self._examiner.context(self._memory, question.question).text,
                answered.answer,
                answered.score >= RIGHT,
                answered.score,
                answered,
            )
            for question, answered in zip(questions, found, strict=True)
        ]


class _Asked:
    """A function from text to text as an answerer."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def answer(self, asked: Sequence[tuple[str, Context]]) -> list[Answer]:
        """An answer to each question from its own context."""
        return [self._ask(question, context) for question, context in asked]

    def _ask(self, question: str, context: Context) -> Answer:
        notes = context.text or "(There are no notes.)"
        reply = self._llm(f"{READER}\n\nNotes:\n{notes}\n\nQuestion: {question}\n")
        try:
            return read_answer(reply)
        except ValueError:
            return Answer(reply.strip(), None)  # many models answer in plain words, asked for JSON
