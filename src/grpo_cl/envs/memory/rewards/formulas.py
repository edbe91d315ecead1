"""The reward components r1 to r4 of an episode and of its steps (formulas in docs/memory.md)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grpo_cl.envs.memory.instances import Instance
from grpo_cl.envs.memory.rewards.content import chunks_with_facts
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode, Step
from grpo_cl.envs.memory.rewards.question_answering import GradedAnswer
from grpo_cl.envs.memory.store.system import MemorySystem

MIN_COMPRESSION = -1.0
"""Of a memory twice as long as the chunks; longer memories have the same value."""


class Weights(NamedTuple):
    """Weights of reward components; answers and calls have weight 1."""

    beta: float = 0.05
    """Of compression."""
    gamma: float = 0.1
    """Of content."""
    evidence: float = 0.0
    """Fraction of r1 that is credited to the steps that wrote the evidence of the answers."""


class StepScore(NamedTuple):
    """The reward components of one step."""

    answers: float
    calls: float
    compression: float
    content: float

    def total(self, weights: Weights) -> float:
        """r1 + r2 + β·r3 + γ·r4."""
        return (
            self.answers
            + self.calls
            + weights.beta * self.compression
            + weights.gamma * self.content
        )


def score_steps(
    episode: MemoryEpisode,
    verdicts: Sequence[Sequence[bool | None]],
    answers: Sequence[GradedAnswer],
    weights: Weights,
) -> list[StepScore]:
    """The reward components of each step."""
    with_facts = chunks_with_facts(episode.instance)
    answer_credit = attribute_answers(episode, answers, weights.evidence)
    episode_compression = compression(episode.memory, episode.instance)
    return [
        StepScore(
            credit,
            call_rate(step, with_facts),
            episode_compression,
            content_rate(step, valid, with_facts),
        )
        for step, valid, credit in zip(episode.steps, verdicts, answer_credit, strict=True)
    ]


def answer_rate(answers: Sequence[GradedAnswer]) -> float:
    """r1: the mean score of the answers."""
    return sum(answer.score for answer in answers) / len(answers) if answers else 0.0


def call_rate(step: Step, with_facts: Mapping[int, bool | None]) -> float:
    """r2: the fraction of successful calls; without calls, 1 if the chunk has no facts, else 0."""
    if not step.num_attempts:
        return _score_without_calls(step, with_facts)
    return sum(call.outcome.ok for call in step.calls) / step.num_attempts


def content_rate(
    step: Step, verdicts: Sequence[bool | None], with_facts: Mapping[int, bool | None]
) -> float:
    """r4: the fraction of calls with valid content, without undecided ones."""
    if not step.num_attempts:
        return _score_without_calls(step, with_facts)
    judged = [verdict for verdict in verdicts if verdict is not None]
    count = len(judged) + step.num_malformed
    return sum(judged) / count if count else 0.0


def compression(memory: MemorySystem, instance: Instance) -> float:
    """r3: 1 minus the length of the memory over that of the chunks."""
    return max(MIN_COMPRESSION, 1 - memory.tokens() / max(instance.tokens, 1))


def attribute_answers(
    episode: MemoryEpisode, answers: Sequence[GradedAnswer], fraction: float
) -> list[float]:
    """r1 of each step; the mean over the steps is r1 of the episode.

    ``fraction`` of it is credited to the steps that wrote the evidence of an answer. An answer
    without evidence is credited to all steps, so that the sum is preserved.
    """
    num_steps = len(episode.steps)
    total = answer_rate(answers)
    if not fraction:
        return [total] * num_steps
    credit = [0.0] * num_steps
    for answer in answers:
        writing_steps = _writing_steps(episode, answer.source_chunks) or range(num_steps)
        for index in writing_steps:
            credit[index] += answer.score / (len(answers) * len(writing_steps))
    return [(1 - fraction) * total + fraction * num_steps * earned for earned in credit]


def _writing_steps(episode: MemoryEpisode, chunk_ids: Sequence[int]) -> list[int]:
    """The indices of the steps at the chunks, once per chunk id."""
    indices = {step.chunk.chunk_id: index for index, step in enumerate(episode.steps)}
    return [indices[chunk_id] for chunk_id in chunk_ids if chunk_id in indices]


def _score_without_calls(step: Step, with_facts: Mapping[int, bool | None]) -> float:
    """1 if the chunk is known to have no facts; 0 if it has some or is unlabelled."""
    return float(with_facts[step.chunk.chunk_id] is False)
