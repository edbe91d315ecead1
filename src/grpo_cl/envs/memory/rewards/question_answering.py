"""Question answering over a memory: retrieve entries, answer, grade."""

import re
from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

from grpo_cl.envs.memory.instances import Question
from grpo_cl.envs.memory.retrieval.retriever import Retriever
from grpo_cl.envs.memory.retrieval.tokenizer import count_tokens
from grpo_cl.envs.memory.rewards.answer_grading import UNKNOWN, grade
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode
from grpo_cl.envs.memory.store.system import Entry, MemorySystem
from grpo_cl.types import ModelCall

_WORD_WITH_BLANKS = re.compile(r"\s*\S+")


class Context(NamedTuple):
    """The text an answerer reads for one question."""

    core: str
    entries: tuple[Entry, ...]
    """Best first."""

    @property
    def text(self) -> str:
        """The core text and one line per entry."""
        core = [f"Core: {self.core}"] if self.core else []
        return "\n".join([*core, *map(format_entry, self.entries)])


class Answer(NamedTuple):
    """An answer with the entries it uses."""

    text: str
    used: tuple[int, ...] | None = ()
    """Ids of the entries that support the answer; None if the answerer does not report them."""
    follow_up: str | None = None
    """A second question whose answer completes this one."""
    calls: tuple[ModelCall, ...] = ()
    """Model calls made for it."""


class Answerer(Protocol):
    """Answers questions; never the trained policy, which would grade itself."""

    def answer(self, questions: Sequence[tuple[str, Context]]) -> Sequence[Answer]:
        """An answer to each question from its own context only."""
        ...


class ContextBudget(NamedTuple):
    """Limits of the context of one question."""

    tokens: int = 256
    """Of the core text and the entries together."""
    entries: int = 10


class GradedAnswer(NamedTuple):
    """A question with its answer and score."""

    question: Question
    answer: str
    score: float
    evidence: tuple[int, ...]
    """Ids of the entries that support the answer."""
    source_chunks: tuple[int, ...]
    """The chunks at which these entries were written."""
    calls: tuple[ModelCall, ...]
    """Model calls made for it."""


class QAPipeline:
    """Answers questions about a memory from retrieved entries within a token budget."""

    def __init__(self, answerer: Answerer, *, budget: ContextBudget | None = None) -> None:
        self._answerer = answerer
        self._budget = budget or ContextBudget()

    def answer(self, memory: MemorySystem, questions: Sequence[Question]) -> list[GradedAnswer]:
        """The graded answers, in the order of the questions."""
        contexts = [self.context(memory, question.question) for question in questions]
        texts = [question.question for question in questions]
        first = self._answerer.answer(list(zip(texts, contexts, strict=True)))
        final = self._with_follow_ups(memory, first)
        return [
            _graded(memory, question, answer, context)
            for question, answer, context in zip(questions, final, contexts, strict=True)
        ]

    def answer_episode(
        self, episode: MemoryEpisode, questions: Sequence[Question]
    ) -> list[GradedAnswer]:
        """The graded answers, each from the memory at the time its question is asked."""
        graded: dict[str, GradedAnswer] = {}
        for ask_after in dict.fromkeys(question.ask_after for question in questions):
            due = [question for question in questions if question.ask_after == ask_after]
            for answer in self.answer(episode.memory_after(ask_after), due):
                graded[answer.question.question_id] = answer
        return [graded[question.question_id] for question in questions]

    def context(self, memory: MemorySystem, query: str) -> Context:
        """The context of a question: core text and retrieved entries."""
        core = truncate(memory.core, self._budget.tokens)
        left = self._budget.tokens - count_tokens(core)
        hits = Retriever().search(memory, query, k=self._budget.entries, budget_tokens=max(left, 0))
        return Context(core, tuple(hit.entry for hit in hits))

    def _with_follow_ups(self, memory: MemorySystem, answers: Sequence[Answer]) -> list[Answer]:
        """Answer the follow-up questions, each with a context of its own."""
        queries = [answer.follow_up for answer in answers if answer.follow_up]
        second = iter(
            self._answerer.answer([(query, self.context(memory, query)) for query in queries])
        )
        return [
            _combined(answer, next(second)) if answer.follow_up else answer for answer in answers
        ]


def format_entry(entry: Entry) -> str:
    """An entry as one line of a prompt."""
    tags = ", ".join(tag for tag in (entry.category or entry.type, entry.timestamp) if tag)
    return f"[{entry.id}] ({tags}) {entry.content}"


def sample_questions(questions: Sequence[Question], fraction: float, rng: Random) -> list[Question]:
    """A fraction of the questions, at least one, in their order."""
    count = max(1, round(fraction * len(questions)))
    if count >= len(questions):
        return list(questions)
    return [questions[i] for i in sorted(rng.sample(range(len(questions)), count))]


def truncate(text: str, tokens: int) -> str:
    """The first words of ``text`` that fit into ``tokens``."""
    if count_tokens(text) <= tokens:
        return text
    kept = ""
    for word in _WORD_WITH_BLANKS.findall(text):
        if count_tokens(kept + word) > tokens:
            break
        kept += word
    return kept


def _combined(first: Answer, second: Answer) -> Answer:
    used = (*(first.used or ()), *(second.used or ()))
    return Answer(second.text, used, calls=(*first.calls, *second.calls))


def _graded(
    memory: MemorySystem, question: Question, answer: Answer, context: Context
) -> GradedAnswer:
    evidence = _evidence(question, answer, context)
    entries = [memory.entries[entry_id] for entry_id in evidence if entry_id in memory.entries]
    return GradedAnswer(
        question,
        answer.text,
        grade(answer.text, question),
        evidence,
        tuple(entry.source_chunk for entry in entries if entry.source_chunk is not None),
        answer.calls,
    )


def _evidence(question: Question, answer: Answer, context: Context) -> tuple[int, ...]:
    """The entries the answerer reports; else those with the gold answer; else the whole context."""
    if answer.used is not None:
        return () if answer.text == UNKNOWN else answer.used
    with_gold = [e.id for e in context.entries if any(a in e.content for a in question.answers)]
    return tuple(with_gold or (entry.id for entry in context.entries))
