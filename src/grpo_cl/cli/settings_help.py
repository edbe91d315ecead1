"""Help on the settings of a run: by section, with types, choices, defaults and descriptions."""

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from shutil import get_terminal_size
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grpo_cl.cli.options import fields
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError

RUN = "run"
"""The section of the settings that are in no section."""
MAX_WIDTH = 100

_KINDS = {int: "INTEGER", float: "NUMBER", bool: "true|false", str: "TEXT", Path: "PATH"}


class Section(NamedTuple):
    """The settings of one section of the help."""

    name: str
    summary: str
    settings: dict[str, FieldInfo]
    """By dotted name."""


def sections() -> list[Section]:
    """All settings of a run, by section."""
    found = [Section(RUN, "The model, the schedule and where the run is written.", {})]
    for name, field in GRPOConfig.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            summary = _one_line(kind.__doc__ or "")
            found.append(Section(name, summary, dict(fields(kind, f"{name}."))))
        else:
            found[0].settings[name] = field
    return found


def show_settings(arguments: argparse.Namespace) -> int:
    """Print the settings of a section, or one setting."""
    print(help_text(arguments.topic))
    return 0


def help_text(topic: str | None = None) -> str:
    """The settings of all sections, those of one section, or one setting."""
    every = sections()
    if topic is None:
        return "\n\n".join(_section_text(section) for section in every)
    for section in every:
        if section.name == topic:
            return _section_text(section)
        if topic in section.settings:
            return describe([topic])
    names = [name for section in every for name in (section.name, *section.settings)]
    close = get_close_matches(topic, names, n=1)
    close = close or [name for name in names if name.endswith(f".{topic}")]
    hint = f"; did you mean {close[0]!r}?" if close else ""
    known = ", ".join(section.name for section in every)
    raise ConfigError(f"{topic!r} is no section and no setting; the sections are {known}{hint}")


def describe(shown: Iterable[str]) -> str:
    """Some settings with type, default and description, each NAME or NAME=DEFAULT."""
    known = dict(fields())
    texts: list[str] = []
    for entry in shown:
        name, _, default = entry.partition("=")
        texts.append(_setting_text(name, known[name], default))
    return "\n".join(texts)


def _section_text(section: Section) -> str:
    lines = (_setting_text(name, field) for name, field in section.settings.items())
    return "\n".join([f"{section.name}: {section.summary}", *lines])


def _setting_text(name: str, field: FieldInfo, default: str = "") -> str:
    width = min(get_terminal_size().columns, MAX_WIDTH)
    head = f"  --{name} {type_text(field.annotation, field.metadata)}".rstrip()
    text = f"{_one_line(field.description or '')} Default: {default or default_text(field)}."
    # Names and paths such as openai-api/SERVICE stay whole, so that they can be copied.
    lines = textwrap.wrap(text, width - 6, break_on_hyphens=False)
    return "\n".join([head, *(f"{' ' * 6}{line}" for line in lines)])


def default_text(field: FieldInfo) -> str:
    """The default as it is written on the command line."""
    default = field.get_default(call_default_factory=True)
    if isinstance(default, tuple | dict):
        return " ".join(map(str, default)) or "empty"
    if isinstance(default, bool):
        return str(default).lower()
    if default is None:
        return "none"
    if isinstance(default, Path) and default.is_relative_to(Path.home()):
        return f"~/{default.relative_to(Path.home())}"
    return f"{default:g}" if isinstance(default, float) else str(default)


def type_text(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a setting takes, such as ``INTEGER > 0``, ``{skip,resample}`` or ``NAME ...``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0], arguments[1:])
    if origin is Literal:
        return f"{{{','.join(map(str, arguments))}}}"
    if origin in (Union, UnionType):
        words = ["none" if kind is NoneType else type_text(kind) for kind in arguments]
        return " | ".join(words)
    if origin is tuple:
        each = type_text(arguments[0])
        return f"{each} ..." if arguments[1] is Ellipsis else " ".join(map(type_text, arguments))
    if origin is dict:
        return f".KEY {type_text(arguments[1])}"
    limits = " ".join(_limits(metadata))
    return f"{_KINDS.get(annotation, 'VALUE')} {limits}".rstrip()


def _limits(metadata: Iterable[Any]) -> Iterator[str]:
    for rule in metadata:
        match rule:
            case FieldInfo():
                yield from _limits(rule.metadata)
            case Ge(ge=value):
                yield f"≥ {value}"
            case Gt(gt=value):
                yield f"> {value}"
            case Le(le=value):
                yield f"≤ {value}"
            case Lt(lt=value):
                yield f"< {value}"
            case _:
                pass


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "").split())
