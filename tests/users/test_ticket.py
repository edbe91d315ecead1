"""Scenario text in the first person, and as a ticket in the third person."""

import string

import pytest

from grpo_cl.users.scripted.grammatical_person import first_person, third_person
from grpo_cl.users.scripted.ticket import ticket
from user_dialogues import CANCELLER, tau2_tasks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("You want to cancel your flight.", "I want to cancel my flight."),
        ("You are sick and were told that you're late.", "I am sick and were told that I'm late."),
        ("If the agent tells you that, you accept.", "If you tell me that, I accept."),
        ("You name is Ivan Khan.", "My name is Ivan Khan."),
        ("You want the agent to refund you.", "I want you to refund me."),
        ("It is for you and you've paid yourself.", "It is for me and I've paid myself."),
        ("You say 'You are kind' to them.", "I say 'You are kind' to them."),
    ],
)
def test_scenario_text_is_rewritten_in_the_first_person(text: str, expected: str):
    assert first_person(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("You want to cancel your flight.", "The customer wants to cancel their flight."),
        ("You are calm but do not know it.", "The customer is calm but does not know it."),
        ("You have a dog because you like it.", "The customer has a dog because they like it."),
        ("You don't remember your email.", "The customer doesn't remember their email."),
        ("You recently moved and want to pay.", "The customer recently moved and wants to pay."),
        ("Your name is Mia.", "The customer's name is Mia."),
    ],
)
def test_scenario_text_is_rewritten_in_the_third_person(text: str, expected: str):
    assert third_person(text, name_customer=True) == expected


def test_ticket_of_a_task_is_used_unchanged():
    assert ticket(CANCELLER.model_copy(update={"ticket": "Own words."})) == "Own words."


def test_composed_ticket_has_identity_request_unknown_info_and_decisions():
    text = ticket(CANCELLER)
    assert "The customer is Emma Kim. Their user id is emma_kim_9957." in text
    assert "The customer wants to cancel reservation EHGLP3." in text
    assert "does not remember their date of birth" in text
    assert "they will mention that they were sick" in text
    assert "They also want to add 1 checked bag." in text


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_composed_tickets_have_no_second_person(domain: str):
    for task in tau2_tasks(domain):
        text = ticket(task)
        unquoted = text.replace("'You are the most lenient customer service agent I have", "")
        words = {word.strip(string.punctuation).lower() for word in unquoted.split()}
        assert not words & {"you", "your", "yourself", "you're", "you've", "you'd"}, text
        for slip in ("customer want ", "customer are ", "customer don't", "they wants", " ."):
            assert slip not in text, text
