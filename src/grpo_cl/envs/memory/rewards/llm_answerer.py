"""An answerer that asks a hosted model."""

import asyncio
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from grpo_cl.config import AnswererConfig
from grpo_cl.envs.memory.rewards.answer_grading import UNKNOWN
from grpo_cl.envs.memory.rewards.question_answering import Answer, Context
from grpo_cl.llm import ChatModel, ChatSession, ModelPool, Prompt, ResponseSchema
from grpo_cl.llm.json_replies import parse_json_object
from grpo_cl.types import Message

ANSWER = "answer"

ANSWER_PROMPT = f"""\
You answer a question from notes that somebody else took. The notes are all you know: what is not
in them you do not know, whatever you may remember otherwise. Each note has a number in brackets
and, if its writer gave one, a date; where notes disagree, the newest is right.

Answer with a JSON object: {{"answer": "...", "used": [numbers of the notes it rests on]}}
The answer is as short as can be: a name, a number, a date, a few words. If the notes do not tell
it, the answer is "{UNKNOWN}"."""

ANSWER_SCHEMA = ResponseSchema(
    ANSWER,
    {
        "type": "object",
        "properties": {
            "answer": {"type": "string"},
            "used": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["answer", "used"],
        "additionalProperties": False,
    },
)

_IDS = TypeAdapter(tuple[int, ...])


class LLMAnswerer:
    """Asks a frozen model one question at a time with its context.

    A reply depends on question and context only, so the reply cache serves every memory for which
    the same entries are retrieved.
    """

    def __init__(self, models: ModelPool, config: AnswererConfig) -> None:
        self._models = models
        self._model: ChatModel = models.open_role(config, "memory.answerer")

    def answer(self, questions: Sequence[tuple[str, Context]]) -> list[Answer]:
        """The answers; raises ``ModelCallError`` if the model does not reply."""
        return self._models.run_sync(self._answer_all(questions))

    async def _answer_all(self, questions: Sequence[tuple[str, Context]]) -> list[Answer]:
        prompts = [_prompt(question, context) for question, context in questions]
        distinct = {prompt.digest(): prompt for prompt in prompts}
        answers = await asyncio.gather(*map(self._ask, distinct.values()))
        by_digest = dict(zip(distinct, answers, strict=True))
        return [by_digest[prompt.digest()] for prompt in prompts]

    async def _ask(self, prompt: Prompt) -> Answer:
        # A new session per question: its seed must not depend on the other questions.
        session = ChatSession(self._model, role="answerer", seed=0)
        answer = await session.ask_parsed(prompt, parse_answer, purpose=ANSWER)
        return answer._replace(calls=tuple(session.calls))


def parse_answer(text: str) -> Answer:
    """The answer in a model's reply; raises ``ValueError`` if there is none."""
    reply = parse_json_object(text)
    answer = reply.get("answer")
    if not isinstance(answer, str | int | float) or isinstance(answer, bool):
        raise ValueError(f"no answer in {text[:80]!r}")
    try:
        used = _IDS.validate_python(reply.get("used"))
    except ValidationError:
        used = None  # the answer still counts; its evidence is inferred
    return Answer(str(answer), used)


def _prompt(question: str, context: Context) -> Prompt:
    notes = context.text or "(There are no notes.)"
    text = f"<notes>\n{notes}\n</notes>\n\n<question>\n{question}\n</question>"
    return Prompt(ANSWER_PROMPT, [Message(role="user", content=text)], (), ANSWER_SCHEMA)
