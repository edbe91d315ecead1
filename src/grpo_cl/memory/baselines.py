"""Writers that follow a rule: what a policy that learns is compared with."""

from collections.abc import Callable, Mapping

from grpo_cl.memory.generator import Operation, gold_operations
from grpo_cl.memory.instances import Chunk, Instance
from grpo_cl.memory.steps import Diary
from grpo_cl.memory.tools import DELETE, INSERT

Writer = Callable[[Chunk], list[Operation]]
"""What somebody does on reading a chunk, whatever the memory already holds."""

LINE = "User: "


def write(instance: Instance, writer: Writer, *, stamp: bool = False) -> Diary:
    """The memory that ``writer`` makes of an instance."""
    diary = Diary(instance, stamp=stamp)
    while chunk := diary.read_on():
        diary.write([(each.name, each.arguments) for each in writer(chunk)])
    return diary


def oracle(chunk: Chunk) -> list[Operation]:
    """A careful writer; only of generated instances is it known what one does."""
    return gold_operations(chunk) or []


def append(chunk: Chunk) -> list[Operation]:
    """Every fact that is told, and never a change of what was written before."""
    return [
        Operation(INSERT, {"content": str(each.arguments["content"]).partition(" Before:")[0]})
        for each in oracle(chunk)
        if each.name != DELETE
    ]


def append_dated(chunk: Chunk) -> list[Operation]:
    """As ``append``, each fact with the date of its chunk."""
    return [_dated(each, chunk) for each in append(chunk)]


def copy_lines(chunk: Chunk) -> list[Operation]:
    """Every line as it was said, with its date."""
    lines = [line.removeprefix(LINE) for line in chunk.content.split("\n") if line.startswith(LINE)]
    return [_dated(Operation(INSERT, {"content": line}), chunk) for line in lines]


def copy_chunk(chunk: Chunk) -> list[Operation]:
    """The whole chunk as one entry."""
    return [_dated(Operation(INSERT, {"content": chunk.content}), chunk)]


def mock(chunk: Chunk) -> list[Operation]:
    """The same kind of nothing every time."""
    return [Operation(INSERT, {"content": f"Mock memory entry {chunk.chunk_id}"})]


def idle(chunk: Chunk) -> list[Operation]:
    """Nothing at all."""
    del chunk
    return []


def _dated(operation: Operation, chunk: Chunk) -> Operation:
    dated = {**operation.arguments, "timestamp": chunk.timestamp} if chunk.timestamp else {}
    return operation._replace(arguments=dated or operation.arguments)


WRITERS: Mapping[str, Writer] = {
    "oracle": oracle,
    "append_dated": append_dated,
    "append": append,
    "copy_lines": copy_lines,
    "copy_chunk": copy_chunk,
    "mock": mock,
    "idle": idle,
}
"""By name, the best first."""
