"""The config of a run from the command line: files, flags and dotted overrides.

``--config FILE`` (YAML or TOML), ``--name value``, ``--section.name value`` and
``section.name=value``, applied in order. A list takes several values, a boolean flag none.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from grpo_cl.config import GRPOConfig, deep_update
from grpo_cl.errors import ConfigError
from grpo_cl.registry import is_in_file, load_from_file

Settings = dict[str, Any]

_NOT_PARSED = (yaml.YAMLError, ValueError, RecursionError)
"""ValueError: TOML that is not valid, and dates and integers of YAML that Python cannot hold."""
_MAX_VALUES = 100_000
"""Of a config file; a run has some hundred settings."""


def read_config(arguments: Sequence[str], base: Settings | None = None) -> GRPOConfig:
    """The config given by ``arguments``, which override ``base``."""
    settings = dict(base or {})
    for name, values in _options(arguments):
        if name == "config":
            settings = deep_update(settings, _read_file(Path(_single(name, values))))
        else:
            settings = deep_update(settings, _nested(name, _value(name, values)))
    return validated(_with_domain_files(settings))


def _with_domain_files(settings: Settings) -> Settings:
    """The settings with domains by name, where ``task_order`` has some as FILE.py:CLASS."""
    order = settings.get("task_order")
    if not isinstance(order, list | tuple) or not any(map(is_in_file, map(str, order))):
        return settings
    names: list[str] = []
    files: dict[str, str] = {}
    for entry in map(str, order):
        names.append(load_from_file(entry, "domain").name if is_in_file(entry) else entry)
        files |= {names[-1]: entry} if is_in_file(entry) else {}
    return deep_update(settings, {"task_order": names, "domain_files": files})


def validated(settings: Settings) -> GRPOConfig:
    """The config; invalid settings raise an error with one line each."""
    try:
        return GRPOConfig.model_validate(settings)
    except ValidationError as error:
        # A union has an error for each alternative; the deepest one fits the given value best.
        entries = sorted(error.errors(), key=lambda entry: len(entry["loc"]), reverse=True)
        lines: dict[str, str] = {}
        for entry in entries:
            lines.setdefault(_setting(entry["loc"]), _error_line(entry))
        raise ConfigError("\n".join(lines.values())) from error


def _setting(location: Sequence[int | str]) -> str:
    """The setting in which an error is."""
    known = dict(fields())
    names = [".".join(map(str, location[:length])) for length in range(1, len(location) + 1)]
    return next((name for name in names if name in known), ".".join(map(str, location)))


def _error_line(entry: Any) -> str:
    # A union adds the name of the alternative, as in dict[str,float].
    parts = [str(part) for part in entry["loc"]]
    name = ".".join(part for part in parts if not re.search(r"\[|constrained-", part))
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
            raise ConfigError(
                f"{word!r} does not belong to an option; write --name value or name=value"
            )
    if pending:
        yield pending


def _read_file(path: Path) -> Settings:
    try:
        text = path.read_text()
        # YAML's errors about a stream quote no line, which may have a secret.
        settings = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(StringIO(text))
    except OSError as error:
        raise ConfigError(
            f"cannot read the config {str(path)!r}: {error.strerror}; give a YAML, TOML or JSON "
            "file, such as one of configs/ in the repository"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the config {str(path)!r}: {error}; save it as UTF-8"
        ) from error
    except _NOT_PARSED as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"the config {str(path)!r} is not valid {path.suffix}: {reason}"
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(f"the config {str(path)!r} is not a mapping of settings")
    _require_bounded(settings, path)
    return settings


def _require_bounded(settings: Settings, path: Path) -> None:
    """Refuse aliases with which a small file describes billions of values."""
    pending: list[Any] = [settings]
    count = 0
    while pending:
        value = pending.pop()
        count += 1
        if count > _MAX_VALUES:
            raise ConfigError(
                f"the config {str(path)!r} has more than {_MAX_VALUES} values; remove its aliases"
            )
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def fields(
    model: type[BaseModel] = GRPOConfig, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Every setting with its dotted name."""
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
    if field is None and any(s is not None and _is_mapping(s.annotation) for s in sections):
        return _parse_yaml(_single(name, values))
    if field is None:
        raise ConfigError(_unknown(name))
    if get_origin(field.annotation) is tuple:
        inner = _parse_yaml(values[0]) if len(values) == 1 else None
        return inner if isinstance(inner, list) else values
    if field.annotation is bool and not values:
        return True
    text = _single(name, values)
    if text == "" or text in _choices(field.annotation):
        return text
    if text not in {"none", "null"} and _is_text(field.annotation):
        return text  # a directory may be called 2026
    return None if text in {"none", "null"} else _scalar(text)


def _is_text(annotation: Any) -> bool:
    """Whether a setting is a text or a path, alone or in a union."""
    is_mapping = get_origin(annotation) is dict
    return annotation in (str, Path) or (
        not is_mapping and any(map(_is_text, get_args(annotation)))
    )


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a ``Literal``, alone or in a union; ``none`` may be one of them."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(value for kind in get_args(annotation) for value in _choices(kind))


def _is_mapping(annotation: Any) -> bool:
    """Whether a setting may be a mapping with keys chosen by the user."""
    return get_origin(annotation) is dict or any(
        get_origin(kind) is dict for kind in get_args(annotation)
    )


def _parse_yaml(text: str) -> Any:
    """The text parsed as YAML, or the text itself if it is not YAML."""
    try:
        return yaml.safe_load(text)
    except _NOT_PARSED:
        return text


def _scalar(text: str) -> Any:
    value = _parse_yaml(text)
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
