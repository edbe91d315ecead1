"""LLM judge of natural-language assertions about a conversation."""

from collections.abc import Sequence

from grpo_cl.config import JudgeConfig
from grpo_cl.llm import ChatModel, ChatSession, ModelPool, Prompt
from grpo_cl.llm.json_replies import VERDICT_SCHEMA, ask_verdicts
from grpo_cl.llm.prompt import format_transcript
from grpo_cl.types import Judgement, Message, Task

JUDGE = """\
You judge a recorded conversation between a support agent and a customer. You are given the
conversation, with the tools that were called and what they answered, and a numbered list of
statements about it. Decide for each statement whether the conversation shows it to be true. Only
what is in the record counts: a promise is not a deed, and what the agent did not tell the customer
was not communicated. Wording may differ; facts, numbers and names may not.

Answer with a JSON object that has one entry for every statement, in order:
{"verdicts": [{"number": 1, "reason": "one sentence", "met": true or false}, ...]}"""


class LLMJudge:
    """Asks a model about all assertions of a task in one call, ``votes`` times."""

    def __init__(self, models: ModelPool, config: JudgeConfig) -> None:
        self._models = models
        self._votes = config.votes
        self._model: ChatModel = models.open_role(config, "judge")

    def judge(self, task: Task, messages: Sequence[Message]) -> Judgement:
        """Whether each of the task's assertions is met; ``ModelCallError`` without an answer.

        The prompt depends on nothing else, so scoring a stored trajectory again uses the cache.
        """
        return self._models.run_sync(self._decide(task, messages))

    async def _decide(self, task: Task, messages: Sequence[Message]) -> Judgement:
        criteria = task.evaluation_criteria
        assertions = (criteria.nl_assertions or ()) if criteria else ()
        content = _judge_input(assertions, messages)
        prompt = Prompt(JUDGE, [Message(role="user", content=content)], (), VERDICT_SCHEMA)
        session = ChatSession(self._model, role="judge", seed=0)
        votes = [await ask_verdicts(session, prompt, len(assertions)) for _ in range(self._votes)]
        return Judgement(model=session.model_name, votes=tuple(votes), calls=tuple(session.calls))


def _judge_input(assertions: Sequence[str], messages: Sequence[Message]) -> str:
    numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(assertions, 1))
    record = format_transcript(messages)
    return f"<conversation>\n{record}\n</conversation>\n\n<statements>\n{numbered}\n</statements>"
