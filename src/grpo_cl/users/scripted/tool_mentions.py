"""Tools that a text mentions by name, with their arguments."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import JsonValue

from grpo_cl.types import ToolSchema
from grpo_cl.users.scripted.steps import SWITCHES, CallTool, SetSwitch, Step, wanted_state

MODE = re.compile(r"\b(4g_5g_preferred|[234]g_only)\b", re.IGNORECASE)
_MODE_WORDS = (
    (re.compile(r"\b(?:4g|lte)[ -]only\b|\bonly (?:4g|lte)\b", re.IGNORECASE), "4g_only"),
    (re.compile(r"\b3g[ -]only\b|\bonly 3g\b", re.IGNORECASE), "3g_only"),
    (re.compile(r"\b2g[ -]only\b|\bonly 2g\b", re.IGNORECASE), "2g_only"),
    (re.compile(r"\b5g\b|\b4g preferred\b", re.IGNORECASE), "4g_5g_preferred"),
    (re.compile(r"\b(?:4g|lte)\b", re.IGNORECASE), "4g_only"),
    (re.compile(r"\b3g\b", re.IGNORECASE), "3g_only"),
)
_PERMISSION = re.compile(
    r"\b(sms|storage|phone|network|camera|location|contacts|microphone)\b(?! number)", re.IGNORECASE
)
_APP = re.compile(
    r"\b(?:the |your |my )?['\"`]?(\w+)['\"`]? app(?:lication)?\b|\b(messaging|messages|browser)\b",
    re.IGNORECASE,
)
_NOT_APPS = frozenset(
    {"the", "your", "this", "that", "an", "each", "which", "any", "default", "installed"}
)
_URL = re.compile(r"https?://[^\s\"'`,)]+")
_APN_NAME = re.compile(
    r"\bAPN(?:[ _]name)?\b[^.\n]{0,30}?\b(?:to|is|as|=|:|of)\s*[\"'`]?(internet|broken)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"['\"`“]([^'\"`”]+)['\"`”]")


class ToolMention(NamedTuple):
    """A tool mentioned in a text, as a step."""

    step: Step
    start: int


def network_mode(text: str) -> str | None:
    """The network mode that a text asks for."""
    if match := MODE.search(text):
        return match[1].lower()
    return next((mode for pattern, mode in _MODE_WORDS if pattern.search(text)), None)


def app_name(text: str) -> str:
    """The app that a text names; the messaging app if it names none."""
    for match in _APP.finditer(text):
        name = (match[1] or match[2]).lower()
        if name not in _NOT_APPS:
            return "messaging" if name in {"messages", "message", "texting", "mms", "sms"} else name
    return "messaging"


def permission_names(text: str) -> list[str]:
    """The permissions that a text names, in order."""
    return list(dict.fromkeys(match[1].lower() for match in _PERMISSION.finditer(text)))


def apn_settings(text: str) -> dict[str, JsonValue]:
    """The APN settings that a text gives."""
    settings: dict[str, JsonValue] = {}
    if name := _APN_NAME.search(text):
        settings["apn_name"] = name[1].lower()
    if url := _URL.search(text):
        settings["mmsc_url"] = url[0].rstrip(".")
    return settings


def find_tool_mentions(text: str, tools: Sequence[ToolSchema]) -> list[ToolMention]:
    """The mentions of tools in ``text`` that have all required arguments, in order."""
    mentions: list[ToolMention] = []
    for tool in tools:
        function = tool["function"]
        if function["name"] not in text:
            continue
        for match in re.finditer(rf"(?<!\w){re.escape(function['name'])}(?!\w)", text):
            arguments = _arguments(function, text[match.end() :], text)
            if arguments is not None:
                mentions.append(
                    ToolMention(_step(function["name"], arguments, text), match.start())
                )
    return sorted(mentions, key=lambda mention: mention.start)


def _step(name: str, arguments: Mapping[str, JsonValue], text: str) -> Step:
    for switch in SWITCHES.values():
        if name == switch.turn_on == switch.turn_off and (on := wanted_state(text)) is not None:
            return SetSwitch(switch, on)
    return CallTool(name, arguments)


def _arguments(function: Mapping[str, Any], after: str, text: str) -> dict[str, JsonValue] | None:
    schema = function.get("parameters") or {}
    properties: Mapping[str, Any] = schema.get("properties") or {}
    arguments = _arguments_in_parentheses(after, list(properties))
    for name in properties:
        if name not in arguments and (value := _argument_in_prose(name, text)) is not None:
            arguments[name] = value
    required = schema.get("required") or ()
    return arguments if all(name in arguments for name in required) else None


def _arguments_in_parentheses(after: str, names: Sequence[str]) -> dict[str, JsonValue]:
    match = re.match(r"\s*\(([^()]*)\)", after)
    if match is None:
        return {}
    if match[1].lstrip().startswith("{"):
        return _arguments_in_json(match[1], names)
    pairs = re.findall(r"(\w+)\s*[=:]\s*(\{[^{}]*\}|\"[^\"]*\"|'[^']*'|[^,\s]+)", match[1])
    if pairs:
        return {name: _parse_value(value) for name, value in pairs if name in names}
    values = [part for part in re.split(r",\s*", match[1]) if part.strip()]
    return {name: _parse_value(value) for name, value in zip(names, values, strict=False)}


def _arguments_in_json(text: str, names: Sequence[str]) -> dict[str, JsonValue]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    if set(value) & set(names):
        return {name: value[name] for name in value if name in names}
    return {names[0]: value} if names else {}


def _parse_value(text: str) -> JsonValue:
    stripped = text.strip().strip("`")
    try:
        return json.loads(stripped)
    except json.JSONDecodeError:
        return stripped.strip("'\"")


def _argument_in_prose(name: str, text: str) -> JsonValue | None:
    """An argument given in prose and not in parentheses."""
    if name == "mode":
        return network_mode(text)
    if name == "app_name":
        return app_name(text)
    if name == "permission":
        return next(iter(permission_names(text)), None)
    if name == "apn_settings":
        return apn_settings(text) or None
    named = re.search(rf"\b{re.escape(name)}\b\s*(?:=|:|is|to|of|as)?\s*['\"`]?([\w.@-]+)", text)
    if named:
        return _parse_value(named[1])
    quoted = _QUOTED.search(text) if name.endswith("_id") else None
    plain = re.search(r"\b[a-z]+_\d+\b", text) if name.endswith("_id") else None
    return quoted[1] if quoted else plain[0] if plain else None
