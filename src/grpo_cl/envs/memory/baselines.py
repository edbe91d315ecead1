"""Rule-based baseline policies for memory construction."""

from collections.abc import Callable, Mapping

from grpo_cl.envs.memory.generator import Operation, gold_operations
from grpo_cl.envs.memory.instances import Chunk, Instance
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode
from grpo_cl.envs.memory.store.tools import DELETE, INSERT

BaselinePolicy = Callable[[Chunk], list[Operation]]
"""The operations at a chunk; they do not depend on the memory."""

USER_PREFIX = "User: "
HEADER = "[Dialogue"


def run_baseline(instance: Instance, policy: BaselinePolicy) -> MemoryEpisode:
    """The episode of a baseline policy on an instance."""
    episode = MemoryEpisode(instance)
    while chunk := episode.next_chunk():
        episode.apply([(operation.name, operation.arguments) for operation in policy(chunk)])
    return episode


def oracle(chunk: Chunk) -> list[Operation]:
    """The gold operations; none for a chunk that was not generated."""
    return gold_operations(chunk) or []


def append(chunk: Chunk) -> list[Operation]:
    """An insertion for each fact, without updates and deletions."""
    return [
        Operation(INSERT, {"content": str(gold.arguments["content"]).partition(" Before:")[0]})
        for gold in oracle(chunk)
        if gold.name != DELETE
    ]


def append_dated(chunk: Chunk) -> list[Operation]:
    """As ``append``, with the date of the chunk."""
    return [_dated(operation, chunk) for operation in append(chunk)]


def copy_lines(chunk: Chunk) -> list[Operation]:
    """A copy of each line, with the date of the chunk."""
    lines = [
        line.removeprefix(USER_PREFIX)
        for line in chunk.content.split("\n")
        if line.strip() and not line.startswith(HEADER)
    ]
    return [_dated(Operation(INSERT, {"content": line}), chunk) for line in lines]


def copy_chunk(chunk: Chunk) -> list[Operation]:
    """A copy of the whole chunk as one entry."""
    return [_dated(Operation(INSERT, {"content": chunk.content}), chunk)]


def mock(chunk: Chunk) -> list[Operation]:
    """A placeholder entry per chunk."""
    return [Operation(INSERT, {"content": f"Mock memory entry {chunk.chunk_id}"})]


def idle(chunk: Chunk) -> list[Operation]:
    """No operation."""
    del chunk
    return []


def _dated(operation: Operation, chunk: Chunk) -> Operation:
    dated = {**operation.arguments, "timestamp": chunk.timestamp} if chunk.timestamp else {}
    return operation._replace(arguments=dated or operation.arguments)


BASELINES: Mapping[str, BaselinePolicy] = {
    "oracle": oracle,
    "append_dated": append_dated,
    "append": append,
    "copy_lines": copy_lines,
    "copy_chunk": copy_chunk,
    "mock": mock,
    "idle": idle,
}
"""By name, best first."""
