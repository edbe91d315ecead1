"""Mem-α's categories, and its dispatcher of tool calls."""

from enum import StrEnum
from typing import NamedTuple

from grpo_cl.envs.memory import MemorySystem, Outcome, Source, default_taxonomy, execute


class MemoryCategory(StrEnum):
    """The nine categories of the default taxonomy (``envs/memory/taxonomy.yaml``)."""

    SENSORY_LIFESTYLE = "sensory_lifestyle"
    CULTURE_ENTERTAINMENT = "culture_entertainment"
    COGNITION_WORK = "cognition_work"
    VALUES = "values"
    PHYSIOLOGY_HEALTH = "physiology_health"
    RESOURCE_ECONOMIC = "resource_economic"
    SOCIAL_INTERPERSONAL = "social_interpersonal"
    SPATIOTEMPORAL_CONTEXT = "spatiotemporal_context"
    PSYCHOLOGICAL_DEFENSE = "psychological_defense"

    @property
    def description(self) -> str:
        """What belongs to the category."""
        taxonomy = default_taxonomy()
        return taxonomy.categories[taxonomy.category_positions[self.value]].description


class ToolCallResult(NamedTuple):
    """The result of one tool call, or of all calls of a completion."""

    success: bool
    message: str
    """The text the agent reads; of a failed call, the reason."""
    tool_name: str
    entry_id: int | None = None
    """The entry that was inserted, updated or deleted."""

    @classmethod
    def of(cls, outcome: Outcome) -> "ToolCallResult":
        """The result of an executed call."""
        return cls(outcome.ok, outcome.message, outcome.tool, outcome.entry_id)


class MemoryManager:
    """Executes tool calls on a memory; a refused call leaves it unchanged."""

    def __init__(self, memory_system: MemorySystem | None = None) -> None:
        self.memory = memory_system or MemorySystem()

    def execute_tool(
        self,
        tool_name: str,
        arguments: object,
        *,
        chunk_id: int | None = None,
        timestamp: str | None = None,
    ) -> ToolCallResult:
        """Execute one call; ``timestamp`` is the date of an entry whose call has none."""
        source = Source(chunk_id, timestamp)
        return ToolCallResult.of(execute(self.memory, tool_name, arguments, source=source))
