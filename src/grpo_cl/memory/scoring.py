"""The reward of an episode and of each of its steps: docs/memory.md has the formulas."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grpo_cl.memory.content import telling_chunks
from grpo_cl.memory.examination import Answered
from grpo_cl.memory.instances import Instance
from grpo_cl.memory.steps import Diary, Step
from grpo_cl.memory.store import MemorySystem

LEAST_COMPRESSION = -1.0
"""A memory twice as long as what was read; beyond it nothing gets worse."""


class Weights(NamedTuple):
    """What the parts of a reward count beside the answers and the calls."""

    beta: float = 0.05
    """Of compression."""
    gamma: float = 0.1
    """Of content."""
    evidence: float = 0.0
    """Share of the answers' reward that goes to the steps which wrote what they rest on."""


class StepScore(NamedTuple):
    """What one step is worth."""

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
    diary: Diary,
    verdicts: Sequence[Sequence[bool | None]],
    answered: Sequence[Answered],
    weights: Weights,
) -> list[StepScore]:
    """What each step of an episode is worth."""
    telling = telling_chunks(diary.instance)
    shares = attributed(diary, answered, weights.evidence)
    compressed = compression(diary.memory, diary.instance)
    return [
        StepScore(
            share,
            call_rate(step, telling),
            compressed,
            content_rate(step, valid, telling),
        )
        for step, valid, share in zip(diary.steps, verdicts, shares, strict=True)
    ]


def answer_rate(answered: Sequence[Answered]) -> float:
    """r1: the mean score of the answers."""
    return sum(each.score for each in answered) / len(answered) if answered else 0.0


def call_rate(step: Step, telling: Mapping[int, bool | None]) -> float:
    """r2: the share of calls that were carried out; of a silent step, whether silence was right."""
    if not step.num_attempts:
        return _silence(step, telling)
    return sum(call.outcome.ok for call in step.calls) / step.num_attempts


def content_rate(
    step: Step, verdicts: Sequence[bool | None], telling: Mapping[int, bool | None]
) -> float:
    """r4: the share of calls whose content is valid, those nobody can judge left out."""
    if not step.num_attempts:
        return _silence(step, telling)
    judged = [verdict for verdict in verdicts if verdict is not None]
    count = len(judged) + step.num_malformed
    return sum(judged) / count if count else 0.0


def compression(memory: MemorySystem, instance: Instance) -> float:
    """r3: how much shorter the memory is than what was read; negative if it is longer."""
    return max(LEAST_COMPRESSION, 1 - memory.tokens() / max(instance.tokens, 1))


def attributed(diary: Diary, answered: Sequence[Answered], share: float) -> list[float]:
    """r1 of each step: its mean over the steps is the episode's.

    ``share`` of it goes to the steps whose writing an answer rests on; an answer that rests on no
    step's writing is shared by all, so that nothing of the reward is lost.
    """
    steps = diary.steps
    total = answer_rate(answered)
    if not share:
        return [total] * len(steps)
    credit = [0.0] * len(steps)
    for each in answered:
        writers = _writers(diary, each.sources) or range(len(steps))
        for place in writers:
            credit[place] += each.score / (len(answered) * len(writers))
    return [(1 - share) * total + share * len(steps) * earned for earned in credit]


def _writers(diary: Diary, sources: Sequence[int]) -> list[int]:
    """The steps that read the chunks, each as often as it wrote some of what was used."""
    places = {step.chunk.chunk_id: place for place, step in enumerate(diary.steps)}
    return [places[chunk] for chunk in sources if chunk in places]


def _silence(step: Step, telling: Mapping[int, bool | None]) -> float:
    """Where nobody knows whether there was anything to do, silence earns nothing."""
    return float(telling[step.chunk.chunk_id] is False)
