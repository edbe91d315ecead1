"""Formulas of an earlier memory trainer with known defects, B1 to B12 and S1 to S6.

For each defect a test shows that the old formula lacks a property and that this package has it.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple


def old_log_probs(count: int) -> list[float]:
    """B2: log-probs are not recorded."""
    return [0.0] * count


def old_loss(advantages: Sequence[float], old: Sequence[float], new: Sequence[float]) -> float:
    """B1: the importance ratio is always 1."""
    del new
    ratios = [math.exp(each - each) for each in old]
    return -fmean(ratio * gain for ratio, gain in zip(ratios, advantages, strict=True))


def old_advantages(rollouts: Sequence[Sequence[float]]) -> list[list[float]]:
    """B3: advantages are relative to the whole batch."""
    rewards = [reward for rollout in rollouts for reward in rollout]
    mean = fmean(rewards)
    std = math.sqrt(fmean((reward - mean) ** 2 for reward in rewards)) or 1.0
    return [[(reward - mean) / (std + 1e-8) for reward in rollout] for rollout in rollouts]


class OldPolicy:
    """B4 and B12: ``update`` changes nothing, and ``generate`` is constant."""

    def __init__(self) -> None:
        self.weights = [0.1, 0.2]

    def generate(self, prompt: str) -> str:
        del prompt
        return '{"name": "memory_insert", "arguments": {"content": "Mock memory entry"}}'

    def update(self, loss: float) -> None:
        del loss


def old_action_reward(*, ok: bool, accuracy: float, compressed: float, gamma: float) -> float:
    """B5: the content reward is a copy of the success reward."""
    success = content = 1.0 if ok else 0.0
    return accuracy + success + 0.05 * compressed + gamma * content


class OldAction(NamedTuple):
    """B8: prompt and response are not recorded."""

    chunk_id: int
    tool_name: str
    arguments: dict[str, Any]
    result: str


def old_actions(chunk_id: int, reply: str) -> list[OldAction]:
    """B6 and S4: one sample per regex match, so none for a skipped chunk."""
    actions: list[OldAction] = []
    for text in re.findall(r'\{[^{}]*"arguments"\s*:\s*\{[^{}]*\}[^{}]*\}', reply):
        try:
            call = json.loads(text)
        except ValueError:
            continue
        actions.append(OldAction(chunk_id, call["name"], call["arguments"], "ok"))
    return actions


def old_metric_and_learned(ok: Sequence[bool], accuracy: float) -> tuple[float, float]:
    """B9: the reported reward, and the mean training reward."""
    reported = old_total(accuracy, sum(ok), len(ok), memory=0, read=1)
    learned = [old_action_reward(ok=o, accuracy=accuracy, compressed=1.0, gamma=0.1) for o in ok]
    return reported, fmean(learned) if learned else 0.0


def old_checkpoint(step: int, config: dict[str, float]) -> dict[str, Any]:
    """B10: the checkpoint has no weights."""
    return {"step": step, "config": config, "history": []}


def old_training(epochs: int, batches: int, max_steps: int) -> int:
    """B11: number of steps, since max_steps ends an epoch only."""
    step = 0
    for _ in range(epochs):
        for _ in range(batches):
            step += 1
            if step >= max_steps:
                break
    return step


def old_evaluation(rewards: Sequence[float]) -> float:
    """B11: the mean of an empty list fails."""
    return sum(rewards) / len(rewards)


def old_answer(policy: Callable[[str], str], question: str) -> str:
    """B7: the trained policy answers the questions."""
    return policy(question)


def old_is_correct(predicted: str, truth: str) -> bool:
    """S1: substring match in either direction."""
    predicted, truth = predicted.lower().strip(" ."), truth.lower()
    return truth in predicted or predicted in truth


def old_is_valid(reply: str) -> bool:
    """S2: "INVALID" contains "VALID"."""
    return "VALID" in reply.upper()


def old_total(accuracy: float, ok: int, total: int, *, memory: int, read: int) -> float:
    """S3 and S6: no calls count as success, and compression is clamped at 0."""
    success = ok / total if total else 1.0
    return accuracy + success + 0.05 * max(0.0, 1 - memory / read) + 0.1 * 1.0


class OldRetriever:
    """S5: the index is built once."""

    def __init__(self, contents: Sequence[str]) -> None:
        self._contents = list(contents)

    def retrieve(self, word: str) -> list[str]:
        return [content for content in self._contents if word in content]
