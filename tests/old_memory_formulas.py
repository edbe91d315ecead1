"""What the earlier memory package computed, rewritten from a description of its faults.

The names B1 to B12 and S1 to S6 are those of the description; a test shows for each that the old
rule lacks a property and that ours has it.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple


def old_log_probs(count: int) -> list[float]:
    """B2: what sampling is said to have cost."""
    return [0.0] * count


def old_loss(advantages: Sequence[float], old: Sequence[float], new: Sequence[float]) -> float:
    """B1: the ratio of a number to itself."""
    del new
    ratios = [math.exp(each - each) for each in old]
    return -fmean(ratio * gain for ratio, gain in zip(ratios, advantages, strict=True))


def old_advantages(rollouts: Sequence[Sequence[float]]) -> list[list[float]]:
    """B3: relative to the whole batch."""
    every = [reward for rollout in rollouts for reward in rollout]
    mean = fmean(every)
    spread = math.sqrt(fmean((reward - mean) ** 2 for reward in every)) or 1.0
    return [[(reward - mean) / (spread + 1e-8) for reward in rollout] for rollout in rollouts]


class OldPolicy:
    """B4 and B12: it is told a number, and says the same whatever it was told."""

    def __init__(self) -> None:
        self.weights = [0.1, 0.2]

    def generate(self, prompt: str) -> str:
        del prompt
        return '{"name": "memory_insert", "arguments": {"content": "Mock memory entry"}}'

    def update(self, loss: float) -> None:
        del loss


def old_action_reward(*, ok: bool, accuracy: float, compressed: float, gamma: float) -> float:
    """B5: content is another word for success."""
    success = content = 1.0 if ok else 0.0
    return accuracy + success + 0.05 * compressed + gamma * content


class OldAction(NamedTuple):
    """B8: neither what was read nor what was written."""

    chunk_id: int
    tool_name: str
    arguments: dict[str, Any]
    result: str


def old_actions(chunk_id: int, reply: str) -> list[OldAction]:
    """B6 and S4: one sample for each call a pattern finds, hence none for silence."""
    found: list[OldAction] = []
    for text in re.findall(r'\{[^{}]*"arguments"\s*:\s*\{[^{}]*\}[^{}]*\}', reply):
        try:
            call = json.loads(text)
        except ValueError:
            continue
        found.append(OldAction(chunk_id, call["name"], call["arguments"], "ok"))
    return found


def old_metric_and_learned(ok: Sequence[bool], accuracy: float) -> tuple[float, float]:
    """B9: the reward that is reported, and the mean of those that are learned from."""
    reported = old_total(accuracy, sum(ok), len(ok), memory=0, read=1)
    learned = [old_action_reward(ok=o, accuracy=accuracy, compressed=1.0, gamma=0.1) for o in ok]
    return reported, fmean(learned) if learned else 0.0


def old_checkpoint(step: int, config: dict[str, float]) -> dict[str, Any]:
    """B10: everything but what was learned."""
    return {"step": step, "config": config, "history": []}


def old_training(epochs: int, batches: int, max_steps: int) -> int:
    """B11: how many steps are made when each epoch ends by itself."""
    step = 0
    for _ in range(epochs):
        for _ in range(batches):
            step += 1
            if step >= max_steps:
                break
    return step


def old_evaluation(rewards: Sequence[float]) -> float:
    """B11: the mean of nothing."""
    return sum(rewards) / len(rewards)


def old_answer(policy: Callable[[str], str], question: str) -> str:
    """B7: the policy that wrote the memory answers the questions too."""
    return policy(question)


def old_is_correct(predicted: str, truth: str) -> bool:
    """S1: either holds the other."""
    one, other = predicted.lower().strip(" ."), truth.lower()
    return other in one or one in other


def old_is_valid(reply: str) -> bool:
    """S2: a word within a word."""
    return "VALID" in reply.upper()


def old_total(accuracy: float, ok: int, total: int, *, memory: int, read: int) -> float:
    """S3 and S6: silence is perfect, and a memory cannot be too long; lengths in characters."""
    success = ok / total if total else 1.0
    return accuracy + success + 0.05 * max(0.0, 1 - memory / read) + 0.1 * 1.0


class OldRetriever:
    """S5: an index that is built once."""

    def __init__(self, contents: Sequence[str]) -> None:
        self._contents = list(contents)

    def retrieve(self, word: str) -> list[str]:
        return [content for content in self._contents if word in content]
