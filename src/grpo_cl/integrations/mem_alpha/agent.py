"""Mem-α's memory construction agent over any function from prompt to completion."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_cl.envs import load_domain
from grpo_cl.envs.memory import Instance, MemorySystem, Taxonomy, default_taxonomy, schemas
from grpo_cl.envs.memory.environment import observation
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode, Step
from grpo_cl.envs.memory.store.tools import SKIP
from grpo_cl.integrations.mem_alpha.data import ConversationChunk
from grpo_cl.integrations.mem_alpha.tools import ToolCallResult
from grpo_cl.policy.chat.dialects import dialect_named
from grpo_cl.policy.chat.tool_call_parser import (
    CallKeys,
    ParsedReply,
    parse_json_lines,
    parse_tagged,
    strip_reasoning,
)
from grpo_cl.types import ToolCall

LLM = Callable[[str], str]
"""A model: prompt to completion."""

_TAGS = ("<tool_call>", "</tool_call>")
_KEYS = CallKeys(name=("name", "tool", "action"), arguments=("arguments", "parameters"))


class AgentAction(NamedTuple):
    """One completion with its calls and results; a skipped chunk has one too."""

    chunk_id: int
    prompt: str
    """The exact prompt, so that log-probs can be recomputed. In an episode of a Hugging Face model,
    whose context grows, the observation; the exact tokens are in ``RolloutResult.trajectory``."""
    response: str
    """The exact completion."""
    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]
    """The result of each call."""
    step: Step
    """The step that rewards are computed from, with malformed calls."""

    @property
    def num_succeeded(self) -> int:
        """The number of calls that succeeded."""
        return sum(call.outcome.ok for call in self.step.calls)

    @property
    def success(self) -> bool:
        """Whether every attempted call succeeded."""
        return self.num_succeeded == self.step.num_attempts

    @property
    def tool_name(self) -> str:
        """The tool of the first call; ``skip`` without calls."""
        return self.calls[0].name if self.calls else SKIP

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the first call."""
        return self.calls[0].arguments if self.calls else {}

    @property
    def result(self) -> ToolCallResult:
        """The result of all calls together: a malformed call is a failed one."""
        message = "; ".join(self.results)
        if self.step.num_malformed:
            message = "; ".join([*self.results, f"{self.step.num_malformed} malformed calls"])
        return ToolCallResult(self.success, message, self.tool_name)

    @property
    def tool_results(self) -> tuple[ToolCallResult, ...]:
        """The result of each call that changes the memory; ``skip`` is none."""
        return tuple(ToolCallResult.of(call.outcome) for call in self.step.calls)


class MemoryConstructionAgent:
    """Prompts a model with each chunk and executes the calls of its completion."""

    def __init__(
        self, llm_callable: LLM, memory: MemorySystem | None = None, *, view_tokens: int = 256
    ) -> None:
        self.memory = memory or MemorySystem()
        self.actions: list[AgentAction] = []
        self._llm = llm_callable
        self._view_tokens = view_tokens

    def process_chunk(self, chunk: ConversationChunk) -> list[AgentAction]:
        """Process one chunk with one completion; the list has one action."""
        record = chunk.record()
        position = str(len(self.actions) + 1)
        text = observation(self.memory, record, position=position, view_tokens=self._view_tokens)
        prompt = chunk_prompt(text, self.memory.taxonomy)
        response = self._llm(prompt)
        content, calls = parse_reply(response)
        instance = Instance(id="chunk", chunks=(record,), questions=(), source="user", license="")
        episode = MemoryEpisode(instance, self.memory)
        episode.next_chunk()
        executed = [episode.call(call.name, call.arguments) for call in calls]
        step = episode.record_step(executed, content)
        results = tuple(call.outcome.message for call in executed)
        self.actions.append(
            AgentAction(record.chunk_id, prompt, response, tuple(calls), results, step)
        )
        return self.actions[-1:]

    def process_conversation(self, chunks: Sequence[ConversationChunk]) -> list[AgentAction]:
        """Process chunks in order."""
        return [action for chunk in chunks for action in self.process_chunk(chunk)]

    def get_action_summary(self) -> dict[str, int]:
        """Counts of chunks, and of calls by result and tool."""
        steps = [action.step for action in self.actions]
        calls = [call for step in steps for call in step.calls]
        succeeded = sum(call.outcome.ok for call in calls)
        tools = Counter(call.outcome.tool for call in calls if call.outcome.ok)
        return {
            "chunks": len(steps),
            "skipped": sum(not step.num_attempts for step in steps),
            "calls": len(calls),
            "succeeded": succeeded,
            "failed": len(calls) - succeeded,
            "malformed": sum(step.num_malformed for step in steps),
            **dict(sorted(tools.items())),
        }


def chunk_prompt(observation_text: str, taxonomy: Taxonomy | None = None) -> str:
    """The prompt of one completion: rules, tools, a view of the memory, and the chunk."""
    return f"{_instructions(taxonomy or default_taxonomy())}\n\n{observation_text}\n"


def _instructions(taxonomy: Taxonomy) -> str:
    rules = load_domain("memory").policy_text(solo=False)
    return f"{rules}\n\n{dialect_named('json').describe_tools(schemas(taxonomy))}"


def parse_reply(text: str) -> ParsedReply:
    """The calls of a completion: tagged JSON or JSON lines, with ``{"action": "skip"}``."""
    tagged = parse_tagged(strip_reasoning(text, is_open=False), *_TAGS, _KEYS)
    lines = parse_json_lines(tagged.content, _KEYS)
    return ParsedReply(lines.content, (*tagged.calls, *lines.calls))
