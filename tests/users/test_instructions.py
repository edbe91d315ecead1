"""How the scripted user carries out the agent's instructions."""

import asyncio

import pytest

from grpo_cl.types import StructuredInstructions, Task, UserScenario
from grpo_cl.users.base import STOP
from grpo_cl.users.scripted.user import NOT_RESOLVED, ScriptedUser
from phones import SERVICE, TELECOM, Phone, PhoneDialogue, schemas


def test_tool_results_are_reported_to_the_agent():
    dialogue = PhoneDialogue()
    assert "No Signal" in dialogue.say("What does your status bar show?")


@pytest.mark.parametrize(
    ("phone", "text", "expected"),
    [
        (Phone(airplane=True), "Please turn off airplane mode.", {"airplane": False}),
        (Phone(airplane=False), "Please turn off airplane mode.", {"airplane": False}),
        (Phone(data=False), "Please turn mobile data on.", {"data": True}),
        (Phone(data=True), "Please make sure mobile data is turned on.", {"data": True}),
        (Phone(roaming=False), "Please enable data roaming.", {"roaming": True}),
        (Phone(roaming=True), "Please use `toggle_roaming()` to turn it ON.", {"roaming": True}),
        (Phone(saver=True), "Could you disable Data Saver?", {"saver": False}),
        (Phone(saver=False), "Is data saver on? If so, please turn it off.", {"saver": False}),
        (Phone(airplane=True), "Turn off airplane mode so that mobile data works.", {"data": True}),
        (Phone(data=True), "Please turn your mobile data off and back on.", {"data": True}),
    ],
)
def test_switch_has_the_requested_state_afterwards(
    phone: Phone, text: str, expected: dict[str, bool]
):
    dialogue = PhoneDialogue(phone)
    dialogue.say(text)
    assert expected.items() <= phone.state.items()


def test_switch_with_the_requested_state_is_not_changed():
    dialogue = PhoneDialogue(Phone(data=True))
    assert "already on" in dialogue.say("Please turn on mobile data.")
    assert dialogue.names == ["check_network_status"]


def test_toggle_without_a_target_state_is_done_once():
    dialogue = PhoneDialogue(Phone(data=True))
    dialogue.say("Please toggle mobile data.")
    assert dialogue.phone.state["data"] is False


def test_steps_of_a_list_are_done_in_order():
    dialogue = PhoneDialogue(Phone(airplane=True, data=False))
    dialogue.say("1. Turn off airplane mode\n2. Turn on mobile data\n3. Restart your phone")
    assert [name for name in dialogue.names if not name.startswith("check")] == [
        "toggle_airplane_mode",
        "toggle_data",
        "reboot_device",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Do not reboot your phone yet.",
        "I have enabled roaming on your line.",
        "Thank you for checking. Your SIM card is active and airplane mode is off.",
        "Would you like me to send you a payment request for the overdue bill?",
        "Can you tell me your phone number?",
        "Shall I reset your APN settings in our system?",
    ],
)
def test_statements_and_offers_are_no_instructions(text: str):
    dialogue = PhoneDialogue()
    dialogue.say(text)
    assert all(name == "check_status_bar" for name in dialogue.names)


def test_bill_is_paid_only_with_a_payment_request():
    asked = "I've sent you a payment request. Please check it and pay."
    paid, unpaid = PhoneDialogue(), PhoneDialogue(Phone(request=False))
    paid.say(asked)
    reply = unpaid.say(asked)
    assert paid.names == ["check_payment_request", "make_payment"]
    assert unpaid.names == ["check_payment_request"]
    assert "No payment request" in reply


def test_user_that_refuses_to_pay_makes_no_payment():
    scenario = StructuredInstructions(
        domain="telecom",
        reason_for_call="You lost your signal and want your phone service back.",
        task_instructions="You refuse to pay any bill during this contact, whatever the reason. "
        "You want to keep the plan you have. You refuse to buy extra data, whatever it costs.",
    )
    task = Task(id="t", domain="telecom", user_scenario=UserScenario(instructions=scenario))
    dialogue = PhoneDialogue(task=task)
    reply = dialogue.say("I have sent you a payment request. Please pay the bill.")
    assert "make_payment" not in dialogue.names
    assert "I refuse to pay any bill" in reply
    assert dialogue.say("Would you like to pay the overdue bill now?").startswith("No.")
    assert dialogue.say("Would you like to switch to a larger plan?").startswith("No.")
    assert dialogue.say("Shall I add 2 GB of data?").startswith("No.")


def test_user_accepts_more_data_but_no_other_plan():
    assert PhoneDialogue().say("Would you like to refuel 2 GB of data?").startswith("Yes")
    assert PhoneDialogue().say("Would you like to change your mobile data plan?").startswith("No.")


def test_questions_next_to_instructions_are_answered():
    reply = PhoneDialogue().say("Please check your status bar. Also, what is your phone number?")
    assert "No Signal" in reply
    assert "555-123-2002" in reply


def test_user_checks_the_resolved_problem_and_stops():
    dialogue = PhoneDialogue(Phone(fixed=True))
    assert STOP in dialogue.say("Great, is there anything else I can help you with?")
    assert dialogue.names == ["check_status_bar"]


def test_user_reports_an_unresolved_problem_twice_and_then_stops():
    dialogue = PhoneDialogue()
    first, second, third = (
        dialogue.say("Is there anything else I can help you with?") for _ in "123"
    )
    assert first.startswith(NOT_RESOLVED)
    assert second.startswith(NOT_RESOLVED)
    assert STOP not in first + second
    assert STOP in third


def test_question_whether_it_works_is_answered_with_a_check():
    dialogue = PhoneDialogue(Phone(fixed=True))
    assert "Excellent" in dialogue.say("Is it working now?")
    assert dialogue.names == ["check_status_bar"]


NOTIFIED = Task(
    id="t",
    domain="mock",
    user_scenario=UserScenario(
        instructions="You just received a notification about a task. First, use the "
        "check_notifications tool to see your notifications. You will see that task_1 has been "
        "assigned to you. Tell the agent you have completed this task and ask them to update the "
        "status to completed. After the agent confirms, use dismiss_notification to dismiss the "
        "notification 'notif_1'."
    ),
)


def test_tools_prescribed_by_the_scenario_are_called_at_start_and_end():
    dialogue = PhoneDialogue(task=NOTIFIED, tools="check_notifications dismiss_notification")
    calls = [made for message in dialogue.messages for made in message.tool_calls or ()]
    assert [made.name for made in calls] == ["check_notifications"]
    assert "completed" in dialogue.opening
    assert STOP in dialogue.say("The task has been marked as completed. Anything else?")
    assert [(made.name, made.arguments) for made in dialogue.calls] == [
        ("dismiss_notification", {"notification_id": "notif_1"})
    ]


def test_agent_can_ask_for_notifications():
    dialogue = PhoneDialogue(task=NOTIFIED, tools="check_notifications dismiss_notification")
    dialogue.say("Please check your notifications and then dismiss the notification 'notif_7'.")
    assert dialogue.names == ["check_notifications", "dismiss_notification"]
    assert dialogue.calls[1].arguments == {"notification_id": "notif_7"}


def test_new_user_continues_in_the_middle_of_instructions():
    dialogue = PhoneDialogue(Phone(airplane=True, data=False))
    dialogue.say("Please turn off airplane mode, turn on mobile data and reboot your phone.")
    for index, message in enumerate(dialogue.messages):
        if message.role == "user":
            fresh = ScriptedUser(SERVICE, schemas(TELECOM))
            assert asyncio.run(fresh.respond(dialogue.messages[:index])) == message
