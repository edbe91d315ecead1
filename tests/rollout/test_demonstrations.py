"""Contract of demonstrations: they solve the task, read before they write, and fit the context."""

import json
import re
from collections.abc import Iterator
from datetime import date
from functools import cache

import pytest
from pydantic import JsonValue

from grpo_cl.envs import load_domain
from grpo_cl.policy.chat.compact import CompactChat, tokenizer_texts, train_tokenizer
from grpo_cl.policy.learner.sft_data import tokenize_example
from grpo_cl.policy.model.tiny_model import CONTEXT, VOCABULARY
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import Scene, system_prompt
from grpo_cl.rollout.demonstration_errors import TRANSFER_CALL
from grpo_cl.rollout.demonstrations import Example, agent_turns, demonstrate
from grpo_cl.types import ToolCall, Trajectory

DOMAINS = ("airline", "retail", "telecom", "healthcare", "doordash", "memory")
DIFFICULTIES = (0.0, 0.2)
NUM_TASKS = 25
DATE = re.compile(r"\d{4}-\d\d-\d\d")
NAME = re.compile(r"[A-Z][a-z]+|\d+")
"""What a memory's content must not invent; sentences are rephrased, and dates computed."""


@cache
def demonstrations(name: str, difficulty: float) -> list[Trajectory]:
    domain = load_domain(name)
    tasks = domain.generate(seed=41, count=NUM_TASKS, difficulty=difficulty)
    return [each for each in (demonstrate(domain, task) for task in tasks) if each is not None]


def example(trajectory: Trajectory) -> Example:
    task, solo = trajectory.task, trajectory.solo
    system = system_prompt(load_domain(task.domain), task, solo=solo, compact=True)
    return Example(Scene(task, system, (), solo=solo, seed=0), agent_turns(trajectory))


@cache
def chat() -> CompactChat:
    """With a tokenizer of the size of a tiny policy's."""
    examples = [
        example(each)
        for name in DOMAINS
        for level in DIFFICULTIES
        for each in demonstrations(name, level)
    ]
    texts = (text for each in examples for text in tokenizer_texts(each.scene, each.messages))
    return CompactChat(train_tokenizer(texts, size=VOCABULARY))


def strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for item in value.values() for text in strings(item))
    elif isinstance(value, list):
        yield from (text for item in value for text in strings(item))
    elif isinstance(value, str):
        yield value


def copied_values(call: ToolCall) -> list[str]:
    """The texts of a call that name something; free texts have none."""
    if call.name == TRANSFER_CALL.name:
        return []
    if call.name.startswith("memory_"):
        content = DATE.sub("", str(call.arguments.get("content", "")))
        return [name for name in NAME.findall(content)[1:] if name != "Before"]
    if call.name == "calculate":
        return re.findall(r"\d+", str(call.arguments["expression"]))
    return list(strings(call.arguments))


def is_known(value: str, text: str) -> bool:
    """Whether a value is in a text; a date may be written in words."""
    forms = [value]
    if DATE.fullmatch(value):
        day = date.fromisoformat(value)
        forms.append(f"{day:%B} {day.day}")
    return any(re.search(rf"(?<!\w){re.escape(form)}(?!\w)", text) for form in forms)


def unknown_values(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    """The values of writes, and ids in reads, that neither ticket nor results have before."""
    domain, shown = load_domain(trajectory.task.domain), example(trajectory)
    environment = domain.environment(trajectory.task, solo=True)
    general = json.dumps(domain.tools(solo=True)) + domain.policy_text(solo=True)
    text = shown.scene.system
    for message in trajectory.messages:
        for call in message.tool_calls or ():
            is_write = environment.mutates(call) or not trajectory.solo
            for value in copied_values(call):
                is_id = len(re.findall(r"\d", value)) > 1 and not DATE.fullmatch(value)
                if (is_write or is_id) and not is_known(value, text + general):
                    yield call.name, value
        if message.role != "assistant":
            text += f"\n{message.content}"


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("name", DOMAINS)
def test_every_domain_has_demonstrations_that_earn_the_full_reward(
    name: str, difficulty: float
) -> None:
    found = demonstrations(name, difficulty)
    assert len(found) >= 0.6 * NUM_TASKS
    oracle = RewardOracle({name: load_domain(name)})
    assert {oracle.score(each).value for each in found} == {1.0}


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("name", DOMAINS)
def test_demonstrations_use_no_value_that_was_not_read_before(name: str, difficulty: float) -> None:
    guesses = [guess for each in demonstrations(name, difficulty) for guess in unknown_values(each)]
    assert guesses == []


@pytest.mark.parametrize("name", DOMAINS)
def test_demonstrations_fit_the_context_of_a_tiny_policy(name: str) -> None:
    found = [example(each) for level in DIFFICULTIES for each in demonstrations(name, level)]
    assert all(tokenize_example(chat(), each, context=CONTEXT) for each in found)


def test_a_demonstration_reads_the_records_that_the_ticket_names() -> None:
    cancelled = [
        each
        for each in demonstrations("airline", 0.0)
        if each.task.gold_actions[-1].name == "cancel_reservation"
    ]
    assert cancelled
    for each in cancelled:
        names = [call.name for call in each.tool_calls]
        assert names == ["get_user_details", "get_reservation_details", "cancel_reservation"]


def test_a_demonstration_leaves_out_reads_that_tell_nothing_new() -> None:
    gold = {a.name for each in demonstrations("retail", 0.0) for a in each.task.gold_actions}
    payments = [
        [call.name for call in each.tool_calls]
        for each in demonstrations("retail", 0.0)
        if each.task.gold_actions[-1].name == "modify_pending_order_address"
    ]
    assert "get_user_details" in gold
    assert payments
    assert all("get_user_details" not in names for names in payments)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_airline_calculates_bags_and_prices_before_it_writes_them(difficulty: float) -> None:
    num_prices = num_bags = num_refused = 0
    for each in demonstrations("airline", difficulty):
        contents = {message.id: message.content or "" for message in each.messages}
        expression, results, told = "", list[float](), None
        for call in each.tool_calls:
            if call.name == "calculate":
                expression = str(call.arguments["expression"])
                results.append(float(contents[call.id]))
            if call.name == "book_reservation":
                num_prices += 1
                insurance = 30 if call.arguments["insurance"] == "yes" else 0
                size = len(re.findall("first_name", json.dumps(call.arguments["passengers"])))
                assert expression.startswith(f"{insurance} * {size} + ")
                amounts = re.findall(r'"amount": (\d+)', json.dumps(call.arguments))
                assert float(amounts[-1]) == (float(told[1]) if told else results[-1])
                told = re.search(r"total price is (\d+)", contents[call.id])
                num_refused += told is not None
            if "nonfree_baggages" in call.arguments:
                num_bags += 1
                assert call.arguments["nonfree_baggages"] in [max(0, r) for r in results[-2:]]
        assert told is None  # the right price follows
    assert num_refused
    assert num_bags > num_prices > num_refused


def test_telecom_looks_the_account_up_before_it_changes_it() -> None:
    reads = ["get_customer_by_phone", "get_details_by_id"]
    changed = 0
    for each in demonstrations("telecom", 0.2):
        names = [call.name for call in each.tool_calls]
        if "resume_line" in names or "enable_roaming" in names or "refuel_data" in names:
            changed += 1
            first = next(
                i for i, call in enumerate(each.tool_calls) if "customer_id" in call.arguments
            )
            assert names[first - 2 : first] == reads
    assert changed
