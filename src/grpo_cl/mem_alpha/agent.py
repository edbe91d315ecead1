"""An agent that reads chunk by chunk and writes a memory, over any function from text to text."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpo_cl.domains import load_domain
from grpo_cl.mem_alpha.data import ConversationChunk
from grpo_cl.memory import Instance, MemorySystem, schemas
from grpo_cl.memory.steps import Diary, Step
from grpo_cl.memory.views import prompt
from grpo_cl.policy.dialects import dialect_named
from grpo_cl.policy.parsing import Keys, Parsed, read_lines, read_tagged, spoken
from grpo_cl.types import ToolCall

LLM = Callable[[str], str]
"""A model: a prompt in, a completion out."""

_TAGS = ("<tool_call>", "</tool_call>")
_KEYS = Keys(name=("name", "tool", "action"), arguments=("arguments", "parameters"))


class AgentAction(NamedTuple):
    """One completion and what came of it; a skipped chunk has one too."""

    chunk_id: int
    prompt: str
    """Exactly what the model read, so that its log-probabilities can be computed again."""
    response: str
    """Exactly what it wrote."""
    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]
    """What each call answered."""
    step: Step
    """The calls as rewards see them, those that cannot be read included."""

    @property
    def success(self) -> bool:
        """Whether everything that was attempted was carried out."""
        done = sum(call.outcome.ok for call in self.step.calls)
        return done == self.step.num_attempts


class MemoryConstructionAgent:
    """Asks a model what to remember of each chunk, and does it."""

    def __init__(
        self, llm_callable: LLM, memory: MemorySystem | None = None, *, view_tokens: int = 256
    ) -> None:
        self.memory = memory or MemorySystem()
        self.actions: list[AgentAction] = []
        self._llm = llm_callable
        self._view_tokens = view_tokens
        rules = load_domain("memory").policy_text(solo=False)
        tools = dialect_named("json").describe(schemas(self.memory.taxonomy))
        self._opening = f"{rules}\n\n{tools}"

    def process_chunk(self, chunk: ConversationChunk) -> list[AgentAction]:
        """Read one chunk; one completion, hence one action."""
        record = chunk.record()
        place = str(len(self.actions) + 1)
        told = prompt(self.memory, record, place=place, tokens=self._view_tokens)
        asked = f"{self._opening}\n\n{told}\n"
        response = self._llm(asked)
        content, calls = read_reply(response)
        alone = Instance(id="chunk", chunks=(record,), questions=(), source="user", license="")
        diary = Diary(alone, self.memory)
        diary.read_on()
        made = [diary.call(call.name, call.arguments) for call in calls]
        step = diary.keep(made, content)
        results = tuple(call.outcome.message for call in made)
        self.actions.append(
            AgentAction(record.chunk_id, asked, response, tuple(calls), results, step)
        )
        return self.actions[-1:]

    def process_conversation(self, chunks: Sequence[ConversationChunk]) -> list[AgentAction]:
        """Read chunks in order."""
        return [action for chunk in chunks for action in self.process_chunk(chunk)]

    def get_action_summary(self) -> dict[str, int]:
        """How many chunks were read, and what was tried with them."""
        steps = [action.step for action in self.actions]
        made = [call for step in steps for call in step.calls]
        done = sum(call.outcome.ok for call in made)
        tools = Counter(call.outcome.tool for call in made if call.outcome.ok)
        return {
            "chunks": len(steps),
            "skipped": sum(not step.num_attempts for step in steps),
            "calls": len(made),
            "succeeded": done,
            "failed": len(made) - done,
            "malformed": sum(step.num_malformed for step in steps),
            **dict(sorted(tools.items())),
        }


def read_reply(text: str) -> Parsed:
    """The calls of a completion: JSON objects, tagged or on lines, and ``{"action": "skip"}``."""
    tagged = read_tagged(spoken(text, thinking=False), *_TAGS, _KEYS)
    lines = read_lines(tagged.content, _KEYS)
    return Parsed(lines.content, (*tagged.calls, *lines.calls))
