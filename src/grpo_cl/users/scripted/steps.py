"""Steps that the user carries out with their own tools, and the next tool call of a plan."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.types import ToolCall


class CallTool(NamedTuple):
    """Call one tool once."""

    name: str
    arguments: Mapping[str, JsonValue] = {}


class Switch(NamedTuple):
    """An on/off setting of the phone, with the tools that read and set it."""

    name: str
    check: str
    turn_on: str
    turn_off: str
    state: re.Pattern[str]
    """Matches the setting's state in a tool result."""


class SetSwitch(NamedTuple):
    """Turn a switch on or off, or toggle it if ``on`` is None."""

    switch: Switch
    on: bool | None


class PayBill(NamedTuple):
    """Check for a payment request and pay it if there is one."""


Step = CallTool | SetSwitch | PayBill


class CallResult(NamedTuple):
    """A tool call of the user and its result."""

    call: ToolCall
    content: str


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


def wanted_state(clause: str) -> bool | None:
    """Whether ``clause`` asks for on or off; None if it names neither or both."""
    on, off = bool(_ON.search(clause)), bool(_OFF.search(clause))
    return on if on is not off else None


def next_call(
    steps: Sequence[Step], results: Sequence[CallResult], tools: frozenset[str]
) -> CallTool | None:
    """The next call that ``steps`` need after ``results``; None if they are complete."""
    calls = _planned_calls(steps, results, tools)
    call = next(calls, None)
    for _ in results:
        if call is None:
            return None
        call = next(calls, None)
    return call


def _planned_calls(
    steps: Sequence[Step], results: Sequence[CallResult], tools: frozenset[str]
) -> Iterator[CallTool]:
    """All calls of the steps; whether a call is needed depends on earlier results only."""
    count = 0
    for step in steps:
        for call in _candidate_calls(step, tools):
            if call.name in tools and _is_needed(step, call, results[:count]):
                yield call
                count += 1


def _candidate_calls(step: Step, tools: frozenset[str]) -> list[CallTool]:
    if isinstance(step, CallTool):
        return [step]
    if isinstance(step, PayBill):
        return [CallTool("check_payment_request"), CallTool("make_payment")]
    switch = step.switch
    names = [switch.check, switch.turn_on if step.on is not False else switch.turn_off]
    if step.on is None and switch.turn_on != switch.turn_off:
        names = [switch.check, switch.turn_on, switch.turn_off]
    elif step.on is None and names[1] in tools:
        names = names[1:]
    return [CallTool(name) for name in names]


def _is_needed(step: Step, call: CallTool, earlier: Sequence[CallResult]) -> bool:
    if isinstance(step, CallTool):
        return True
    if isinstance(step, PayBill):
        return _is_payment_due(call, earlier)
    state = is_on(step.switch, earlier)
    if call.name == step.switch.check:
        return state is None
    if step.on is not None:
        return state is not step.on
    if step.switch.turn_on == step.switch.turn_off:
        return True
    was_on = is_on(
        step.switch, [result for result in earlier if result.call.name == step.switch.check]
    )
    return call.name == (step.switch.turn_off if was_on else step.switch.turn_on)


def _is_payment_due(call: CallTool, earlier: Sequence[CallResult]) -> bool:
    checks = [result for result in earlier if result.call.name == "check_payment_request"]
    if call.name == "check_payment_request":
        return not checks
    return not any(check.content.startswith(NO_REQUEST) for check in checks)


def is_on(switch: Switch, earlier: Sequence[CallResult]) -> bool | None:
    """The state of a switch by the latest result that shows it; None if no result does."""
    for result in reversed(earlier):
        if match := switch.state.search(result.content):
            return not _IS_OFF.search(match[0])
    return None


def already_set(steps: Sequence[Step], results: Sequence[CallResult]) -> list[str]:
    """A sentence for each switch that already had the requested state."""
    called = {result.call.name for result in results}
    remarks: list[str] = []
    for step in steps:
        if not isinstance(step, SetSwitch) or step.on is None:
            continue
        tool = step.switch.turn_on if step.on else step.switch.turn_off
        if tool not in called and is_on(step.switch, results) is step.on:
            name = step.switch.name
            remarks.append(f"{name[0].upper()}{name[1:]} is already {'on' if step.on else 'off'}.")
    return remarks


def is_payment(step: Step) -> bool:
    """Whether a step makes a payment."""
    return isinstance(step, PayBill) or (isinstance(step, CallTool) and step.name == "make_payment")


def requested_results(steps: Sequence[Step], results: Sequence[CallResult]) -> list[CallResult]:
    """The results that the agent asked for, without the checks that precede setting a switch."""
    asked = {step.name for step in steps if isinstance(step, CallTool)}
    checks = {step.switch.check for step in steps if isinstance(step, SetSwitch)} - asked
    return [result for result in results if result.call.name not in checks]
