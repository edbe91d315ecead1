"""Validation of generated instances."""

from grpo_cl.envs.memory.generator.rule_answerer import RuleAnswerer
from grpo_cl.envs.memory.instances import Instance, Question
from grpo_cl.envs.memory.rewards.content import OPERATIONS
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode
from grpo_cl.envs.memory.rewards.question_answering import ContextBudget, GradedAnswer, QAPipeline
from grpo_cl.envs.memory.store.system import MemorySystem

TIGHT_BUDGET = ContextBudget(tokens=96, entries=8)
"""The gold memory must answer every question within this budget."""


def find_defect(instance: Instance) -> str:
    """The first defect of an instance; empty for a valid instance."""
    if not any(question.answers for question in instance.questions):
        return "no question has an answer"
    episode = gold_episode(instance)
    if any(not call.outcome.ok for step in episode.steps for call in step.calls):
        return "a gold operation fails"
    pipeline = QAPipeline(RuleAnswerer(), budget=TIGHT_BUDGET)
    answers = pipeline.answer(episode.memory, instance.questions)
    wrong = [answer for answer in answers if not answer.score]
    if wrong:
        return f"the gold memory does not answer {_describe(wrong[0])}"
    guessed = [
        answer
        for answer in pipeline.answer(MemorySystem(), instance.questions)
        if answer.score and answer.question.answers
    ]
    if guessed:
        return f"an empty memory answers {_describe(guessed[0])}"
    ungrounded = [q for q in instance.questions if not is_grounded(instance, q)]
    return f"no evidence holds the answer to {ungrounded[0].question!r}" if ungrounded else ""


def is_grounded(instance: Instance, question: Question) -> bool:
    """Whether the evidence states the answer and the question does not."""
    chunks = {chunk.chunk_id: chunk.content for chunk in instance.chunks}
    text = "\n".join(chunks[chunk_id] for chunk_id in question.evidence)
    wording = question.meta.get("told")
    if any(answer in question.question for answer in question.answers):
        return False
    return all(answer in text or str(wording) in text for answer in question.answers)


def gold_episode(instance: Instance) -> MemoryEpisode:
    """The episode of the gold operations."""
    episode = MemoryEpisode(instance)
    while chunk := episode.next_chunk():
        labels = chunk.labels or {}
        listed = labels.get(OPERATIONS)
        operations = (
            [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        )
        episode.apply([(str(item["name"]), item["arguments"]) for item in operations])
    return episode


def _describe(answer: GradedAnswer) -> str:
    question = answer.question
    return f"{question.question!r} ({question.answers}, {question.qtype}) with {answer.answer!r}"
