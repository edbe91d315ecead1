"""Secrets stay out of a run directory: by the name they have, and by the place they stand in."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "<redacted>"

SHORTEST_SECRET = 8
"""A shorter value of a secret variable is not searched for in texts: it may be a common word."""

_SECRET = r"(?:key|token(?!iz)|secret|passw|credential|auth(?!or(?!iz)))"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_COUNT = re.compile(r"-?[0-9._]+")
_PAIR = re.compile(
    rf"""(?<![\w.\-])(?P<name>[\w.\-]*{_SECRET}[\w.\-]*)
        (?P<sign>["']?\s*[=:]\s*)
        (?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:(?:Bearer|Basic)\s+)?[^\s&,;"'}}]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_USERINFO = re.compile(
    r"""(?<=://)(?:[^\s/?\#"']*                 # user, user:password or a bare token
        |[^\s/?\#@:"']*:(?!\d+/)[^\s@"']*)@     # a password with a slash, which is no port
        |(?<![\w/.:+\-])[\w.+\-]+:[^\s:@/]+@(?=\w)   # user:password@proxy without a scheme""",
    re.VERBOSE,
)


def redact(value: Any, *, variables: Mapping[str, str]) -> Any:
    """Plain JSON data without secrets: those named so, and the values of secret ``variables``."""
    if isinstance(value, str):
        return _PAIR.sub(_hidden_pair, hide(value, variables=variables))
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if _is_secret(name, entry) else redact(entry, variables=variables)
            for name, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(entry, variables=variables) for entry in value]
    return value


def redact_command(arguments: Sequence[str], *, variables: Mapping[str, str]) -> list[str]:
    """A command line without secrets; what follows a flag with a secret's name is one."""
    clean: list[str] = []
    flag = ""
    for argument in arguments:
        name, has_value, value = argument.partition("=")
        if argument.startswith("--"):
            flag = "" if has_value else argument
        if has_value and re.fullmatch(r"[\w.\-]+", name) and _is_secret(name, value):
            clean.append(f"{name}={HIDDEN}")
        elif not argument.startswith("--") and _is_secret(flag, argument):
            clean.append(HIDDEN)
        else:
            clean.append(redact(argument, variables=variables))
    return clean


def hide(text: str, *, variables: Mapping[str, str]) -> str:
    """``text`` without the user part of addresses and without the values of secret variables."""
    secrets = {value for name, value in variables.items() if _is_secret(name, value)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, HIDDEN)
    return _USERINFO.sub(f"{HIDDEN}@", text)


def _is_secret(name: str, value: Any) -> bool:
    # max_new_tokens=64 tells nothing that has to be hidden.
    is_count = "tokens" in name.lower() and _COUNT.fullmatch(str(value)) is not None
    return isinstance(value, str) and bool(_SECRET_NAME.search(name)) and not is_count


def _hidden_pair(match: re.Match[str]) -> str:
    if not _is_secret(match["name"], match["value"]):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "\"'" else ""
    return f"{match['name']}{match['sign']}{quote}{HIDDEN}{quote}"
