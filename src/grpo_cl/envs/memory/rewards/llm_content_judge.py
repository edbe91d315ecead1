"""A content judge that asks a hosted model."""

import asyncio
import json
from collections.abc import Sequence

from grpo_cl.config import JudgeConfig
from grpo_cl.envs.memory.rewards.content import Verdicts
from grpo_cl.envs.memory.rewards.episode import ExecutedCall, Step
from grpo_cl.llm import ChatModel, ChatSession, ModelPool, Prompt
from grpo_cl.llm.json_replies import VERDICT_SCHEMA, ask_verdicts
from grpo_cl.types import Message, ModelCall

JUDGE_PROMPT = """\
You judge what somebody writes into a long-term memory while reading a text. You are given the text
and a numbered list of changes. Decide for each whether it is valid:
- what is stored is said in the text to be true, or was in the memory before and still is;
- it is a statement that can be understood without the text, not a placeholder or a remark about the
  memory itself;
- something that happened has a date, and "yesterday" is none;
- what is deleted or overwritten is wrong or of no use from now on.

Answer with a JSON object that has one entry for every change, in order:
{"verdicts": [{"number": 1, "reason": "one sentence", "met": true or false}, ...]}"""


class LLMContentJudge:
    """Asks a model about all changes of a step in one call, with the chunk as context."""

    def __init__(self, models: ModelPool, config: JudgeConfig) -> None:
        self._models = models
        self._model: ChatModel = models.open_role(config, "memory.judge")

    def judge(self, steps: Sequence[Step]) -> Verdicts:
        """A verdict for each call of each step; failed calls are invalid without a model call."""
        judged = self._models.run_sync(self._judge_all(steps))
        model_calls = tuple(call for _, calls in judged for call in calls)
        return Verdicts([valid for valid, _ in judged], model_calls)

    async def _judge_all(self, steps: Sequence[Step]) -> list[tuple[list[bool], list[ModelCall]]]:
        return await asyncio.gather(*map(self._judge_step, steps))

    async def _judge_step(self, step: Step) -> tuple[list[bool], list[ModelCall]]:
        successful = [call for call in step.calls if call.outcome.ok]
        if not successful:
            return [False] * len(step.calls), []
        session = ChatSession(self._model, role="content judge", seed=0)
        verdicts = iter(await ask_verdicts(session, _prompt(step, successful), len(successful)))
        return [call.outcome.ok and next(verdicts) for call in step.calls], session.calls


def _prompt(step: Step, calls: Sequence[ExecutedCall]) -> Prompt:
    changes = "\n".join(f"{number}. {_format(call)}" for number, call in enumerate(calls, 1))
    text = f"<text>\n{step.chunk.content}\n</text>\n\n<changes>\n{changes}\n</changes>"
    return Prompt(JUDGE_PROMPT, [Message(role="user", content=text)], (), VERDICT_SCHEMA)


def _format(call: ExecutedCall) -> str:
    before = call.before.content if call.before else call.core_before
    changed = f" where the memory said {before!r}" if before else ""
    return f"{call.outcome.tool}({json.dumps(call.arguments, ensure_ascii=False)}){changed}"
