"""A model that decides whether what an agent remembers is worth remembering."""

import asyncio
import json
from collections.abc import Sequence

from grpo_cl.memory.content import Verdicts
from grpo_cl.memory.steps import Call, Step
from grpo_cl.models import Models, Prompt, Speaker, Voice
from grpo_cl.rewards.judge import FORM, read_vote
from grpo_cl.roles import JudgeConfig
from grpo_cl.transcripts import ModelCall
from grpo_cl.types import Message

CONTENT = """\
You judge what somebody writes into a long-term memory while reading a text. You are given the text
and a numbered list of changes. Decide for each whether it is valid:
- what is stored is said in the text to be true, or was in the memory before and still is;
- it is a statement that can be understood without the text, not a placeholder or a remark about the
  memory itself;
- something that happened has a date, and "yesterday" is none;
- what is deleted or overwritten is wrong or of no use from now on.

Answer with a JSON object that has one entry for every change, in order:
{"verdicts": [{"number": 1, "reason": "one sentence", "met": true or false}, ...]}"""


class ModelContentJudge:
    """Asks a model about all changes of a step at once; it sees the text, so it sees inventions."""

    def __init__(self, models: Models, config: JudgeConfig) -> None:
        self._models = models
        self._speaker: Speaker = models.open_role(config, "memory.judge")

    def judge(self, steps: Sequence[Step]) -> Verdicts:
        """A verdict for each call of each step; one that failed is invalid, and nobody is asked."""
        found = self._models.wait_for(self._judge_all(steps))
        calls = tuple(call for _, asked in found for call in asked)
        return Verdicts([valid for valid, _ in found], calls)

    async def _judge_all(self, steps: Sequence[Step]) -> list[tuple[list[bool], list[ModelCall]]]:
        return await asyncio.gather(*map(self._judge_step, steps))

    async def _judge_step(self, step: Step) -> tuple[list[bool], list[ModelCall]]:
        made = [call for call in step.calls if call.outcome.ok]
        if not made:
            return [False] * len(step.calls), []
        voice = Voice(self._speaker, role="content judge", seed=0)
        verdicts = iter(await read_vote(voice, _prompt(step, made), len(made)))
        return [call.outcome.ok and next(verdicts) for call in step.calls], voice.calls


def _prompt(step: Step, made: Sequence[Call]) -> Prompt:
    changes = "\n".join(f"{number}. {_shown(call)}" for number, call in enumerate(made, 1))
    text = f"<text>\n{step.chunk.content}\n</text>\n\n<changes>\n{changes}\n</changes>"
    return Prompt(CONTENT, [Message(role="user", content=text)], (), FORM)


def _shown(call: Call) -> str:
    before = call.before.content if call.before else call.core_before
    changed = f" where the memory said {before!r}" if before else ""
    return f"{call.outcome.tool}({json.dumps(call.arguments, ensure_ascii=False)}){changed}"
