"""Lookup of plug-ins by name: built-in ones, installed entry points, those registered in code.

A plug-in in a file is given as FILE.py:NAME instead of by name.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from grpo_cl.errors import ConfigError

T = TypeVar("T")

_REGISTERED: dict[str, dict[str, Any]] = {}
"""Plug-ins registered by this process, by entry point group and name."""


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """``table[name]``; the error of an unknown name lists the known ones."""
    if name in table:
        return table[name]
    close = get_close_matches(name, table, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"unknown {kind} {name!r}; known: {', '.join(sorted(table))}.{hint}")


def register(group: str, name: str, plugin: Any, *, kind: str, built_in: Iterable[str]) -> None:
    """Add a class or function to the plug-ins of an entry point ``group``, for this process.

    A name that is taken is refused. The same definition may be registered again, as a notebook
    does when a cell is run twice.
    """
    own = _REGISTERED.setdefault(group, {})
    is_new = name not in own or not _is_same_definition(own[name], plugin)
    if is_new and name in {*built_in, *plugin_paths(group), *own}:
        raise ConfigError(f"the {kind} {name!r} exists already; register yours by another name")
    own[name] = plugin


def registered(group: str) -> dict[str, Any]:
    """The plug-ins of ``group`` that this process registered."""
    return dict(_REGISTERED.get(group, {}))


def with_plugins(table: Mapping[str, T], group: str) -> dict[str, T]:
    """``table``, what was registered in code, and the entry points of ``group``.

    An entry point is loaded when it is first called.
    """
    return {**_plugins(group), **registered(group), **table}


def plugin_paths(group: str) -> dict[str, str]:
    """``module:name`` of the entry points of ``group``."""
    return {entry.name: entry.value for entry in entry_points(group=group)}


def is_in_file(name: str) -> bool:
    """Whether a plug-in is given as FILE.py:NAME."""
    return ".py:" in name


def with_absolute_file(name: str) -> str:
    """A plug-in in a file with an absolute path; any other name as it is.

    A run is resumed, and an engine's workers are started, in other directories.
    """
    if not is_in_file(name):
        return name
    path, _, attribute = name.rpartition(":")
    return f"{Path(path).expanduser().absolute()}:{attribute}"


def load_from_file(name: str, kind: str) -> Any:
    """The class or function FILE.py:NAME."""
    path, _, attribute = name.rpartition(":")
    file = Path(path).expanduser()
    if not file.exists():
        raise ConfigError(f"{path!r} does not exist; give the {kind} as FILE.py:NAME")
    try:
        module = import_file(file)
    except (OSError, SyntaxError, ImportError) as error:
        raise ConfigError(
            f"cannot import the {kind} {name!r}: {error}; `python {path}` shows where it fails"
        ) from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{path!r} has no {attribute!r}, which {name!r} names as the {kind}")
    return getattr(module, attribute)


def import_file(path: Path) -> ModuleType:
    """The module of a Python file; a file that was imported before is not run again."""
    # Registered under its path: pickling and type hints look up a function's module by name.
    name = f"grpo_cl_file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, "the suffix .py has a loader"
        module = module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look up their module while it is executed
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _is_same_definition(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if not all(isinstance(one, type | FunctionType) for one in (first, second)):
        return False
    places = {(one.__module__, one.__qualname__) for one in (first, second)}
    return len(places) == 1 and first.__name__.isidentifier()  # lambdas have no name of their own


@cache  # scanning the installed packages takes milliseconds
def _plugins(group: str) -> dict[str, Any]:
    def deferred(entry: EntryPoint) -> Any:
        return lambda *args, **options: entry.load()(*args, **options)

    return {entry.name: deferred(entry) for entry in entry_points(group=group)}
