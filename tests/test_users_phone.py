"""What a scripted user does with tools of their own when an agent asks for it."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.domains.base import ToolSchema
from grpo_cl.types import Message, StructuredInstructions, Task, ToolCall, UserScenario
from grpo_cl.users.scripted import ScriptedUser

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
LITERAL = {
    "set_network_mode_preference": "set_network_mode_preference(mode='4g_5g_preferred')",
    "set_apn_settings": 'set_apn_settings({"apn_name": "internet"})',
    "check_app_status": 'check_app_status("messaging")',
    "check_app_permissions": 'check_app_permissions(app_name="messaging")',
    "grant_app_permission": 'grant_app_permission(app_name="messaging", permission="storage")',
}
NATURAL = {
    "check_status_bar": "Could you check your status bar and tell me what it shows?",
    "check_network_status": "Please check your network status.",
    "check_network_mode_preference": "What is your current network mode preference?",
    "set_network_mode_preference": "Set your network mode to 4g_5g_preferred, please.",
    "run_speed_test": "Please run a speed test.",
    "toggle_airplane_mode": "Please toggle airplane mode.",
    "check_sim_status": "Can you check the status of your SIM card?",
    "reseat_sim_card": "Please take out your SIM card and put it back in.",
    "toggle_data": "Could you toggle your mobile data?",
    "toggle_roaming": "Please toggle data roaming.",
    "check_data_restriction_status": "Please check whether Data Saver is on.",
    "toggle_data_saver_mode": "Please toggle data saver mode.",
    "check_apn_settings": "Let's check your APN settings.",
    "set_apn_settings": "Please set your APN name to internet.",
    "reset_apn_settings": "Please reset your APN settings.",
    "check_wifi_status": "Are you connected to Wi-Fi?",
    "toggle_wifi": "Please toggle your WiFi.",
    "check_wifi_calling_status": "Is Wi-Fi Calling enabled on your phone?",
    "toggle_wifi_calling": "Could you toggle wifi calling?",
    "check_vpn_status": "Are you using a VPN?",
    "connect_vpn": "Please connect to your VPN.",
    "disconnect_vpn": "Please disconnect from the VPN.",
    "check_installed_apps": "Which apps are installed on your phone?",
    "check_app_status": "Please check the status of your messaging app.",
    "check_app_permissions": "What permissions does your messaging app have?",
    "grant_app_permission": "Please grant the messaging app the storage permission.",
    "can_send_mms": "Can you try sending an MMS now?",
    "reboot_device": "Could you restart your phone, please?",
    "check_payment_request": "Please check whether you have received the payment request.",
    "make_payment": "Please pay the bill.",
}


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
    """A phone with the results that telecom's tools give."""

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


class Call:
    """A conversation between an agent's texts and a scripted user with a phone."""

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


@pytest.mark.parametrize("tool", TELECOM.split())
def test_every_tool_can_be_reached_by_its_name(tool: str):
    for text in (
        f"Please use `{LITERAL.get(tool, f'{tool}()')}`.",
        f"Now run {LITERAL.get(tool, tool)}",
    ):
        call = Call()
        reply = call.say(text)
        assert tool in call.names
        assert reply


@pytest.mark.parametrize("tool", TELECOM.split())
def test_every_tool_can_be_reached_in_plain_words(tool: str):
    call = Call(Phone(vpn=tool == "disconnect_vpn"))
    call.say(NATURAL[tool])
    assert tool in call.names


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (NATURAL["set_network_mode_preference"], {"mode": "4g_5g_preferred"}),
        ("Please change your network mode to 5G.", {"mode": "4g_5g_preferred"}),
        ("Please set the network mode preference to 4G only.", {"mode": "4g_only"}),
        ("Please set_network_mode_preference with mode 3g_only.", {"mode": "3g_only"}),
        (
            "Please allow your messaging app to use SMS by granting the sms permission.",
            {"app_name": "messaging", "permission": "sms"},
        ),
        ("Check the permissions of the browser app.", {"app_name": "browser"}),
        (
            "Please set your APN name to internet and MMSC URL to http://mms.example/x.",
            {"apn_settings": {"apn_name": "internet", "mmsc_url": "http://mms.example/x"}},
        ),
    ],
)
def test_arguments_are_read_from_the_agents_words(text: str, arguments: dict[str, Any]):
    call = Call()
    call.say(text)
    assert arguments in [dict(made.arguments) for made in call.calls]


def test_calls_carry_the_user_as_requestor_and_ids_of_their_own():
    call = Call()
    call.say("Please check your status bar, then reboot your phone and run a speed test.")
    call.say("Please check your status bar again.")
    assert call.names == [
        "check_status_bar",
        "reboot_device",
        "run_speed_test",
        "check_status_bar",
    ]
    assert all(made.requestor == "user" for made in call.calls)
    assert len({made.id for made in call.calls}) == len(call.calls)


def test_a_tool_the_user_does_not_have_is_never_called():
    call = Call(tools="check_status_bar toggle_data")
    for text in NATURAL.values():
        call.say(text)
    assert set(call.names) <= {"check_status_bar", "toggle_data"}


def say_words(words: Sequence[str]) -> str:
    return " ".join(words)


@given(
    st.lists(
        st.sampled_from(
            [
                *TELECOM.split(),
                *" ".join(NATURAL.values()).split(),
                "(",
                ")",
                "{",
                "}",
                "=",
                ",",
                ".",
            ]
        ),
        max_size=25,
    ).map(say_words)
)
def test_any_jumble_of_requests_ends_in_words(text: str):
    call = Call()
    assert call.say(text)
    known = set(TELECOM.split())
    assert all(made.name in known and made.requestor == "user" for made in call.calls)
    assert json.dumps([made.model_dump() for made in call.calls])
