"""A simulated phone with telecom's user tools, and a dialogue with its scripted user."""

import asyncio
from collections.abc import Callable

from grpo_cl.types import Message, StructuredInstructions, Task, ToolCall, ToolSchema, UserScenario
from grpo_cl.users.scripted.user import ScriptedUser

PARAMETERS = {
    "set_network_mode_preference": ("mode",),
    "set_apn_settings": ("apn_settings",),
    "check_app_status": ("app_name",),
    "check_app_permissions": ("app_name",),
    "grant_app_permission": ("app_name", "permission"),
    "dismiss_notification": ("notification_id",),
}


TELECOM = (
    "check_status_bar check_network_status check_network_mode_preference "
    "set_network_mode_preference run_speed_test toggle_airplane_mode check_sim_status "
    "reseat_sim_card toggle_data toggle_roaming check_data_restriction_status "
    "toggle_data_saver_mode check_apn_settings set_apn_settings reset_apn_settings "
    "check_wifi_status toggle_wifi check_wifi_calling_status toggle_wifi_calling "
    "check_vpn_status connect_vpn disconnect_vpn check_installed_apps check_app_status "
    "check_app_permissions grant_app_permission can_send_mms reboot_device "
    "check_payment_request make_payment"
)


def schemas(names: str) -> list[ToolSchema]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": "string"} for key in PARAMETERS.get(name, ())},
                    "required": list(PARAMETERS.get(name, ())),
                },
            },
        }
        for name in names.split()
    ]


class Phone:
    """A phone whose tool results have the format of telecom's tools."""

    def __init__(self, **state: bool) -> None:
        self.state = {"airplane": False, "data": True, "roaming": False, "saver": False} | state
        self.calling, self.wifi, self.vpn = (
            state.get(k, False) for k in ("calling", "wifi", "vpn")
        )
        self.fixed = state.get("fixed", False)
        self.request = state.get("request", True)

    def _network(self) -> str:
        on, yes = ("ON" if self.state["airplane"] else "OFF"), ("No", "Yes")
        return (
            f"Airplane Mode: {on}\nMobile Data Enabled: {yes[self.state['data']]}\n"
            f"Data Roaming Enabled: {yes[self.state['roaming']]}"
        )

    def _flip(self, key: str, label: str) -> str:
        self.state[key] = not self.state[key]
        return f"{label} is now {'ON' if self.state[key] else 'OFF'}.\nStatus Bar: ..."

    def run(self, call: ToolCall) -> str:
        results: dict[str, Callable[[], str]] = {
            "check_network_status": self._network,
            "toggle_airplane_mode": lambda: self._flip("airplane", "Airplane Mode"),
            "toggle_data": lambda: self._flip("data", "Mobile Data"),
            "toggle_roaming": lambda: self._flip("roaming", "Data Roaming"),
            "toggle_data_saver_mode": lambda: self._flip("saver", "Data Saver Mode"),
            "check_data_restriction_status": lambda: (
                f"Data Saver mode is {'ON' if self.state['saver'] else 'OFF'}."
            ),
            "check_vpn_status": lambda: (
                "VPN is ON and connected." if self.vpn else "VPN is turned OFF."
            ),
            "check_status_bar": lambda: (
                "Status Bar: 📶⁴ Excellent | 5G" if self.fixed else "Status Bar: 📵 No Signal"
            ),
            "check_payment_request": lambda: (
                "You have a payment request for bill B1 of 10 USD."
                if self.request
                else "No payment request has been made."
            ),
        }
        return results.get(call.name, lambda: f"{call.name} done.")()


SERVICE = Task(
    id="t",
    domain="telecom",
    user_scenario=UserScenario(
        instructions=StructuredInstructions(
            domain="telecom",
            reason_for_call="Your phone has been showing 'No Service' for the past few hours.",
            known_info="You are John Smith with phone number 555-123-2002. You are currently "
            "abroad in France.",
            task_instructions="You will consider the issue resolved when the status bar shows that "
            "you have signal. If the agent asks you to pay a bill, you accept. You are willing to "
            "refuel 2.0 GB of data if necessary, but you do not want to change your mobile data "
            "plan.",
        )
    ),
)


class PhoneDialogue:
    """A dialogue of given agent texts with a scripted user that has a phone."""

    def __init__(
        self, phone: Phone | None = None, *, task: Task = SERVICE, tools: str = TELECOM
    ) -> None:
        self.phone = phone or Phone()
        self.user = ScriptedUser(task, schemas(tools))
        self.messages: list[Message] = []
        self.calls: list[ToolCall] = []
        self.opening = self.say("Hi! How can I help you today?")
        self.calls.clear()

    def say(self, text: str) -> str:
        self.messages.append(Message(role="assistant", content=text))
        for _ in range(30):
            message = asyncio.run(self.user.respond(self.messages))
            self.messages.append(message)
            if message.tool_calls is None:
                return message.content or ""
            for call in message.tool_calls:
                self.calls.append(call)
                self.messages.append(
                    Message(role="tool", id=call.id, content=self.phone.run(call), requestor="user")
                )
        raise AssertionError(f"the user never stopped calling tools: {self.names}")

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]
