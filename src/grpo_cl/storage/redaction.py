"""Redaction of secrets, by name and by position (URLs, command-line flags)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "<redacted>"

SHORTEST_SECRET = 8
"""Shorter values of secret variables are not searched for: they may be common words."""

_SECRET = r"(?:key|token(?!iz)|secret|passw|credential|auth(?!or(?!iz)))"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_COUNT = re.compile(r"-?[0-9._]+")
_PAIR = re.compile(
    rf"""(?<![\w.\-])(?P<name>(?=[\w.\-]*?{_SECRET})[\w.\-]++)
        (?P<sign>["']?\s*[=:]\s*)
        (?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:(?:Bearer|Basic)\s+)?[^\s&,;"'}}]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_USERINFO = re.compile(
    r"""(?<=://)(?:[^\s/?\#"']*                 # user, user:password or a bare token
        |[^\s/?\#@:"']*:(?!\d+/)[^\s@"']*)@     # a password with a slash, not a port
        |(?<![\w/.:+\-])[\w.+\-]+:[^\s:@/]+@(?=\w)   # user:password@proxy without a scheme""",
    re.VERBOSE,
)
_PARAMETER = re.compile(
    rf"""(?<=[?&\#;])(?P<name>(?=[\w.\-]*?{_SECRET})[\w.\-]++
            |[\w\-]*sig(?:nature)?|code|jwt|pass(?:phrase)?|pwd|sas)
        =(?P<value>[^\s&\#;,"'<>]+)""",
    re.IGNORECASE | re.VERBOSE,
)
"""A secret in the query of a URL, or the signature of a signed one.

Names are matched possessively, here and above: the time is linear in the text."""


def redact(value: Any, *, variables: Mapping[str, str]) -> Any:
    """JSON data without secrets: by key name, and the values of secret ``variables``."""
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
    """A command line without secrets; the value after a flag with a secret name is one."""
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
    """``text`` without credentials in URLs and without the values of secret variables."""
    secrets = {value for name, value in variables.items() if _is_secret(name, value)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, HIDDEN)
    return _PARAMETER.sub(_hidden_parameter, _USERINFO.sub(f"{HIDDEN}@", text))


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and bool(_SECRET_NAME.search(name)) and not _is_count(name, value)


def _is_count(name: str, value: str) -> bool:
    # max_new_tokens=64 is not a secret.
    return "tokens" in name.lower() and _COUNT.fullmatch(value) is not None


def _hidden_parameter(match: re.Match[str]) -> str:
    return match[0] if _is_count(match["name"], match["value"]) else f"{match['name']}={HIDDEN}"


def _hidden_pair(match: re.Match[str]) -> str:
    if not _is_secret(match["name"], match["value"]):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "\"'" else ""
    return f"{match['name']}{match['sign']}{quote}{HIDDEN}{quote}"
