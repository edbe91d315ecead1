"""Ask an answerer what a memory knows."""

import re
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from grpo_cl.memory.answerers import UNKNOWN, Answer, Answerer, Context
from grpo_cl.memory.instances import Question
from grpo_cl.memory.marking import mark
from grpo_cl.memory.retrieval import Retriever
from grpo_cl.memory.steps import Diary
from grpo_cl.memory.store import MemorySystem
from grpo_cl.memory.tokens import count_tokens
from grpo_cl.transcripts import ModelCall

_PIECE = re.compile(r"\s*\S+")


class Reading(NamedTuple):
    """How much of a memory is read for one question."""

    tokens: int = 256
    """Of the core text and the entries together."""
    entries: int = 10


class Answered(NamedTuple):
    """A question with what was answered."""

    question: Question
    answer: str
    score: float
    evidence: tuple[int, ...]
    """The entries that the answer rests on."""
    sources: tuple[int, ...] = ()
    """The chunks whose reading wrote them."""
    calls: tuple[ModelCall, ...] = ()
    """What models were asked for it."""


class Examiner:
    """Answers questions from what a search finds in a memory, within a budget of tokens."""

    def __init__(
        self,
        answerer: Answerer,
        *,
        retriever: Retriever | None = None,
        reading: Reading | None = None,
    ) -> None:
        self._answerer = answerer
        self._retriever = retriever or Retriever()
        self._reading = reading or Reading()

    def examine(self, memory: MemorySystem, questions: Sequence[Question]) -> list[Answered]:
        """The answers and what they are worth, in the order of the questions."""
        first = [self.context(memory, question.question) for question in questions]
        texts = [question.question for question in questions]
        answers = self._answerer.answer(list(zip(texts, first, strict=True)))
        final = self._follow_up(memory, answers)
        return [
            _answered(memory, question, answer, context)
            for question, answer, context in zip(questions, final, first, strict=True)
        ]

    def examine_diary(self, diary: Diary, questions: Sequence[Question]) -> list[Answered]:
        """The answers to each question from the memory as it was when the question is asked."""
        found: dict[str, Answered] = {}
        for after in dict.fromkeys(question.ask_after for question in questions):
            asked = [question for question in questions if question.ask_after == after]
            for each in self.examine(diary.memory_after(after), asked):
                found[each.question.question_id] = each
        return [found[question.question_id] for question in questions]

    def context(self, memory: MemorySystem, query: str) -> Context:
        """What the answerer reads for a question."""
        core = cut(memory.core, self._reading.tokens)
        left = self._reading.tokens - count_tokens(core)
        hits = self._retriever.search(
            memory, query, k=self._reading.entries, budget_tokens=max(left, 0)
        )
        return Context(core, tuple(hit.entry for hit in hits))

    def _follow_up(self, memory: MemorySystem, answers: Sequence[Answer]) -> list[Answer]:
        """Look up once more what an answer lacks; the second context has a budget of its own."""
        wanted = [answer.follow_up for answer in answers if answer.follow_up]
        found = iter(self._answerer.answer([(text, self.context(memory, text)) for text in wanted]))
        return [_joined(answer, next(found)) if answer.follow_up else answer for answer in answers]


def choose(questions: Sequence[Question], share: float, rng: Random) -> list[Question]:
    """A share of the questions, at least one of them, in their order."""
    count = max(1, round(share * len(questions)))
    if count >= len(questions):
        return list(questions)
    return [questions[place] for place in sorted(rng.sample(range(len(questions)), count))]


def cut(text: str, tokens: int) -> str:
    """The words at the beginning of ``text`` that fit into ``tokens``."""
    if count_tokens(text) <= tokens:
        return text
    kept = ""
    for piece in _PIECE.findall(text):
        if count_tokens(kept + piece) > tokens:
            break
        kept += piece
    return kept


def _joined(first: Answer, second: Answer) -> Answer:
    used = (*(first.used or ()), *(second.used or ()))
    return Answer(second.text, used, calls=(*first.calls, *second.calls))


def _answered(
    memory: MemorySystem, question: Question, answer: Answer, context: Context
) -> Answered:
    evidence = _evidence(question, answer, context)
    known = [memory.entries[each] for each in evidence if each in memory.entries]
    return Answered(
        question,
        answer.text,
        mark(answer.text, question),
        evidence,
        tuple(entry.source_chunk for entry in known if entry.source_chunk is not None),
        answer.calls,
    )


def _evidence(question: Question, answer: Answer, context: Context) -> tuple[int, ...]:
    """What the answerer says it used; else the entries that hold the answer; else all it read."""
    if answer.used is not None:
        return () if answer.text == UNKNOWN else answer.used
    holding = [e.id for e in context.entries if any(a in e.content for a in question.answers)]
    return tuple(holding or (entry.id for entry in context.entries))
