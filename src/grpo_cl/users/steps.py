"""What the user does with their own tools: steps, and the next call that carries them out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.types import ToolCall


class Deed(NamedTuple):
    """A tool and what it is given, before the call has an id."""

    name: str
    arguments: Mapping[str, JsonValue] = {}


class Use(NamedTuple):
    """Use one tool once."""

    deed: Deed


class Switch(NamedTuple):
    """A setting of the phone that is on or off."""

    name: str
    check: str
    turn_on: str
    turn_off: str
    state: re.Pattern[str]
    """Finds the setting's state in a tool's result."""


class Turn(NamedTuple):
    """Bring a switch into a state, or into the other state where ``on`` is None."""

    switch: Switch
    on: bool | None


class Pay(NamedTuple):
    """Look for a payment request and pay it if there is one."""


Step = Use | Turn | Pay


class Outcome(NamedTuple):
    """A call the user has made, and what came back."""

    call: ToolCall
    result: str


def _switch(name: str, check: str, state: str, *, on: str, off: str | None = None) -> Switch:
    return Switch(name, check, on, off or on, re.compile(state, re.IGNORECASE))


SWITCHES = {
    switch.name: switch
    for switch in (
        _switch(
            "airplane mode",
            "check_network_status",
            r"Airplane Mode(?:: | is now )(?:ON|OFF)",
            on="toggle_airplane_mode",
        ),
        _switch(
            "data saver",
            "check_data_restriction_status",
            r"Data Saver mode is (?:now )?(?:ON|OFF)",
            on="toggle_data_saver_mode",
        ),
        _switch(
            "data roaming",
            "check_network_status",
            r"Data Roaming (?:Enabled: (?:Yes|No)|is now (?:ON|OFF))",
            on="toggle_roaming",
        ),
        _switch(
            "Wi-Fi calling",
            "check_wifi_calling_status",
            r"Wi-Fi Calling is (?:now|currently turned) (?:ON|OFF)",
            on="toggle_wifi_calling",
        ),
        _switch(
            "mobile data",
            "check_network_status",
            r"Mobile Data (?:Enabled: (?:Yes|No)|is now (?:ON|OFF))",
            on="toggle_data",
        ),
        _switch(
            "Wi-Fi",
            "check_wifi_status",
            r"Wi-Fi is (?:now |turned )?(?:ON|OFF)",
            on="toggle_wifi",
        ),
        _switch(
            "VPN",
            "check_vpn_status",
            r"VPN is (?:turned )?(?:ON|OFF)(?: in settings, but currently not connected)?"
            r"|VPN (?:dis)?connected successfully",
            on="connect_vpn",
            off="disconnect_vpn",
        ),
    )
}
"""The phone's switches by name."""

_IS_OFF = re.compile(r"\b(?:OFF|No|not connected|disconnected)\b", re.IGNORECASE)
_MUST = r"\b(?:sure|ensure|should be|must be|needs? to be|has to be)\b(?: \S+){0,6}?"
_FLIP = r"\b(?:turn|switch|put|set|toggle)(?: \S+){0,5}?"
_ON = re.compile(
    rf"{_FLIP} (?:back )?on\b|\b(?:re-?)?(?:enable|activate)\b|\bconnect\b|{_MUST} (?:on|enabled"
    rf"|active|connected)\b",
    re.IGNORECASE,
)
_OFF = re.compile(
    rf"{_FLIP} off\b|\b(?:disable|deactivate|disconnect)\b|{_MUST} (?:off|disabled|inactive"
    rf"|disconnected)\b",
    re.IGNORECASE,
)
NO_REQUEST = "No payment request"


def direction(clause: str) -> bool | None:
    """Whether ``clause`` wants something on or off; None if it says neither or both."""
    on, off = bool(_ON.search(clause)), bool(_OFF.search(clause))
    return on if on is not off else None


def next_deed(steps: Sequence[Step], done: Sequence[Outcome], tools: frozenset[str]) -> Deed | None:
    """The next call for ``steps`` after those already ``done``; None when all is finished."""
    plan = _deeds(steps, done, tools)
    deed = next(plan, None)
    for _ in done:
        if deed is None:
            return None
        deed = next(plan, None)
    return deed


def _deeds(steps: Sequence[Step], done: Sequence[Outcome], tools: frozenset[str]) -> Iterator[Deed]:
    """Every call the steps need; each decision reads only results that came before it."""
    count = 0
    for step in steps:
        for deed in _wanted(step, tools):
            if deed.name in tools and _is_needed(step, deed, done[:count]):
                yield deed
                count += 1


def _wanted(step: Step, tools: frozenset[str]) -> list[Deed]:
    if isinstance(step, Use):
        return [step.deed]
    if isinstance(step, Pay):
        return [Deed("check_payment_request"), Deed("make_payment")]
    switch = step.switch
    names = [switch.check, switch.turn_on if step.on is not False else switch.turn_off]
    if step.on is None and switch.turn_on != switch.turn_off:
        names = [switch.check, switch.turn_on, switch.turn_off]
    elif step.on is None and names[1] in tools:
        names = names[1:]
    return [Deed(name) for name in names]


def _is_needed(step: Step, deed: Deed, past: Sequence[Outcome]) -> bool:
    if isinstance(step, Use):
        return True
    if isinstance(step, Pay):
        return _is_payment_due(deed, past)
    state = is_on(step.switch, past)
    if deed.name == step.switch.check:
        return state is None
    if step.on is not None:
        return state is not step.on
    if step.switch.turn_on == step.switch.turn_off:
        return True
    was = is_on(
        step.switch, [outcome for outcome in past if outcome.call.name == step.switch.check]
    )
    return deed.name == (step.switch.turn_off if was else step.switch.turn_on)


def _is_payment_due(deed: Deed, past: Sequence[Outcome]) -> bool:
    looks = [outcome for outcome in past if outcome.call.name == "check_payment_request"]
    if deed.name == "check_payment_request":
        return not looks
    return not any(look.result.startswith(NO_REQUEST) for look in looks)


def is_on(switch: Switch, past: Sequence[Outcome]) -> bool | None:
    """The state of a switch after these calls; None if no result shows it."""
    for outcome in reversed(past):
        if match := switch.state.search(outcome.result):
            return not _IS_OFF.search(match[0])
    return None


def already(steps: Sequence[Step], done: Sequence[Outcome]) -> list[str]:
    """A remark for each switch that needed no touch."""
    called = {outcome.call.name for outcome in done}
    remarks: list[str] = []
    for step in steps:
        if not isinstance(step, Turn) or step.on is None:
            continue
        tool = step.switch.turn_on if step.on else step.switch.turn_off
        if tool not in called and is_on(step.switch, done) is step.on:
            name = step.switch.name
            remarks.append(f"{name[0].upper()}{name[1:]} is already {'on' if step.on else 'off'}.")
    return remarks


def is_payment(step: Step) -> bool:
    """Whether a step spends the user's money."""
    return isinstance(step, Pay) or (isinstance(step, Use) and step.deed.name == "make_payment")


def worth_telling(steps: Sequence[Step], done: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes the agent asked for, without looks at a switch that only served to set it."""
    asked = {step.deed.name for step in steps if isinstance(step, Use)}
    looks = {step.switch.check for step in steps if isinstance(step, Turn)} - asked
    return [outcome for outcome in done if outcome.call.name not in looks]
