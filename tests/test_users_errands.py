"""How a scripted user carries out what an agent asks them to do."""

import asyncio

import pytest

from grpo_cl.types import StructuredInstructions, Task, UserScenario
from grpo_cl.users.base import STOP
from grpo_cl.users.scripted import NOT_RESOLVED, ScriptedUser
from test_users_phone import SERVICE, TELECOM, Call, Phone, schemas


def test_results_are_reported_to_the_agent():
    call = Call()
    assert "No Signal" in call.say("What does your status bar show?")


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
def test_a_switch_ends_up_where_the_agent_wants_it(
    phone: Phone, text: str, expected: dict[str, bool]
):
    call = Call(phone)
    call.say(text)
    assert expected.items() <= phone.state.items()


def test_a_switch_that_is_right_already_is_not_touched():
    call = Call(Phone(data=True))
    assert "already on" in call.say("Please turn on mobile data.")
    assert call.names == ["check_network_status"]


def test_a_toggle_without_direction_is_done_once():
    call = Call(Phone(data=True))
    call.say("Please toggle mobile data.")
    assert call.phone.state["data"] is False


def test_steps_are_done_in_the_order_of_a_list():
    call = Call(Phone(airplane=True, data=False))
    call.say("1. Turn off airplane mode\n2. Turn on mobile data\n3. Restart your phone")
    assert [name for name in call.names if not name.startswith("check")] == [
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
def test_what_is_not_asked_of_the_user_is_not_done(text: str):
    call = Call()
    call.say(text)
    assert all(name == "check_status_bar" for name in call.names)


def test_a_bill_is_paid_only_if_a_request_is_there():
    asked = "I've sent you a payment request. Please check it and pay."
    paid, unpaid = Call(), Call(Phone(request=False))
    paid.say(asked)
    reply = unpaid.say(asked)
    assert paid.names == ["check_payment_request", "make_payment"]
    assert unpaid.names == ["check_payment_request"]
    assert "No payment request" in reply


def test_a_user_who_refuses_to_pay_does_not_pay():
    scenario = StructuredInstructions(
        domain="telecom",
        reason_for_call="You lost your signal and want your phone service back.",
        task_instructions="You refuse to pay any bill during this contact, whatever the reason. "
        "You want to keep the plan you have. You refuse to buy extra data, whatever it costs.",
    )
    task = Task(id="t", domain="telecom", user_scenario=UserScenario(instructions=scenario))
    call = Call(task=task)
    reply = call.say("I have sent you a payment request. Please pay the bill.")
    assert "make_payment" not in call.names
    assert "I refuse to pay any bill" in reply
    assert call.say("Would you like to pay the overdue bill now?").startswith("No.")
    assert call.say("Would you like to switch to a larger plan?").startswith("No.")
    assert call.say("Shall I add 2 GB of data?").startswith("No.")


def test_the_user_agrees_to_more_data_but_not_to_another_plan():
    assert Call().say("Would you like to refuel 2 GB of data?").startswith("Yes")
    assert Call().say("Would you like to change your mobile data plan?").startswith("No.")


def test_questions_beside_an_errand_are_answered_too():
    reply = Call().say("Please check your status bar. Also, what is your phone number?")
    assert "No Signal" in reply
    assert "555-123-2002" in reply


def test_a_user_whose_trouble_is_over_checks_it_and_stops():
    call = Call(Phone(fixed=True))
    assert STOP in call.say("Great, is there anything else I can help you with?")
    assert call.names == ["check_status_bar"]


def test_a_user_whose_trouble_goes_on_says_so_twice_and_then_stops():
    call = Call()
    first, second, third = (call.say("Is there anything else I can help you with?") for _ in "123")
    assert first.startswith(NOT_RESOLVED)
    assert second.startswith(NOT_RESOLVED)
    assert STOP not in first + second
    assert STOP in third


def test_whether_it_works_now_is_looked_up():
    call = Call(Phone(fixed=True))
    assert "Excellent" in call.say("Is it working now?")
    assert call.names == ["check_status_bar"]


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


def test_tools_that_the_scenario_prescribes_are_used_at_their_time():
    call = Call(task=NOTIFIED, tools="check_notifications dismiss_notification")
    made = [made for message in call.messages for made in message.tool_calls or ()]
    assert [one.name for one in made] == ["check_notifications"]
    assert "completed" in call.opening
    assert STOP in call.say("The task has been marked as completed. Anything else?")
    assert [(one.name, one.arguments) for one in call.calls] == [
        ("dismiss_notification", {"notification_id": "notif_1"})
    ]


def test_an_agent_may_ask_for_notifications():
    call = Call(task=NOTIFIED, tools="check_notifications dismiss_notification")
    call.say("Please check your notifications and then dismiss the notification 'notif_7'.")
    assert call.names == ["check_notifications", "dismiss_notification"]
    assert call.calls[1].arguments == {"notification_id": "notif_7"}


def test_a_fresh_user_continues_in_the_middle_of_an_errand():
    call = Call(Phone(airplane=True, data=False))
    call.say("Please turn off airplane mode, turn on mobile data and reboot your phone.")
    for index, message in enumerate(call.messages):
        if message.role == "user":
            fresh = ScriptedUser(SERVICE, schemas(TELECOM))
            assert asyncio.run(fresh.respond(call.messages[:index])) == message
