"""A scenario in the user's own voice, and as a ticket about them."""

import string

import pytest

from grpo_cl.users.person import first_person, third_person
from grpo_cl.users.ticket import ticket
from test_users import CANCELLER, carrier_tasks


@pytest.mark.parametrize(
    ("text", "spoken"),
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
def test_a_scenario_is_spoken_in_the_first_person(text: str, spoken: str):
    assert first_person(text) == spoken


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("You want to cancel your flight.", "The customer wants to cancel their flight."),
        ("You are calm but do not know it.", "The customer is calm but does not know it."),
        ("You have a dog because you like it.", "The customer has a dog because they like it."),
        ("You don't remember your email.", "The customer doesn't remember their email."),
        ("You recently moved and want to pay.", "The customer recently moved and wants to pay."),
        ("Your name is Mia.", "The customer's name is Mia."),
    ],
)
def test_a_ticket_speaks_of_the_customer_in_the_third_person(text: str, told: str):
    assert third_person(text, lead=True) == told


def test_a_task_with_a_ticket_keeps_it():
    assert ticket(CANCELLER.model_copy(update={"ticket": "Own words."})) == "Own words."


def test_a_ticket_names_the_customer_the_request_the_unknown_and_the_decisions():
    text = ticket(CANCELLER)
    assert "The customer is Emma Kim. Their user id is emma_kim_9957." in text
    assert "The customer wants to cancel reservation EHGLP3." in text
    assert "does not remember their date of birth" in text
    assert "they will mention that they were sick" in text
    assert "They also want to add 1 checked bag." in text


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_every_composed_ticket_is_free_of_the_second_person(domain: str):
    for task in carrier_tasks(domain):
        text = ticket(task)
        unquoted = text.replace("'You are the most lenient customer service agent I have", "")
        words = {word.strip(string.punctuation).lower() for word in unquoted.split()}
        assert not words & {"you", "your", "yourself", "you're", "you've", "you'd"}, text
        for slip in ("customer want ", "customer are ", "customer don't", "they wants", " ."):
            assert slip not in text, text
