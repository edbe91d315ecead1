"""Calls of telecom demonstrations: diagnostics before the gold actions, records before changes.

No task states its fault or the ids of customer and line, so a demonstration checks the phone first
and looks the account up before it changes it.
"""

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from grpo_cl.types import Task, ToolCall

_LINE_CHECKS = ("check_network_status", "check_sim_status", "check_apn_settings")
_DATA_CHECKS = (
    "check_network_mode_preference",
    "check_data_restriction_status",
    "check_vpn_status",
    "run_speed_test",
)
_MESSAGE_CHECKS = ("check_wifi_calling_status", "check_app_permissions", "can_send_mms")

CHECKS = {
    "service_issue": _LINE_CHECKS,
    "mobile_data_issue": (*_LINE_CHECKS, *_DATA_CHECKS),
    "mms_issue": (*_LINE_CHECKS, *_DATA_CHECKS[:2], *_MESSAGE_CHECKS),
}
"""Diagnostic tools by kind of issue."""

_CALLER = "set_user_info"
"""Of the actions that prepare a task, the one with the name and the phone number of the caller."""
_ARGUMENTS: dict[str, dict[str, JsonValue]] = {"check_app_permissions": {"app_name": "messaging"}}


def with_diagnostics(task: Task, gold_calls: Sequence[ToolCall]) -> list[ToolCall]:
    """The checks for the issue of ``task``, then its gold calls with the reads they need."""
    purpose = f"{task.id} {task.description.purpose if task.description else ''}"
    names = next((names for issue, names in CHECKS.items() if issue in purpose), ())
    checks = [ToolCall(name=name, arguments=_ARGUMENTS.get(name, {})) for name in names]
    return [*checks, *_with_reads(task, gold_calls)]


def _with_reads(task: Task, calls: Sequence[ToolCall]) -> Iterator[ToolCall]:
    """Customer and line before the first call that changes the account, bills before payments."""
    is_looked_up = False
    for call in calls:
        if "customer_id" in call.arguments and not is_looked_up:
            is_looked_up = True
            yield from _account_reads(task, calls)
        if call.name == "send_payment_request":
            customer = {"customer_id": call.arguments["customer_id"]}
            yield ToolCall(name="get_bills_for_customer", arguments=customer)
        yield call


def _account_reads(task: Task, calls: Sequence[ToolCall]) -> Iterator[ToolCall]:
    """The customer of the ticket's phone number, and the line that is changed."""
    actions = (task.initial_state and task.initial_state.initialization_actions) or ()
    phone = next((a.arguments["phone_number"] for a in actions if a.func_name == _CALLER), None)
    if phone is not None:
        yield ToolCall(name="get_customer_by_phone", arguments={"phone_number": phone})
    line = next((c.arguments["line_id"] for c in calls if "line_id" in c.arguments), None)
    if line is not None:
        yield ToolCall(name="get_details_by_id", arguments={"id": line})
