"""Text replies of the scripted user."""

import pytest

from grpo_cl.types import Message
from grpo_cl.users.base import OUT_OF_SCOPE, STOP, TRANSFER, is_stop
from grpo_cl.users.scripted.ticket import ticket
from user_dialogues import CANCELLER, plain, structured, talk


def test_the_opening_is_the_reason_for_the_call():
    assert talk(CANCELLER) == ["I want to cancel reservation EHGLP3."]


def test_several_questions_in_one_message_are_all_answered():
    [reply] = talk(CANCELLER, "May I have your full name? And what is your user ID?")
    assert "I am Emma Kim." in reply
    assert "emma_kim_9957" in reply


def test_unknown_info_of_the_scenario_is_reported_as_unknown():
    [reply] = talk(CANCELLER, "What is your date of birth?")
    assert reply == "I do not remember my date of birth."


def test_information_missing_from_the_scenario_is_not_invented():
    [reply] = talk(CANCELLER, "Please provide your user id and your phone number.")
    assert "emma_kim_9957" in reply
    assert "do not know my phone number" in reply


def test_repeated_question_gets_the_answer_and_the_remaining_facts():
    first, second = talk(CANCELLER, "What is your user id?", "I need your user ID, please.")
    assert first == "My user id is emma_kim_9957."
    assert second.startswith(first)
    assert "I am Emma Kim." in second


@pytest.mark.parametrize(
    "ask",
    [
        "I will cancel EHGLP3. Do you confirm (yes/no)?",
        "Shall I proceed with the cancellation?",
        "Would you like me to go ahead with this?",
        "The refund is $200. Is that correct?",
        "Please confirm that you want to proceed.",
        "Are you okay with that?",
        "May I proceed?",
        "Please reply with 'yes' to continue.",
    ],
)
def test_consent_question_gets_a_yes(ask: str):
    assert talk(CANCELLER, ask)[0].startswith("Yes, please go ahead.")


def test_consent_adds_the_preferences_not_said_yet():
    first, second = talk(CANCELLER, "Do you confirm (yes/no)?", "Do you confirm the rest (yes/no)?")
    assert "I do not want any insurance." in first
    assert second == "Yes, please go ahead."


@pytest.mark.parametrize(
    "offer",
    [
        "Would you like me to transfer you to a human agent?",
        "Shall I transfer you to another agent?",
    ],
)
def test_offer_ruled_out_by_the_scenario_is_refused(offer: str):
    reply = talk(CANCELLER, offer)[0]
    assert reply.startswith("No.")
    assert not is_stop(Message(role="user", content=reply))


def test_conditional_line_is_said_once_when_its_condition_is_met():
    denial = "Unfortunately, cancellation is not possible for this reservation."
    first, second = talk(CANCELLER, denial, denial)
    assert first == "I was sick."
    assert "I was sick" not in second


def test_reactions_to_refusals_follow_the_order_of_the_scenario():
    task = structured(
        "You wonder if you can split the payment. If not, you want to cancel one item. "
        "If that is not possible, you want to cancel the order.",
    )
    replies = talk(task, "We can't split payments.", "Sorry, that is not possible either.")
    assert replies == ["I want to cancel one item.", "I want to cancel the order."]


def test_change_of_mind_replaces_consent_once():
    task = structured(
        "You want to exchange the lamp and the bottle. "
        "If the agent asks for confirmation, only exchange the lamp.",
    )
    first, second = talk(task, "Do you confirm (yes/no)?", "Only the lamp. Do you confirm?")
    assert first == "Please only exchange the lamp."
    assert second == "Yes, please go ahead."


def test_line_conditional_on_a_question_answers_that_question():
    task = structured("You want to cancel it. If the agent asks for the reason, say it was a gift.")
    assert talk(task, "What is the reason for the cancellation?") == ["It was a gift."]


def test_open_choice_is_answered_with_the_preferences():
    task = structured("You want to fly.", rules="You prefer direct flights. You want economy.")
    [reply] = talk(task, "I found two options. Which one would you prefer?")
    assert "I prefer direct flights." in reply
    assert "I want economy." in reply


def test_choice_without_a_preference_is_left_to_the_agent():
    [reply] = talk(CANCELLER, "Shall I go on? And which payment method should I use?")
    assert reply.startswith("Yes, please go ahead.")
    assert "no preference" in reply
    assert "do not know" not in reply


def test_further_requests_are_made_before_the_stop():
    question = "All done! Is there anything else I can help you with?"
    first, second = talk(CANCELLER, question, question)
    assert "I also want to add 1 checked bag." in first
    assert STOP in second


@pytest.mark.parametrize(
    "farewell",
    [
        "You're welcome! Have a great day!",
        "Everything is done. Goodbye!",
        "Is there anything else I can assist you with?",
        "Your reservation has been cancelled. Let me know if you need any further assistance.",
    ],
)
def test_user_without_further_requests_stops(farewell: str):
    reply = talk(structured("You want to cancel your flight."), farewell)[0]
    assert is_stop(Message(role="user", content=reply))
    assert STOP in reply


@pytest.mark.parametrize(
    "text",
    [
        "Thank you for contacting us. Let me look into this for you.",
        "One moment, please.",
        "I've located your profile. Shall I cancel it?",
        "Unfortunately I cannot cancel it.",
        "I can transfer you to a human agent if you prefer.",
    ],
)
def test_unfinished_conversation_is_not_ended(text: str):
    assert "###" not in talk(CANCELLER, text)[0]


@pytest.mark.parametrize(
    "text",
    [
        "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.",
        "I am transferring you to a human agent now.",
        "You have been transferred to a specialist.",
        "I will now transfer you to a human agent.",
    ],
)
def test_announced_transfer_is_answered_with_the_transfer_token(text: str):
    assert TRANSFER in talk(CANCELLER, text)[0]


def test_agent_that_repeats_itself_ends_the_conversation():
    replies = talk(CANCELLER, *["What is your mother's maiden name?"] * 6)
    assert any(OUT_OF_SCOPE in reply for reply in replies)
    assert all("###" not in reply for reply in replies[:2])


def test_three_unanswerable_questions_in_a_row_end_the_conversation():
    asks = ("What is your phone number?", "What is your zip code?", "What is your email?")
    replies = talk(CANCELLER, *asks)
    assert "###" not in replies[0] + replies[1]
    assert OUT_OF_SCOPE in replies[2]


def test_secret_information_is_never_said():
    task = structured(
        "You want to exchange the hose. The right item id is 5206946487 (do not share this with "
        "the agent)."
    )
    asks = ("What is the item id?", "Which item id?", "Do you confirm?", "Anything else?")
    assert "5206946487" not in " ".join(talk(task) + talk(task, *asks))
    assert "5206946487" not in ticket(task)


def test_scenario_without_sections_is_opened_with_its_request():
    task = plain("You want to delete all your current tasks.")
    assert talk(task) == ["I want to delete all my current tasks."]
    assert STOP in talk(task, "Done. Anything else?")[0]
