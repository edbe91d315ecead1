"""A model that decides what no rule can: natural-language assertions about a conversation."""

from collections.abc import Sequence
from functools import partial

from pydantic import TypeAdapter

from grpo_cl.models import Form, Models, Prompt, Speaker, Voice
from grpo_cl.models.reading import read_object
from grpo_cl.models.script import as_script
from grpo_cl.roles import JudgeConfig
from grpo_cl.transcripts import Judgement
from grpo_cl.types import Message, Task

VERDICT = "verdict"

JUDGE = """\
You judge a recorded conversation between a support agent and a customer. You are given the
conversation, with the tools that were called and what they answered, and a numbered list of
statements about it. Decide for each statement whether the conversation shows it to be true. Only
what is in the record counts: a promise is not a deed, and what the agent did not tell the customer
was not communicated. Wording may differ; facts, numbers and names may not.

Answer with a JSON object that has one entry for every statement, in order:
{"verdicts": [{"number": 1, "reason": "one sentence", "met": true or false}, ...]}"""

FORM = Form(
    VERDICT,
    {
        "type": "object",
        "properties": {
            "verdicts": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "number": {"type": "integer"},
                        "reason": {"type": "string"},
                        "met": {"type": "boolean"},
                    },
                    "required": ["number", "reason", "met"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["verdicts"],
        "additionalProperties": False,
    },
)

_MET = TypeAdapter(bool)


class ModelJudge:
    """Asks a model about all assertions of a task at once, as often as there are votes."""

    def __init__(self, models: Models, config: JudgeConfig) -> None:
        self._models = models
        self._votes = config.votes
        self._speaker: Speaker = models.open_role(config, "judge")

    def judge(self, task: Task, messages: Sequence[Message]) -> Judgement:
        """Whether each of the task's assertions is met; ``ModelCallError`` where nobody says.

        The questions depend on nothing else, so a stored trajectory is judged again by the cache.
        """
        return self._models.wait_for(self._decide(task, messages))

    async def _decide(self, task: Task, messages: Sequence[Message]) -> Judgement:
        criteria = task.evaluation_criteria
        assertions = (criteria.nl_assertions or ()) if criteria else ()
        prompt = Prompt(
            JUDGE, [Message(role="user", content=_case(assertions, messages))], (), FORM
        )
        voice = Voice(self._speaker, role="judge", seed=0)
        votes = [await read_vote(voice, prompt, len(assertions)) for _ in range(self._votes)]
        return Judgement(model=voice.model, votes=tuple(votes), calls=tuple(voice.calls))


async def read_vote(voice: Voice, prompt: Prompt, count: int) -> tuple[bool, ...]:
    """What a judge says about each of ``count`` statements, asked once more if it is unreadable."""
    return await voice.read(prompt, partial(read_verdicts, count=count), purpose=VERDICT)


def read_verdicts(text: str, count: int) -> tuple[bool, ...]:
    """What a judge's text says about each of ``count`` statements; ``ValueError`` if it does not.

    Prose around the JSON is passed over, and so is the order where entries are numbered.
    """
    entries = read_object(text).get("verdicts")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"no list of verdicts in {text[:80]!r}")
    numbered = {entry.get("number", place): entry for place, entry in enumerate(entries, 1)}
    if set(numbered) != set(range(1, count + 1)) or len(entries) != count:
        raise ValueError(f"{len(entries)} verdicts on {count} statements")
    return tuple(_MET.validate_python(numbered[n].get("met")) for n in range(1, count + 1))


def _case(assertions: Sequence[str], messages: Sequence[Message]) -> str:
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(assertions, 1))
    record = as_script(messages)
    return f"<conversation>\n{record}\n</conversation>\n\n<statements>\n{listed}\n</statements>"
