"""Parser of instructions about the user's phone: from a clause in plain words to steps."""

import re
from collections.abc import Callable

from grpo_cl.users.scripted.sentences import any_of
from grpo_cl.users.scripted.steps import SWITCHES, CallTool, PayBill, SetSwitch, Step, wanted_state
from grpo_cl.users.scripted.tool_mentions import (
    MODE,
    apn_settings,
    app_name,
    network_mode,
    permission_names,
)

_SETTING_NAMES = {
    "airplane": r"\b(?:air|aero)?plane mode\b|\bflight mode\b",
    "saver": r"\bdata[- ]?sav(?:er|ing)\b(?: mode)?",
    "restriction": r"\bdata (?:restrict|limit)\w*\b|\bbackground data\b|\brestrict\w* data\b",
    "roaming": r"\b(?:data )?roaming\b",
    "calling": r"\bwi-?fi calling\b",
    "wifi": r"\bwi-?fi\b",
    "vpn": r"\bvpns?\b|\bvirtual private network\b",
    "permission": r"\bpermissions?\b|\baccess to (?:storage|sms)\b",
    "apps": r"\binstalled apps?\b|\bapps? (?:\w+ )?(?:are |you have )?installed\b"
    r"|\b(?:list of|which|what) apps\b",
    "app": r"\bapp(?:'s)? (?:status|details|settings|info)\b|\bstatus of (?:the |your )?\w+ app\b",
    "mms": r"\bmms\b|\b(?:picture|photo|multimedia|media) messag\w+",
    "apn": r"\bapn\b|\bmmsc\b|\baccess point\b",
    "sim": r"\bsim\b(?: card)?",
    "speed": r"\bspeed ?test\b|\bbrowse\b"
    r"|\b(?:(?:mobile|cellular) )?(?:internet|data|download|connection|network) speed\b",
    "mode": r"\b(?:preferred )?network (?:mode|type|preference|technology)\b"
    r"|\bpreferred network\b|\b[2-5]g\w*\b|\blte\b",
    "bar": r"\bstatus bar\b|\btop of (?:the|your) screen\b|\bsignal\b|\bbars\b"
    r"|\b(?:cell|cellular|mobile|phone) service\b|\bservice (?:now|back|restored)\b",
    "data": r"\b(?:mobile|cellular|cell) data\b|\bdata connection\b"
    r"|\bdata\b(?! (?:plan|usage|allowance|limit|refuel))",
    "network": r"\bnetwork(?: status| connection)?\b|\bconnection status\b",
    "reboot": r"\b(?:reboot|restart|power[- ]cycle)\b"
    r"|\b(?:turn|switch|power) (?:your |the )?(?:phone|device) off and (?:then )?(?:back )?on\b"
    r"|\bturn off and (?:back )?on (?:your |the )?(?:phone|device)\b",
    "pay": r"\bpayment request\b|\bmake (?:a |the )?payment\b|\bpay\b(?! \$| for| an?\b)"
    r"|\b(?:the|your|this|overdue) (?:\w+ )?(?:bill|payment|invoice)\b",
    "notice": r"\bnotifications?\b",
    "it": r"\bit\b",
}
"""Names that agents use for parts of a phone; if several patterns match, the first counts."""
_SETTING = any_of(*(f"(?P<{setting}>{names})" for setting, names in _SETTING_NAMES.items()))
_CHECK = re.compile(
    r"\b(?:check|look|see|verify|view|show|tell me|let me know|what|which|confirm|is|are|does"
    r"|do you|have you|find|open|review|read|whether|how)\b",
    re.IGNORECASE,
)
_SWITCHES_BY_SETTING = {
    "airplane": "airplane mode",
    "saver": "data saver",
    "roaming": "data roaming",
    "calling": "Wi-Fi calling",
    "wifi": "Wi-Fi",
    "vpn": "VPN",
    "data": "mobile data",
}
_CYCLE = re.compile(r"\boff\b.{0,25}?\b(?:and|then)\b(?: \w+){0,3}? on\b", re.IGNORECASE)
_CYCLE_BACK = re.compile(r"\bon\b.{0,25}?\b(?:and|then)\b(?: \w+){0,3}? off\b", re.IGNORECASE)
_TOGGLE = re.compile(r"\b(?:toggle|flip|change)\b", re.IGNORECASE)
_FLIP = re.compile(r"\b(?:turn|switch)\b", re.IGNORECASE)
_SET = re.compile(r"\b(?:set|change|switch|update|configure|select|choose|enter)\b", re.IGNORECASE)
_RESEAT = re.compile(
    r"\b(?:re-?seat|remove|re-?insert|take (?:it |the \w+ )?out|eject|put (?:it )?back|insert)\b",
    re.IGNORECASE,
)
_RESET = re.compile(r"\b(?:reset|restore|default)\b", re.IGNORECASE)
_GRANT = re.compile(
    r"\b(?:grant|give|allow|enable|turn on|add|sure|ensure|needs?|accept)\b", re.IGNORECASE
)
_PAY = re.compile(
    r"\b(?:pay|accept|complete|make|approve|settle|authorize|process)\b", re.IGNORECASE
)
_DISMISS = re.compile(r"\b(?:dismiss|clear|remove|delete)\b", re.IGNORECASE)
_RUN = re.compile(
    r"\b(?:run|do|perform|try|test|check|take|conduct|start|what|how|can|able|send|see|is)\b",
    re.IGNORECASE,
)


def _call_tool(name: str) -> list[Step]:
    return [CallTool(name)]


def _switch(setting: str, clause: str) -> list[Step]:
    switch = SWITCHES[_SWITCHES_BY_SETTING[setting]]
    if _TOGGLE.search(clause) or _FLIP.search(clause):
        if _CYCLE.search(clause):
            return [SetSwitch(switch, on=False), SetSwitch(switch, on=True)]
        if _CYCLE_BACK.search(clause):
            return [SetSwitch(switch, on=True), SetSwitch(switch, on=False)]
    on = wanted_state(clause)
    if on is not None:
        return [SetSwitch(switch, on)]
    if _TOGGLE.search(clause):
        return [SetSwitch(switch, None)]
    return _call_tool(switch.check) if _CHECK.search(clause) else []


def _mode(clause: str) -> list[Step]:
    mode = network_mode(clause)
    if mode and (_SET.search(clause) or MODE.search(clause)):
        return [CallTool("set_network_mode_preference", {"mode": mode})]
    named = re.search(r"\bnetwork\b", clause, re.IGNORECASE)
    return (
        _call_tool("check_network_mode_preference")
        if named and (_CHECK.search(clause) or _SET.search(clause))
        else []
    )


def _sim(clause: str) -> list[Step]:
    if _RESEAT.search(clause):
        return _call_tool("reseat_sim_card")
    return _call_tool("check_sim_status") if _CHECK.search(clause) else []


def _apn(clause: str) -> list[Step]:
    settings = apn_settings(clause)
    if settings and _SET.search(clause):
        return [CallTool("set_apn_settings", {"apn_settings": settings})]
    if _RESET.search(clause):
        return _call_tool("reset_apn_settings")
    return _call_tool("check_apn_settings") if _CHECK.search(clause) else []


def _permission(clause: str) -> list[Step]:
    app, permissions = app_name(clause), permission_names(clause)
    is_check = re.search(
        r"\b(?:check|see|verify|what|which|whether|if|does|review|look)\b", clause, re.IGNORECASE
    )
    if permissions and _GRANT.search(clause) and not is_check:
        return [
            CallTool("grant_app_permission", {"app_name": app, "permission": permission})
            for permission in permissions
        ]
    return [CallTool("check_app_permissions", {"app_name": app})]


def _pay(clause: str) -> list[Step]:
    if _PAY.search(clause):
        return [PayBill()]
    return _call_tool("check_payment_request") if _CHECK.search(clause) else []


def _notice(clause: str) -> list[Step]:
    match = re.search(r"['\"`](\w+)['\"`]|\b(\w+_\d+)\b", clause)
    if match and _DISMISS.search(clause):
        return [CallTool("dismiss_notification", {"notification_id": match[1] or match[2]})]
    return _call_tool("check_notifications") if _CHECK.search(clause) else []


def _tool_if(pattern: re.Pattern[str], name: str) -> Callable[[str], list[Step]]:
    return lambda clause: _call_tool(name) if pattern.search(clause) else []


_PARSERS: dict[str, Callable[[str], list[Step]]] = {
    "restriction": _tool_if(_CHECK, "check_data_restriction_status"),
    "permission": _permission,
    "apps": _tool_if(_CHECK, "check_installed_apps"),
    "app": lambda clause: [CallTool("check_app_status", {"app_name": app_name(clause)})],
    "mms": _tool_if(_RUN, "can_send_mms"),
    "apn": _apn,
    "sim": _sim,
    "speed": _tool_if(_RUN, "run_speed_test"),
    "mode": _mode,
    "bar": _tool_if(_CHECK, "check_status_bar"),
    "network": _tool_if(_CHECK, "check_network_status"),
    "reboot": lambda clause: _call_tool("reboot_device"),
    "pay": _pay,
    "notice": _notice,
}  # fmt: skip

_HIDES = {
    "permission": {"mms", "app", "apps", "data", "network", "bar", "sim"},
    "mode": {"network", "bar", "data"},
    "speed": {"network", "data"},
    "apn": {"mms", "network", "data"},
    "apps": {"app"},
}
"""A setting on the left hides those on the right if the same clause names both."""


def find_settings(clause: str) -> list[str]:
    """The keys of the settings that a clause names, in order; ``it`` only if it names no other."""
    settings = list(dict.fromkeys(str(match.lastgroup) for match in _SETTING.finditer(clause)))
    hidden = {setting for present in settings for setting in _HIDES.get(present, ())}
    named = [setting for setting in settings if setting not in hidden and setting != "it"]
    return named or [setting for setting in settings if setting == "it"]


def parse_clause(clause: str, setting: str) -> list[Step]:
    """The steps that the clause asks for with a setting; empty if it only mentions the setting."""
    if setting in _SWITCHES_BY_SETTING:
        return _switch(setting, clause)
    parser = _PARSERS.get(setting)
    return parser(clause) if parser else []
