"""A run's description from the command line: files, flags and dotted overrides in any order.

``--config FILE`` (YAML or TOML) first, then ``--name value``, ``--section.name value`` and
``section.name=value`` over it. A list takes several values, a switch none.
"""

import tomllib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from grpo_cl.config import GRPOConfig
from grpo_cl.domains.overlay import deep_update
from grpo_cl.errors import ConfigError

Settings = dict[str, Any]


def read_config(arguments: Sequence[str], base: Settings | None = None) -> GRPOConfig:
    """The config that ``arguments`` describe, over the settings of ``base``."""
    settings = dict(base or {})
    for name, values in _options(arguments):
        if name == "config":
            settings = deep_update(settings, _read_file(Path(_single(name, values))))
        else:
            settings = deep_update(settings, _nested(name, _value(name, values)))
    return validated(settings)


def validated(settings: Settings) -> GRPOConfig:
    """The config, or one line for each thing that is wrong with it."""
    try:
        return GRPOConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError("\n".join(_complaint(entry) for entry in error.errors())) from error


def _complaint(entry: Any) -> str:
    name = ".".join(str(part) for part in entry["loc"])
    if entry["type"] == "extra_forbidden":
        return _unknown(name)
    message = str(entry["msg"]).removeprefix("Value error, ")
    return f"{name}: {message} (got {entry['input']!r})" if name else message


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    pending: tuple[str, list[str]] | None = None
    for word in arguments:
        if word.startswith("--"):
            if pending:
                yield pending
            name, equals, value = word[2:].partition("=")
            pending = (name.replace("-", "_"), [value] if equals else [])
        elif "=" in word and word.partition("=")[0].replace(".", "").isidentifier():
            if pending:
                yield pending
                pending = None
            name, _, value = word.partition("=")
            yield name, [value]
        elif pending:
            pending[1].append(word)
        else:
            raise ConfigError(f"{word!r} belongs to no option; write --name value or name=value")
    if pending:
        yield pending


def _read_file(path: Path) -> Settings:
    try:
        text = path.read_text()
        found = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config {str(path)!r}: {error}") from error
    except (yaml.YAMLError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the config {str(path)!r} is no valid {path.suffix}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the config {str(path)!r} holds no settings by name")
    return found


def fields(
    model: type[BaseModel] = GRPOConfig, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its dotted name."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _unknown(name: str) -> str:
    known = [known for known, _ in fields()]
    close = get_close_matches(name, known, n=1) or [k for k in known if k.endswith(f".{name}")]
    hint = f"; did you mean {close[0]!r}?" if close else "; `grpo-cl train --help` lists them"
    return f"unknown setting {name!r}{hint}"


def _value(name: str, values: list[str]) -> Any:
    known = dict(fields())
    field = known.get(name)
    sections = (known.get(name.partition(".")[0]), known.get(name.rpartition(".")[0]))
    if field is None and any(s is not None and _has_names(s.annotation) for s in sections):
        return _read(_single(name, values))
    if field is None:
        raise ConfigError(_unknown(name))
    if get_origin(field.annotation) is tuple:
        inner = _read(values[0]) if len(values) == 1 else None
        return inner if isinstance(inner, list) else values
    if field.annotation is bool and not values:
        return True
    text = _single(name, values)
    return None if text in {"none", "null"} else text if text == "" else _scalar(text)


def _has_names(kind: Any) -> bool:
    """Whether a setting may hold others, by names that are the user's."""
    return get_origin(kind) is dict or any(get_origin(one) is dict for one in get_args(kind))


def _read(text: str) -> Any:
    """What is written as YAML, or the text itself where it is none."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _scalar(text: str) -> Any:
    value = _read(text)
    return text if isinstance(value, (list, str)) or value is None else value


def _single(name: str, values: list[str]) -> str:
    if len(values) != 1:
        raise ConfigError(f"--{name} takes one value, got {len(values)}: {' '.join(values)}")
    return values[0]


def _nested(name: str, value: Any) -> Settings:
    *sections, last = name.split(".")
    settings: Settings = {last: value}
    for section in reversed(sections):
        settings = {section: settings}
    return settings


def help_text() -> str:
    """Every setting with its default and what it means."""
    lines = ["settings (--name value, --section.name value, or section.name=value):"]
    for name, field in fields():
        default = field.get_default(call_default_factory=True)
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        lines.append(f"  --{name} [{shown}]")
        if field.description:
            lines.append(f"      {' '.join(field.description.split())}")
    return "\n".join(lines)
