"""Faults of a line or its phone: the calls that cause them and the calls that repair them.

Faults of τ²-bench have its names, so that fault sets can be compared with those of its tasks. An
argument that starts with ``@`` is a reference to a value of the case.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.types import Requestor

SERVICE = "service_issue"
DATA = "mobile_data_issue"
MMS = "mms_issue"
INTENTS = (SERVICE, DATA, MMS)

DRAFT_BILL = "has a draft bill"
OVERDUE_BILL = "has an overdue bill"
NO_OVERDUE_BILL = "has no overdue bill"
"""Conditions that a fault may require of its caller."""

ROAMING = "roaming"
USAGE = "usage"
LINE = "line"
"""Groups that determine the customer's consent or location."""


class CallTemplate(NamedTuple):
    """A call of a toolkit function; arguments may refer to values of the case."""

    side: Requestor
    name: str
    arguments: Mapping[str, JsonValue]

    def arguments_for(self, values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The arguments with references replaced by their values."""
        return {
            key: values[value[1:]] if isinstance(value, str) and value.startswith("@") else value
            for key, value in self.arguments.items()
        }


class Check(NamedTuple):
    """The value that a function must return at the end of the episode."""

    call: CallTemplate
    expected: bool = True


class Fault(NamedTuple):
    """One fault; a fault without fixes requires a transfer to a human."""

    name: str
    group: str
    """A task contains at most one fault of a group."""
    intents: tuple[str, ...]
    breaks: tuple[CallTemplate, ...]
    fixes: tuple[CallTemplate, ...]
    checks: tuple[Check, ...] = ()
    """Checks in addition to those of the intent."""
    needs: str | None = None
    is_refused: bool = False
    """Whether the customer refuses the repair."""


_LINE: Mapping[str, JsonValue] = {"customer_id": "@customer_id", "line_id": "@line_id"}
_ONLINE = (DATA, MMS)


def _user(name: str, /, **arguments: JsonValue) -> CallTemplate:
    return CallTemplate("user", name, arguments)


def _agent(name: str, /, **arguments: JsonValue) -> CallTemplate:
    return CallTemplate("assistant", name, arguments)


def _permission(verb: str, permission: str) -> CallTemplate:
    return _user(f"{verb}_app_permission", app_name="messaging", permission=permission)


INTRODUCE = _user("set_user_info", name="@name", phone_number="@phone_number")
SET_USAGE = _agent("set_data_usage", **_LINE, data_used_gb="@used_gb")
SEARCH = _user("simulate_network_search")
TRANSFER = _agent("transfer_to_human_agents", summary="@summary")
REFUELLED = Check(_agent("assert_data_refueling_amount", **_LINE, expected_amount="@refuel_gb"))
"""The added data is exactly the amount that is agreed to and needed."""

GOALS: Mapping[str, tuple[Check, ...]] = {
    SERVICE: (Check(_user("assert_service_status", expected_status="connected")),),
    DATA: (
        Check(_user("assert_mobile_data_status", expected_status=True)),
        Check(_user("assert_internet_speed", expected_speed=200, expected_desc="excellent")),
    ),
    MMS: (Check(_user("assert_can_send_mms", expected_status=True)),),
}
"""Checks of each intent."""

_ABROAD = _user("set_user_location", abroad=True)
_PHONE_ROAMS = _user("turn_roaming_on")
_PHONE_STAYS = _user("turn_roaming_off")
_LINE_ROAMS = _agent("enable_roaming", **_LINE)
_LINE_STAYS = _agent("disable_roaming", **_LINE)
ROAMING_IN_ORDER = (_ABROAD, _PHONE_ROAMS, _LINE_ROAMS)

_SPARE: Mapping[str, JsonValue] = {"customer_id": "@customer_id", "line_id": "@spare_line_id"}
HOLD_SPARE = _agent("suspend_line", **_SPARE, reason="customer request")
USE_UP_SPARE = _agent("set_data_usage", **_SPARE, data_used_gb="@spare_over_gb")
SPARE_HELD = Check(_agent("assert_line_status", **_SPARE, expected_status="Suspended"))
SPARE_NOT_REFUELLED = Check(_agent("assert_data_refueling_amount", **_SPARE, expected_amount=0.0))

_NO_SERVICE = Check(_user("assert_service_status", expected_status="no_service"))
_LINE_ACTIVE = Check(_agent("assert_line_status", **_LINE, expected_status="Active"))
_LINE_SUSPENDED = Check(_agent("assert_line_status", **_LINE, expected_status="Suspended"))
_BILL_PAID = Check(_agent("assert_no_overdue_bill", overdue_bill_id="@bill_id"))

_NEW_BILL = (
    _agent("suspend_line_for_overdue_bill", **_LINE, new_bill_id="@bill_id", contract_ended=False),
    SEARCH,
)
_OLD_BILL = (_agent("suspend_line", **_LINE, reason="overdue bill"), SEARCH)
_CONTRACT_ENDED = (
    _agent("suspend_line_for_overdue_bill", **_LINE, new_bill_id="@bill_id", contract_ended=True),
    SEARCH,
)
_PAY_AND_RESUME = (
    _agent("send_payment_request", customer_id="@customer_id", bill_id="@bill_id"),
    _user("make_payment"),
    _agent("resume_line", **_LINE),
    _user("reboot_device"),
)
_FASTEST = "4g_5g_preferred"
_RESET_APN = (_user("reset_apn_settings"), _user("reboot_device"))
_USED_UP = (_agent("set_data_usage", **_LINE, data_used_gb="@over_gb"),)


def _mode(mode: str) -> tuple[CallTemplate, ...]:
    return (_user("set_network_mode_preference", mode=mode),)


def _locked(mode: str) -> tuple[CallTemplate, ...]:
    return (_user("lock_sim_card", mode=mode),)


# In the order of the troubleshooting manual. The faults can be caused in this order: turning on
# airplane mode later would drop the slow VPN connection.
FAULTS: tuple[Fault, ...] = (
    Fault(
        "airplane_mode_on",
        "airplane",
        INTENTS,
        (_user("turn_airplane_mode_on"),),
        (_user("toggle_airplane_mode"),),
    ),
    Fault(
        "unseat_sim_card",
        "sim",
        INTENTS,
        (_user("unseat_sim_card"),),
        (_user("reseat_sim_card"),),
    ),
    Fault("break_apn_settings", "apn", INTENTS, (_user("break_apn_settings"),), _RESET_APN),
    Fault(
        "overdue_bill_suspension",
        LINE,
        INTENTS,
        _NEW_BILL,
        _PAY_AND_RESUME,
        (_BILL_PAID, _LINE_ACTIVE),
        NO_OVERDUE_BILL,
    ),
    Fault(
        "overdue_bill_suspension",
        LINE,
        INTENTS,
        _OLD_BILL,
        _PAY_AND_RESUME,
        (_BILL_PAID, _LINE_ACTIVE),
        OVERDUE_BILL,
    ),
    Fault(
        "user_abroad_roaming_enabled_off",
        ROAMING,
        _ONLINE,
        (_ABROAD, _PHONE_STAYS, _LINE_ROAMS),
        (_user("toggle_roaming"),),
    ),
    Fault(
        "user_abroad_roaming_disabled_on",
        ROAMING,
        _ONLINE,
        (_ABROAD, _PHONE_ROAMS, _LINE_STAYS, SEARCH),
        (_LINE_ROAMS,),
    ),
    Fault(
        "user_abroad_roaming_disabled_off",
        ROAMING,
        _ONLINE,
        (_ABROAD, _PHONE_STAYS, _LINE_STAYS, SEARCH),
        (_LINE_ROAMS, _user("toggle_roaming")),
    ),
    Fault("data_mode_off", "data", _ONLINE, (_user("turn_data_off"),), (_user("toggle_data"),)),
    Fault(
        "data_usage_exceeded",
        USAGE,
        _ONLINE,
        _USED_UP,
        (_agent("refuel_data", **_LINE, gb_amount="@refuel_gb"),),
        needs=DRAFT_BILL,  # without one, refuelling creates a bill with a random id
    ),
    Fault(
        "data_saver_mode_on",
        "saver",
        (DATA,),
        (_user("turn_data_saver_mode_on"),),
        (_user("toggle_data_saver_mode"),),
    ),
    Fault("bad_network_preference", "mode", _ONLINE, _mode("2g_only"), _mode(_FASTEST)),
    Fault("network_mode_3g", "mode", (DATA,), _mode("3g_only"), _mode(_FASTEST)),
    Fault("bad_vpn", "vpn", (DATA,), (_user("break_vpn"),), (_user("disconnect_vpn"),)),
    Fault(
        "bad_wifi_calling",
        "wifi calling",
        (MMS,),
        (_user("set_wifi_calling", enabled=True, mms_over_wifi=True),),
        (_user("toggle_wifi_calling"),),
    ),
    Fault(
        "break_app_sms_permission",
        "permissions",
        (MMS,),
        (_permission("remove", "sms"),),
        (_permission("grant", "sms"),),
    ),
    Fault(
        "break_app_storage_permission",
        "permissions",
        (MMS,),
        (_permission("remove", "storage"),),
        (_permission("grant", "storage"),),
    ),
    Fault(
        "break_app_both_permissions",
        "permissions",
        (MMS,),
        (_permission("remove", "sms"), _permission("remove", "storage")),
        (_permission("grant", "sms"), _permission("grant", "storage")),
    ),
    Fault("break_apn_mms_setting", "mmsc", (MMS,), (_user("break_apn_mms_setting"),), _RESET_APN),
)

_UNPAID_CHECKS = (_NO_SERVICE, _LINE_SUSPENDED, Check(_BILL_PAID.call, expected=False))

# The policy allows nothing but a transfer to a human.
UNFIXABLE: tuple[Fault, ...] = (
    Fault("lock_sim_card_pin", "lock", INTENTS, _locked("pin"), (), (_NO_SERVICE,)),
    Fault("lock_sim_card_puk", "lock", INTENTS, _locked("puk"), (), (_NO_SERVICE,)),
    Fault(
        "contract_end_suspension",
        LINE,
        INTENTS,
        _CONTRACT_ENDED,
        (),
        (_NO_SERVICE, _LINE_SUSPENDED),
        NO_OVERDUE_BILL,
    ),
    Fault(
        "overdue_bill_refused",
        LINE,
        INTENTS,
        _NEW_BILL,
        (),
        _UNPAID_CHECKS,
        NO_OVERDUE_BILL,
        is_refused=True,
    ),
    Fault(
        "overdue_bill_refused",
        LINE,
        INTENTS,
        _OLD_BILL,
        (),
        _UNPAID_CHECKS,
        OVERDUE_BILL,
        is_refused=True,
    ),
    Fault(
        "data_usage_refuel_refused",
        USAGE,
        _ONLINE,
        _USED_UP,
        (),
        (Check(_user("assert_mobile_data_status", expected_status=False)), REFUELLED),
        DRAFT_BILL,
        is_refused=True,
    ),
)
