"""Tool calls of the scripted user for instructions about its phone."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phones import TELECOM, Phone, PhoneDialogue

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


@pytest.mark.parametrize("tool", TELECOM.split())
def test_every_tool_is_called_if_mentioned_by_name(tool: str):
    for text in (
        f"Please use `{LITERAL.get(tool, f'{tool}()')}`.",
        f"Now run {LITERAL.get(tool, tool)}",
    ):
        dialogue = PhoneDialogue()
        reply = dialogue.say(text)
        assert tool in dialogue.names
        assert reply


@pytest.mark.parametrize("tool", TELECOM.split())
def test_every_tool_is_called_if_described_in_plain_words(tool: str):
    dialogue = PhoneDialogue(Phone(vpn=tool == "disconnect_vpn"))
    dialogue.say(NATURAL[tool])
    assert tool in dialogue.names


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
def test_arguments_are_parsed_from_the_agents_text(text: str, arguments: dict[str, Any]):
    dialogue = PhoneDialogue()
    dialogue.say(text)
    assert arguments in [dict(made.arguments) for made in dialogue.calls]


def test_user_calls_have_requestor_user_and_unique_ids():
    dialogue = PhoneDialogue()
    dialogue.say("Please check your status bar, then reboot your phone and run a speed test.")
    dialogue.say("Please check your status bar again.")
    assert dialogue.names == [
        "check_status_bar",
        "reboot_device",
        "run_speed_test",
        "check_status_bar",
    ]
    assert all(made.requestor == "user" for made in dialogue.calls)
    assert len({made.id for made in dialogue.calls}) == len(dialogue.calls)


def test_unavailable_tool_is_never_called():
    dialogue = PhoneDialogue(tools="check_status_bar toggle_data")
    for text in NATURAL.values():
        dialogue.say(text)
    assert set(dialogue.names) <= {"check_status_bar", "toggle_data"}


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
    ).map(" ".join)
)
def test_random_words_of_instructions_end_in_a_text(text: str):
    dialogue = PhoneDialogue()
    assert dialogue.say(text)
    known = set(TELECOM.split())
    assert all(made.name in known and made.requestor == "user" for made in dialogue.calls)
    assert json.dumps([made.model_dump() for made in dialogue.calls])
