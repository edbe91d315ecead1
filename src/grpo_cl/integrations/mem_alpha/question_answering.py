"""Mem-α's retriever and question-answering evaluator."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from grpo_cl.envs.memory import Entry, MemorySystem
from grpo_cl.envs.memory.generator import RuleAnswerer
from grpo_cl.envs.memory.retrieval.embeddings import Embedder, EmbeddingScorer, minilm
from grpo_cl.envs.memory.retrieval.retriever import Hit, Retriever
from grpo_cl.envs.memory.rewards.llm_answerer import ANSWER_PROMPT, parse_answer
from grpo_cl.envs.memory.rewards.question_answering import (
    Answer,
    Context,
    ContextBudget,
    GradedAnswer,
    QAPipeline,
)
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.mem_alpha.agent import LLM
from grpo_cl.integrations.mem_alpha.data import Question

MIN_CORRECT_SCORE = 1 - 1e-9
"""The lowest score of a correct answer."""


class QAResult(NamedTuple):
    """A question with its predicted answer and score."""

    question: Question
    retrieved_context: str
    """The text the answerer reads."""
    predicted_answer: str
    is_correct: bool
    score: float
    answered: GradedAnswer
    """The graded answer that rewards are computed from."""

    @classmethod
    def of(cls, answer: GradedAnswer, context: str) -> "QAResult":
        """The result of a graded answer and the text it was given from."""
        return cls(
            Question.of(answer.question),
            context,
            answer.answer,
            answer.score >= MIN_CORRECT_SCORE,
            answer.score,
            answer,
        )


class QAEvaluator:
    """Answers questions about a memory from retrieved entries within a token budget.

    ``llm_callable`` must not be the trained policy, which would grade itself. Without it, rules
    answer the questions of generated instances.
    """

    def __init__(
        self,
        memory_system: MemorySystem,
        llm_callable: LLM | None = None,
        *,
        context_tokens: int = 256,
        context_entries: int = 10,
    ) -> None:
        self._memory = memory_system
        answerer = RuleAnswerer() if llm_callable is None else CallableAnswerer(llm_callable)
        budget = ContextBudget(context_tokens, context_entries)
        self._pipeline = QAPipeline(answerer, budget=budget)

    def evaluate_questions(self, questions: Sequence[Question]) -> list[QAResult]:
        """The graded answers, in the order of the questions."""
        answers = self._pipeline.answer(self._memory, [question.record() for question in questions])
        return [
            QAResult.of(
                answer, self._pipeline.context(self._memory, question.question).text
            )._replace(question=question)
            for question, answer in zip(questions, answers, strict=True)
        ]


class CallableAnswerer:
    """An answerer over a function from prompt to completion."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def answer(self, questions: Sequence[tuple[str, Context]]) -> list[Answer]:
        """An answer to each question from its own context only."""
        return [self._ask(question, context) for question, context in questions]

    def _ask(self, question: str, context: Context) -> Answer:
        notes = context.text or "(There are no notes.)"
        reply = self._llm(f"{ANSWER_PROMPT}\n\nNotes:\n{notes}\n\nQuestion: {question}\n")
        try:
            return parse_answer(reply)
        except ValueError:
            return Answer(reply.strip(), None)  # many models answer in plain text


class RetrievalResult(NamedTuple):
    """Retrieved categories and entries of a query."""

    categories: tuple[str, ...]
    """Best first."""
    entries: tuple[Entry, ...]
    scores: tuple[float, ...]
    core: str

    @property
    def retrieved_entries(self) -> tuple[tuple[Entry, float], ...]:
        """Entries with their scores, best first."""
        return tuple(zip(self.entries, self.scores, strict=True))

    @property
    def total_retrieved(self) -> int:
        """The number of retrieved entries."""
        return len(self.entries)

    @property
    def text(self) -> str:
        """Core text and entries as lines of a prompt."""
        return Context(self.core, self.entries).text


class TwoLayerRAGRetriever:
    """Retrieves entries in two layers: the best categories, then the best entries per category.

    It uses the index of the memory, so every edit takes effect at once. Categories are a prior: an
    entry in the wrong category is still found.
    """

    def __init__(
        self,
        memory_system: MemorySystem,
        k_categories: int = 3,
        n_entries_per_category: int = 5,
        use_core_memory: bool = True,  # noqa: FBT001, FBT002  # Mem-α's signature
    ) -> None:
        self._memory = memory_system
        self._retriever = Retriever(num_categories=k_categories)
        self._per_category = n_entries_per_category
        self._use_core = use_core_memory

    def retrieve(self, query: str) -> RetrievalResult:
        """The entries for ``query`` in the current memory."""
        max_entries = self._retriever.num_categories * self._per_category
        per_category: Counter[str | None] = Counter()
        selected: list[Hit] = []
        for hit in self._retriever.search(self._memory, query, k=len(self._memory.entries)):
            per_category[hit.entry.category] += 1
            is_within_category = per_category[hit.entry.category] <= self._per_category
            if is_within_category and len(selected) < max_entries:
                selected.append(hit)
        return RetrievalResult(
            tuple(self._retriever.categories(self._memory, query)),
            tuple(hit.entry for hit in selected),
            tuple(hit.score for hit in selected),
            self._memory.core if self._use_core else "",
        )


class HybridRetriever(TwoLayerRAGRetriever):
    """Two-layer retrieval whose scores mix BM25 with the similarity of embeddings.

    The default encoder is all-MiniLM-L6-v2 (docs/memory.md, Retrieval).
    """

    def __init__(
        self,
        memory_system: MemorySystem,
        k_categories: int = 3,
        n_entries_per_category: int = 5,
        use_core_memory: bool = True,  # noqa: FBT001, FBT002  # Mem-α's signature
        embedding_weight: float = 0.5,
        *,
        embedder: Embedder | None = None,
    ) -> None:
        super().__init__(memory_system, k_categories, n_entries_per_category, use_core_memory)
        if not 0 <= embedding_weight <= 1:
            raise ConfigError(
                f"embedding_weight={embedding_weight} is no fraction; give a number from 0 to 1"
            )
        scorer = EmbeddingScorer(embedder or minilm())
        self._retriever = replace(self._retriever, semantic=scorer, weight=embedding_weight)
