"""The file of a trajectory buffer: one JSON document with an episode per line.

The lines that ``TrajectoryBuffer.save`` writes are indexed by their offsets and not parsed. The
same document in another layout, as another program may have written it, is parsed as a whole.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple

from grpo_cl.runs.reservoir import Experience, Reservoir
from grpo_cl.runs.stored_records import Places, RecordFile, StoredRecords

FORMAT = 2
"""Format 1 has no tasks of the episodes in its index, so that its lines are parsed."""

_RECORDS = b', "records": [\n'
_LAST = (b"]},\n", b"]}}}\n")
"""What follows the last record of a domain: another domain, or the end."""


class BufferState(NamedTuple):
    """The contents of a saved buffer."""

    rng: tuple[Any, ...]
    reservoirs: dict[str, Reservoir]


class _OtherLayoutError(Exception):
    """The document is not in the lines that ``save`` writes."""


def read_buffer(path: Path) -> BufferState:
    """The buffer in a file; damaged files raise ``ValueError``, ``KeyError`` or ``TypeError``."""
    try:
        with path.open("rb") as file:
            return _read_lines(file, RecordFile(path))
    except _OtherLayoutError:
        state = json.loads(path.read_bytes())
        _require_format(state)
        domains = {name: _parsed(saved) for name, saved in state["domains"].items()}
        return BufferState(_rng_state(state["rng"]), domains)


def _read_lines(file: BinaryIO, stored: RecordFile) -> BufferState:
    first, second = file.readline(), file.readline()
    if not first.startswith(b"{") or not first.endswith(b",\n"):
        raise _OtherLayoutError
    if second not in {b'"domains": {\n', b'"domains": {}}\n'}:
        raise _OtherLayoutError
    state = _loads(first[:-2] + b"}")
    _require_format(state)
    reservoirs: dict[str, Reservoir] = {}
    while second.endswith(b"{\n") and (line := file.readline()):
        if not line.endswith(_RECORDS):
            raise _OtherLayoutError
        ((name, saved),) = _loads(b"{" + line.removesuffix(_RECORDS) + b"}}").items()
        places, tasks = _index(file, saved)
        records = StoredRecords(Experience)
        records.stored(stored, places)
        reservoirs[name] = Reservoir.restored(saved, records, tasks)
    return BufferState(_rng_state(state["rng"]), reservoirs)


def _index(file: BinaryIO, saved: Mapping[str, Any]) -> tuple[Places, Sequence[str]]:
    """Where the records of one domain stand, and the task of each."""
    count = len(saved["offers"])
    tasks = _task_of_slots(saved["by_task"], count) if "by_task" in saved else [""] * count
    places = Places()
    for slot, (offset, line) in enumerate(_record_lines(file, count)):
        places.add(offset, line)
        if "by_task" not in saved:
            tasks[slot] = _loads(line)["trajectory"]["task"]["id"]
    return places, tasks


def _record_lines(file: BinaryIO, count: int) -> Iterator[tuple[int, bytes]]:
    offset = file.tell()
    for number in range(1, count + 1):
        line = file.readline()
        ends = _LAST if number == count else (b",\n",)
        end = next((end for end in ends if line.endswith(b"}" + end)), None)
        if end is None:
            raise _OtherLayoutError
        yield offset, line.removesuffix(end)
        offset += len(line)


def _task_of_slots(by_task: Sequence[tuple[str, Sequence[int]]], count: int) -> list[str]:
    tasks = [""] * count
    num_slots = 0
    for name, slots in by_task:
        for slot in slots:
            tasks[slot] = name
        num_slots += len(slots)
    if num_slots != count:
        raise ValueError("the tasks of the slots do not match the records")
    return tasks


def _parsed(saved: Mapping[str, Any]) -> Reservoir:
    records = StoredRecords(Experience)
    for record in saved["records"]:
        records.append(Experience.model_validate(record))
    for reward, slots in saved["by_reward"]:
        if any(records[slot].reward != reward for slot in slots):
            raise ValueError("the order of the slots does not match the records")
    return Reservoir.restored(saved, records, [record.task.id for record in records])


def _require_format(state: Any) -> None:
    number = state.get("format", 1)
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise ValueError(f"it has format {number!r}, and this version reads formats 1 to {FORMAT}")


def _rng_state(saved: Sequence[Any]) -> tuple[Any, ...]:
    version, words, gauss = saved
    state = (version, tuple(words), gauss)
    Random().setstate(state)  # refuses a damaged one
    return state


def _loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise _OtherLayoutError from None
