"""The tools that change a memory, with the tool and argument names of Mem-α as aliases."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from grpo_cl.envs.memory.store.system import MemorySystem
from grpo_cl.envs.memory.store.taxonomy import DEFAULT_TYPE, Taxonomy, default_taxonomy
from grpo_cl.envs.memory.store.validation import check_id, quoted
from grpo_cl.errors import ToolError

INSERT, UPDATE, DELETE = "memory_insert", "memory_update", "memory_delete"
UPDATE_CORE, SKIP = "core_memory_update", "skip"
TOOLS = (INSERT, UPDATE, DELETE, UPDATE_CORE, SKIP)

NAME_ALIASES = {
    "new_memory_insert": INSERT,
    "memory_skip": SKIP,
    "noop": SKIP,
}
ARGUMENT_ALIASES = {"new_content": "content", "id": "memory_id", "type": "memory_type"}
TYPE_SUFFIX = "_memory"
CORE = "core"

_ARGUMENTS = {
    INSERT: {"content", "memory_type", "category", "timestamp", "importance"},
    UPDATE: {"memory_id", "content", "memory_type", "category", "timestamp", "importance"},
    DELETE: {"memory_id", "memory_type", "category"},
    UPDATE_CORE: {"content", "memory_type"},
    SKIP: {"reason"},
}
_REQUIRED = {
    INSERT: ("content",),
    UPDATE: ("memory_id",),
    DELETE: ("memory_id",),
    UPDATE_CORE: ("content",),
    SKIP: (),
}


class Outcome(NamedTuple):
    """The result of a call."""

    ok: bool
    message: str
    """The text the agent reads."""
    tool: str
    """The canonical name of the tool; the given name if there is no such tool."""
    entry_id: int | None = None
    """The entry that was inserted, updated or deleted."""


class Source(NamedTuple):
    """The origin of written content."""

    chunk: int | None = None
    timestamp: str | None = None
    """The default timestamp of an insertion or update; None for no default."""


def execute(
    memory: MemorySystem, name: str, arguments: object, *, source: Source | None = None
) -> Outcome:
    """Execute one call; an invalid call has the error as its message."""
    tool = NAME_ALIASES.get(name, name)
    try:
        tool, valid = _validated(tool, arguments)
        entry_id, message = _EXECUTE[tool](memory, valid, source or Source())
    except ToolError as error:
        return Outcome(ok=False, message=str(error), tool=tool)
    return Outcome(ok=True, message=message, tool=tool, entry_id=entry_id)


def _validated(tool: str, arguments: object) -> tuple[str, dict[str, Any]]:
    if tool not in _ARGUMENTS:
        raise ToolError(f"unknown tool {quoted(tool)}; use one of {', '.join(TOOLS)}")
    if not isinstance(arguments, Mapping):
        raise ToolError(
            f"arguments {quoted(arguments)} of {tool} are no object; name each argument"
        )
    given = _canonical(arguments)
    if tool in (UPDATE, UPDATE_CORE) and given.get("memory_type") == CORE:
        tool = UPDATE_CORE
    unknown = sorted(set(given) - _ARGUMENTS[tool])
    if unknown:
        known = ", ".join(sorted(_ARGUMENTS[tool]))
        raise ToolError(f"{tool} has no argument {quoted(unknown[0])}; it has {known}")
    for name in _REQUIRED[tool]:
        if name not in given:
            raise ToolError(f"{tool} needs the argument {name!r}; give it")
    return tool, given


def _canonical(arguments: Mapping[Any, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is None:
            continue  # models often pass null for optional arguments
        canonical = ARGUMENT_ALIASES.get(str(name), str(name))
        if canonical in given:
            raise ToolError(f"argument {canonical!r} is given twice; give it once")
        given[canonical] = value
    kind = given.get("memory_type")
    if isinstance(kind, str):
        given["memory_type"] = kind.removesuffix(TYPE_SUFFIX)
    return given


def _insert(memory: MemorySystem, given: dict[str, Any], source: Source) -> tuple[int, str]:
    entry = memory.insert(
        given["content"],
        type=given.get("memory_type", DEFAULT_TYPE),
        category=given.get("category"),
        timestamp=given.get("timestamp", source.timestamp),
        importance=given.get("importance", 0.5),
        source_chunk=source.chunk,
    )
    return entry.id, f"memory {entry.id} inserted"


def _update(memory: MemorySystem, given: dict[str, Any], source: Source) -> tuple[int, str]:
    old = check_id(given["memory_id"], memory.entries)
    _refuse_mismatch("memory type", given.get("memory_type"), old.type, old.id)
    default = source.timestamp if "content" in given else None
    entry = memory.update(
        old.id,
        content=given.get("content"),
        category=given.get("category"),
        timestamp=given.get("timestamp", default),
        importance=given.get("importance"),
        source_chunk=source.chunk,
    )
    return entry.id, f"memory {entry.id} updated"


def _delete(memory: MemorySystem, given: dict[str, Any], source: Source) -> tuple[int, str]:
    old = check_id(given["memory_id"], memory.entries)
    _refuse_mismatch("memory type", given.get("memory_type"), old.type, old.id)
    _refuse_mismatch("category", given.get("category"), old.category, old.id)
    memory.delete(old.id)
    return old.id, f"memory {old.id} deleted"


def _update_core(memory: MemorySystem, given: dict[str, Any], source: Source) -> tuple[None, str]:
    memory.update_core(given["content"], source_chunk=source.chunk)
    return None, "core memory updated"


def _skip(memory: MemorySystem, given: dict[str, Any], source: Source) -> tuple[None, str]:
    return None, "nothing changed"


_EXECUTE: dict[str, Callable[[MemorySystem, dict[str, Any], Source], tuple[int | None, str]]] = {
    INSERT: _insert,
    UPDATE: _update,
    DELETE: _delete,
    UPDATE_CORE: _update_core,
    SKIP: _skip,
}


def _refuse_mismatch(what: str, given: object, actual: str | None, entry_id: int) -> None:
    if given is not None and given != actual:
        raise ToolError(
            f"memory {entry_id} has the {what} {quoted(actual)}, not {quoted(given)}; "
            "check the id, or leave the argument out"
        )


def schemas(taxonomy: Taxonomy | None = None) -> list[dict[str, Any]]:
    """The function schemas of the tools."""
    taxonomy = taxonomy or default_taxonomy()
    content = {"type": "string", "description": "What to remember, in one sentence."}
    fields: dict[str, Any] = {
        "content": content,
        "memory_type": {"type": "string", "enum": list(taxonomy.entry_types)},
        "category": {"type": "string", "enum": list(taxonomy.category_positions)},
        "timestamp": {"type": "string", "description": "When it was said or happened."},
        "importance": {"type": "number", "minimum": 0, "maximum": 1},
        "memory_id": {"type": "integer", "description": "The number shown before the memory."},
        "reason": {"type": "string"},
    }
    about = {
        INSERT: (
            "Remember something new.",
            ("content", "category", "memory_type", "timestamp", "importance"),
        ),
        UPDATE: (
            "Replace what a memory says; the old version is kept as history.",
            ("memory_id", "content", "category", "timestamp", "importance"),
        ),
        DELETE: ("Forget a memory that is wrong or of no use.", ("memory_id",)),
        UPDATE_CORE: ("Rewrite the core memory as a whole.", ("content",)),
        SKIP: ("Change nothing: this text holds nothing worth keeping.", ("reason",)),
    }
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": description,
                "parameters": {
                    "type": "object",
                    "properties": {field: fields[field] for field in names},
                    "required": [*_REQUIRED[name]] + (["content"] if name == UPDATE else []),
                },
            },
        }
        for name, (description, names) in about.items()
    ]
