"""Checks of an instance before it is handed out."""

from grpo_cl.memory.content import OPERATIONS
from grpo_cl.memory.examination import Answered, Examiner, Reading
from grpo_cl.memory.generator.reader import LexiconReader
from grpo_cl.memory.instances import Instance, Question
from grpo_cl.memory.steps import Diary
from grpo_cl.memory.store import MemorySystem

TIGHT = Reading(tokens=96, entries=8)
"""A careful writer's memory answers everything even if little of it can be read at once."""


def flaw(instance: Instance) -> str:
    """What is wrong with an instance; empty if nothing is."""
    if not any(question.answers for question in instance.questions):
        return "no question has an answer"
    diary = gold_diary(instance)
    if any(not call.outcome.ok for step in diary.steps for call in step.calls):
        return "a careful writer's call fails"
    examiner = Examiner(LexiconReader(), reading=TIGHT)
    missed = [each for each in examiner.examine(diary.memory, instance.questions) if not each.score]
    if missed:
        return f"a careful writer's memory misses {_shown(missed[0])}"
    guessed = [
        each
        for each in examiner.examine(MemorySystem(), instance.questions)
        if each.score and each.question.answers
    ]
    if guessed:
        return f"an empty memory answers {_shown(guessed[0])}"
    loose = [each for each in instance.questions if not is_grounded(instance, each)]
    return f"no evidence holds the answer to {loose[0].question!r}" if loose else ""


def is_grounded(instance: Instance, question: Question) -> bool:
    """Whether the evidence tells the answer and the question does not."""
    chunks = {chunk.chunk_id: chunk.content for chunk in instance.chunks}
    text = "\n".join(chunks[chunk_id] for chunk_id in question.evidence)
    told = question.meta.get("told")
    if any(answer in question.question for answer in question.answers):
        return False
    return all(answer in text or str(told) in text for answer in question.answers)


def gold_diary(instance: Instance) -> Diary:
    """The memory of a careful writer."""
    diary = Diary(instance)
    while chunk := diary.read_on():
        labels = chunk.labels or {}
        listed = labels.get(OPERATIONS)
        operations = (
            [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        )
        diary.write([(str(each["name"]), each["arguments"]) for each in operations])
    return diary


def _shown(answered: Answered) -> str:
    question = answered.question
    return f"{question.question!r} ({question.answers}, {question.qtype}) with {answered.answer!r}"
