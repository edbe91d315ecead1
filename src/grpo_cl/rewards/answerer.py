"""A model that answers questions from what was found in a memory."""

import asyncio
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from grpo_cl.memory.answerers import UNKNOWN, Answer, Context
from grpo_cl.models import Form, Models, Prompt, Speaker, Voice
from grpo_cl.models.reading import read_object
from grpo_cl.roles import AnswererConfig
from grpo_cl.types import Message

ANSWER = "answer"

READER = f"""\
You answer a question from notes that somebody else took. The notes are all you know: what is not
in them you do not know, whatever you may remember otherwise. Each note has a number in brackets
and, if its writer gave one, a date; where notes disagree, the newest is right.

Answer with a JSON object: {{"answer": "...", "used": [numbers of the notes it rests on]}}
The answer is as short as can be: a name, a number, a date, a few words. If the notes do not tell
it, the answer is "{UNKNOWN}"."""

FORM = Form(
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


class ModelAnswerer:
    """Asks a frozen model, each question with its own context; a question is paid for once.

    What a model says about a question depends on the context alone, so the cache of replies answers
    for every memory in which the same entries are found.
    """

    def __init__(self, models: Models, config: AnswererConfig) -> None:
        self._models = models
        self._speaker: Speaker = models.open_role(config, "memory.answerer")

    def answer(self, asked: Sequence[tuple[str, Context]]) -> list[Answer]:
        """The answers; ``ModelCallError`` where there is none to be had."""
        return self._models.wait_for(self._answer_all(asked))

    async def _answer_all(self, asked: Sequence[tuple[str, Context]]) -> list[Answer]:
        prompts = [_prompt(question, context) for question, context in asked]
        distinct = {prompt.digest(): prompt for prompt in prompts}
        answers = await asyncio.gather(*map(self._ask, distinct.values()))
        known = dict(zip(distinct, answers, strict=True))
        return [known[prompt.digest()] for prompt in prompts]

    async def _ask(self, prompt: Prompt) -> Answer:
        # A voice of its own: its seed must not depend on what else was asked.
        voice = Voice(self._speaker, role="answerer", seed=0)
        answer = await voice.read(prompt, read_answer, purpose=ANSWER)
        return answer._replace(calls=tuple(voice.calls))


def read_answer(text: str) -> Answer:
    """An answer in the text of a model; ``ValueError`` if there is none."""
    found = read_object(text)
    answer = found.get("answer")
    if not isinstance(answer, str | int | float) or isinstance(answer, bool):
        raise ValueError(f"no answer in {text[:80]!r}")
    try:
        used = _IDS.validate_python(found.get("used"))
    except ValidationError:
        used = None  # the answer counts all the same; what it rests on is guessed
    return Answer(str(answer), used)


def _prompt(question: str, context: Context) -> Prompt:
    notes = context.text or "(There are no notes.)"
    text = f"<notes>\n{notes}\n</notes>\n\n<question>\n{question}\n</question>"
    return Prompt(READER, [Message(role="user", content=text)], (), FORM)
