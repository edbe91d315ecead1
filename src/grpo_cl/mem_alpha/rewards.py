"""The rewards of reading a conversation: r1 + r2 + β·r3 + γ·r4 for each completion."""

import json
import re
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from grpo_cl.errors import ConfigError
from grpo_cl.mem_alpha.agent import LLM, AgentAction
from grpo_cl.mem_alpha.data import TrainingInstance
from grpo_cl.mem_alpha.evaluator import QAResult
from grpo_cl.memory import MemorySystem
from grpo_cl.memory.content import ContentJudge, Rules, Verdicts
from grpo_cl.memory.scoring import Weights, answer_rate, compression, score_steps
from grpo_cl.memory.steps import Call, Diary, Step

JUDGE = """\
Somebody reads a text and changes a long-term memory. A change is valid if what it stores is said in
the text to be true, can be understood without the text, and is no placeholder. Answer with one
word, VALID or INVALID."""

_VERDICT = re.compile(r"\b(IN)?VALID\b")


class Rewards(NamedTuple):
    """What a conversation earned; ``steps`` is what is learned from, and ``total`` its mean."""

    r1: float
    """Share of the questions answered right."""
    r2: float
    """Share of calls carried out, mean over completions."""
    r3: float
    """How much shorter the memory is than the conversation; negative where it is longer."""
    r4: float
    """Share of calls with valid content, mean over completions."""
    steps: tuple[float, ...]
    """The reward of each completion."""

    @property
    def total(self) -> float:
        """The mean reward of the completions."""
        return fmean(self.steps) if self.steps else 0.0


class RewardCalculator:
    """Scores what an agent did; the formulas are those of the ``memory`` domain."""

    def __init__(
        self, beta: float = 0.05, gamma: float = 0.1, llm_judge: LLM | None = None
    ) -> None:
        self._weights = Weights(beta, gamma)
        self._judge: ContentJudge = Rules() if llm_judge is None else _Asked(llm_judge)

    def calculate(
        self,
        instance: TrainingInstance,
        actions: Sequence[AgentAction],
        memory: MemorySystem,
        results: Sequence[QAResult],
    ) -> Rewards:
        """The rewards of reading ``instance``, one action for each chunk."""
        read, told = [a.chunk_id for a in actions], [c.chunk_id for c in instance.chunks]
        if read != told:
            raise ConfigError(
                f"actions of the chunks {read} do not fit the chunks {told} of "
                f"{instance.instance_id!r}; give one action for each, in order"
            )
        diary = Diary(instance.record(), memory)
        diary.steps.extend(action.step for action in actions)
        answered = [result.answered for result in results]
        verdicts = self._judge.judge(diary.steps).valid
        steps = score_steps(diary, verdicts, answered, self._weights)
        return Rewards(
            answer_rate(answered),
            fmean(step.calls for step in steps),
            compression(memory, diary.instance),
            fmean(step.content for step in steps),
            tuple(step.total(self._weights) for step in steps),
        )


class _Asked:
    """A function from text to text as a judge of content."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def judge(self, steps: Sequence[Step]) -> Verdicts:
        """A verdict for each call of each step; one that failed is invalid, and nobody is asked."""
        return Verdicts(
            [
                [call.outcome.ok and self._is_valid(call, step) for call in step.calls]
                for step in steps
            ]
        )

    def _is_valid(self, call: Call, step: Step) -> bool:
        change = f"{call.outcome.tool}({json.dumps(call.arguments, ensure_ascii=False)})"
        reply = self._llm(f"{JUDGE}\n\nText:\n{step.chunk.content}\n\nChange: {change}\n")
        found = _VERDICT.search(reply.upper())
        return found is not None and found[1] is None
