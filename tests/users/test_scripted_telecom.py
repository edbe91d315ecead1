"""The scripted user with the tools of the telecom domain."""

import asyncio

import pytest

from grpo_cl.envs.base import Environment
from grpo_cl.envs.telecom.domain import TelecomDomain
from grpo_cl.types import Action, Message, Task
from grpo_cl.users.base import STOP
from grpo_cl.users.scripted.user import ScriptedUser

PHRASES = {
    "toggle_airplane_mode": "Please turn off airplane mode.",
    "toggle_data": "Please make sure that mobile data is turned on.",
    "toggle_roaming": "Could you enable data roaming on your phone?",
    "toggle_data_saver_mode": "Please turn off data saver.",
    "toggle_wifi_calling": "Please turn Wi-Fi calling off.",
    "disconnect_vpn": "Please disconnect your VPN.",
    "reseat_sim_card": "Please take your SIM card out and put it back in.",
    "reset_apn_settings": "Let's reset your APN settings.",
    "reboot_device": "Now please restart your phone.",
    "make_payment": "I have sent you a payment request. Please check it and pay.",
    "set_network_mode_preference": "Please set your network mode preference to {mode}.",
    "grant_app_permission": "Please grant the {app_name} app the {permission} permission.",
}


def instruction(action: Action) -> str:
    return PHRASES.get(action.name, f"Please use `{action.name}`.").format(**action.arguments)


def converse(
    text: str, user: ScriptedUser, environment: Environment, messages: list[Message]
) -> str:
    messages.append(Message(role="assistant", content=text))
    while (message := asyncio.run(user.respond(messages))).tool_calls is not None:
        messages.append(message)
        for call in message.tool_calls:
            result = environment.call(call)
            assert not result.error, (call, result)
            tool = Message(role="tool", id=call.id, content=result.content, requestor="user")
            messages.append(tool)
    messages.append(message)
    return message.content or ""


def play(domain: TelecomDomain, task: Task) -> tuple[bool, str]:
    environment, user = domain.environment(task), ScriptedUser(task, domain.user_tools)
    messages: list[Message] = []
    converse("Hi! How can I help you today?", user, environment, messages)
    for action in task.gold_actions:
        if action.requestor == "user":
            converse(instruction(action), user, environment, messages)
        else:
            environment.call(action.call)
    last = converse("Is there anything else I can help you with?", user, environment, messages)
    criteria = task.evaluation_criteria
    assert criteria is not None
    return all(environment.holds(item) for item in criteria.env_assertions or ()), last


@pytest.mark.slow
def test_every_telecom_task_is_solved_by_instructions_in_plain_words():
    domain = TelecomDomain()
    for task in domain.tasks("base"):
        is_solved, last = play(domain, task)
        assert is_solved, task.id
        is_transferred = any("transfer" in action.name for action in task.gold_actions)
        assert (STOP in last) is not is_transferred, (task.id, last)
