"""The world of one episode: chunks that come one by one, and the memory that is written."""

from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import override

from grpo_cl.domains.tau2 import Tau2Environment
from grpo_cl.domains.toolkit import Toolkit
from grpo_cl.errors import ToolError
from grpo_cl.memory import Instance, MemorySystem
from grpo_cl.memory.steps import Diary
from grpo_cl.memory.tools import NAME_ALIASES, SKIP, TOOLS
from grpo_cl.memory.views import prompt
from grpo_cl.roles import MemoryConfig


class MemoryTable:
    """A memory as the rest of the package sees a database."""

    def __init__(self, memory: MemorySystem) -> None:
        self._memory = memory

    def changes(self) -> Mapping[tuple[str, str], str | None]:
        """Everything that is remembered, as an episode begins with nothing."""
        entries = self._memory.entries.items()
        found = {("entries", str(entry_id)): entry.model_dump_json() for entry_id, entry in entries}
        return {**found, ("core", "text"): self._memory.core} if self._memory.core else found

    def base(self, records: Iterable[tuple[str, str]]) -> dict[tuple[str, str], None]:
        """Nothing of any of them: an episode begins without memories."""
        return dict.fromkeys(records)

    def sha256(self) -> str:
        """The hash of the whole memory."""
        return self._memory.hash()


class MemoryTools(Toolkit):
    """The memory tools over one episode's diary."""

    tools = frozenset(TOOLS)
    writes = frozenset({*TOOLS, *NAME_ALIASES}) - {SKIP}

    def __init__(self, diary: Diary) -> None:
        self.diary = diary
        self.db: Any = MemoryTable(diary.memory)

    @override
    def use(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call; raises ``ToolError`` with what the agent reads if it is wrong."""
        outcome = self.diary.call(name, arguments).outcome
        if not outcome.ok:
            raise ToolError(outcome.message)
        return outcome.message


class MemoryEnvironment(Tau2Environment):
    """Tells the chunks of an instance, each with what the memory holds about it."""

    def __init__(self, instance: Instance, settings: MemoryConfig) -> None:
        self.diary = Diary(instance, stamp=settings.stamp)
        self._view_tokens = settings.view_tokens
        super().__init__(MemoryTools(self.diary), None, solo=False)

    @override
    def tell(self) -> str | None:
        chunk = self.diary.read_on()
        if chunk is None:
            return None
        place = f"{self.diary.num_read} of {len(self.diary.instance.chunks)}"
        return prompt(self.diary.memory, chunk, place=place, tokens=self._view_tokens)
