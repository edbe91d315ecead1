"""Plain and varied wording tell the same generated tasks."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

from grpo_cl.config import GRPOConfig, RolloutConfig
from grpo_cl.envs import Domain, domain_for, load_domain
from grpo_cl.envs.generation import prose
from grpo_cl.envs.generation.requests import Case, Question, Request
from grpo_cl.envs.generation.tasks import TaskSpec
from grpo_cl.envs.generation.varied_texts import (
    Background,
    TextFacts,
    phrase_request,
    write_varied_texts,
)
from grpo_cl.envs.generation.wording import TaskTexts, Wording
from grpo_cl.envs.tau2 import GeneratedDomain, Tau2Domain
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.types import Message, StructuredInstructions, Task
from grpo_cl.users.scripted.user import ScriptedUser

NAMES = ("airline", "retail", "telecom", "healthcare", "doordash")
TEXTS = {"user_scenario", "ticket"}
COUNTED_BY_THE_AGENT = {"total_baggages", "nonfree_baggages"}
"""The customer may say how many bags are added or how many there will be."""
SEED, COUNT = 17, 40

GetDomain = Callable[[str], Tau2Domain]


@pytest.fixture(scope="module")
def varied() -> GetDomain:
    config = GRPOConfig.model_validate(
        {"model_name_or_path": "tiny", "tasks": {"wording": "varied"}}
    )
    loaded: dict[str, Any] = {}

    def get(name: str) -> Tau2Domain:
        if name not in loaded:
            loaded[name] = domain_for(config, name)
        return loaded[name]

    return get


@pytest.fixture(scope="module")
def pairs(domain: GetDomain, varied: GetDomain) -> Callable[[str], Sequence[tuple[Task, Task]]]:
    drawn: dict[str, Sequence[tuple[Task, Task]]] = {}

    def get(name: str) -> Sequence[tuple[Task, Task]]:
        if name not in drawn:
            plain = domain(name).generate(seed=SEED, count=COUNT)
            told = varied(name).generate(seed=SEED, count=COUNT)
            drawn[name] = list(zip(plain, told, strict=True))
        return drawn[name]

    return get


GetPairs = Callable[[str], Sequence[tuple[Task, Task]]]


def instructions(task: Task) -> str:
    scenario = task.user_scenario.instructions
    assert isinstance(scenario, StructuredInstructions)
    parts = (
        scenario.reason_for_call,
        scenario.known_info,
        scenario.unknown_info,
        scenario.task_instructions,
    )
    return "\n".join(part for part in parts if part)


def leaves(value: Any) -> Iterator[str | float]:
    if isinstance(value, dict):
        for entry in value.values():
            yield from leaves(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from leaves(entry)
    elif not isinstance(value, bool) and value not in (None, ""):
        yield value if isinstance(value, str) else float(value)


def needed_values(task: Task) -> set[str | float]:
    """Numbers, ids, names, dates and cabins in the gold actions and the initial state."""
    start = task.initial_state
    calls = [
        {key: value for key, value in action.arguments.items() if key not in COUNTED_BY_THE_AGENT}
        if action.name == "update_reservation_baggages"
        else action.arguments
        for action in task.gold_actions
    ]
    calls += [call.arguments for call in (start and start.initialization_actions) or ()]
    return {
        value
        for value in leaves(calls)
        if not isinstance(value, str) or re.search(r"[A-Z0-9@]|economy|business", value)
    }


def states(text: str, value: str | float) -> bool:
    if not isinstance(value, str):
        return value in {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}
    words = re.escape(value.replace("_", " ").lower())
    return bool(re.search(rf"(?<!\w){words}(?!\w)", text.replace("_", " ").lower()))


@pytest.mark.parametrize("name", NAMES)
def test_both_wordings_have_the_same_tasks_except_for_their_texts(
    pairs: GetPairs, name: str
) -> None:
    for plain, told in pairs(name):
        assert plain.model_dump(exclude=TEXTS) == told.model_dump(exclude=TEXTS)
        assert plain.ticket != told.ticket
        assert instructions(plain) != instructions(told)


@pytest.mark.parametrize("name", NAMES)
def test_varied_texts_state_every_needed_value_that_plain_texts_state(
    pairs: GetPairs, name: str
) -> None:
    for plain, told in pairs(name):
        for value in needed_values(plain):
            if states(plain.ticket or "", value):
                assert states(told.ticket or "", value), (plain.id, value, told.ticket)
            if states(instructions(plain), value):
                assert states(instructions(told), value), (plain.id, value, instructions(told))


@pytest.mark.parametrize("name", NAMES)
def test_varied_texts_are_complete_sentences(pairs: GetPairs, name: str) -> None:
    for _, told in pairs(name):
        for text in (told.ticket or "", *instructions(told).split("\n")):
            problem = re.search(
                r"[{}]|\$[a-z]|None\b|,,|,;|\.\.|  | [.,;]|\bI are\b|\byous\b", text
            )
            assert problem is None, (told.id, problem, text)
            assert text[0].isupper() or text[0] in "#\"'", (told.id, text)


@pytest.mark.parametrize("name", NAMES)
def test_varied_tasks_depend_only_on_the_seed(
    varied: GetDomain, pairs: GetPairs, name: str
) -> None:
    drawn = [told for _, told in pairs(name)]
    assert varied(name).generate(seed=SEED, count=10) == drawn[:10]
    assert varied(name).task(drawn[7].id) == drawn[7]
    assert varied(name).generate(seed=SEED + 1, count=10) != drawn[:10]


def drawn_texts(*questions: Question) -> Iterator[TaskTexts]:
    """Texts of a customer who asks each of the questions in a request of its own."""
    requests = [
        Request("read", Wording("move a visit", "move a visit"), [], questions=[one])
        for one in questions
    ]

    def draw(rng: Random) -> TextFacts:
        clauses = [
            phrase_request(request, one, {}, rng)
            for request, one in zip(requests, questions, strict=True)
        ]
        return TextFacts("Ada Holm", "email", "ada@x.org", clauses, (), (), level=0.0)

    nothing = Background(("{You} called before",), ("It rains",))
    return (write_varied_texts(draw, nothing, Random(seed)) for seed in range(300))


@pytest.mark.parametrize(
    "question",
    [
        Question("the exact phone number of the clinic", "503-555-4385"),
        Question("which of {your} allergens is in it, if any", "peanut"),
        Question("by how many dollars that misses the minimum, if it does", "4.25"),
    ],
)
def test_only_amounts_are_asked_for_as_amounts(question: Question) -> None:
    for texts in drawn_texts(question):
        told = f"{texts.reason_for_call} {texts.ticket}"
        asked = re.escape(question.subject[:8])
        problem = re.search(rf"how much it is|math|about the money|for {asked}", told)
        assert problem is None, (problem, told)


def test_an_amount_is_asked_for_in_all_ways() -> None:
    told = " ".join(texts.reason_for_call for texts in drawn_texts(Question("the exact fee", "50")))
    for template in prose.QUESTIONS:
        assert (
            template.format(subject="the exact fee", You="", s="", are="", me="you").strip() in told
        )


def test_no_text_says_that_there_is_one_request_or_that_any_charge_is_accepted() -> None:
    """Both are wrong for some tasks: a customer may want something only if it costs nothing."""
    fee = Question("the exact fee", "50")
    for texts in drawn_texts(fee, fee):
        told = f"{texts.reason_for_call} {texts.task_instructions} {texts.ticket}"
        assert not re.search(r"one thing:|charges", told), told


@pytest.mark.parametrize("name", ["airline", "healthcare", "doordash"])
def test_what_the_customer_forgot_does_not_deny_an_id_that_is_named(
    pairs: GetPairs, name: str
) -> None:
    named = re.compile(r"\b(?:reservation (?:id )?[A-Z0-9]{6}|appointment AP\d+|order number D\d+)")
    denied = re.compile(
        r"(your|the) (reservation|appointment|order) (ids?|numbers?)\b|the ids of your"
    )
    for _, told in pairs(name):
        scenario = told.user_scenario.instructions
        assert isinstance(scenario, StructuredInstructions)
        if named.search(scenario.reason_for_call):
            assert not denied.search(scenario.unknown_info or ""), told.id


def test_a_trip_that_has_begun_is_not_called_upcoming(pairs: GetPairs) -> None:
    """The policy's day is May 15."""
    for _, told in pairs("airline"):
        problem = re.search(
            r"upcoming [\w-]+(?: trip)? from .{3,50}? on (May |2024-05-)(0?[1-9]|1[0-5])\b",
            instructions(told),
        )
        assert problem is None, (told.id, problem)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_varied_texts_are_distinct(varied: GetDomain, name: str) -> None:
    tasks = varied(name).generate(seed=5, count=300, difficulty=0.0 if name != "telecom" else None)
    assert len({task.ticket for task in tasks}) >= 285
    assert len({instructions(task) for task in tasks}) >= 285


@pytest.mark.parametrize("name", ["retail", "healthcare", "doordash"])
def test_nearly_all_statements_of_requests_have_varied_phrasings(
    domain: GetDomain, name: str
) -> None:
    generator = import_module(f"grpo_cl.envs.{name}.generator.generator")
    scenario = import_module(f"grpo_cl.envs.{name}.generator.scenario")
    has_phrasings: list[bool] = []

    def record(case: Case, requests: Sequence[Request]) -> TaskSpec:
        statements = [one for request in requests for one in request.wording.statements]
        has_phrasings.extend(one.templates[0] in scenario.PHRASINGS for one in statements)
        return scenario.write_spec(case, requests)

    make = generator.task_maker(domain(name).database.model, "train", write=record)
    for seed in range(300):
        make(Random(seed), seed / 300)
    assert sum(has_phrasings) >= 0.95 * len(has_phrasings)


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "doordash"])
def test_gold_actions_solve_varied_tasks_with_a_scripted_user(
    varied: GetDomain, pairs: GetPairs, name: str
) -> None:
    domains = {name: varied(name)}
    actor = ScriptedActor(
        lambda task: [action.call for action in task.gold_actions],
        closing=lambda task: " ".join(task.communicate_info),
    )
    tasks = [told for _, told in pairs(name)]
    trajectories = run_episodes(actor, domains, tasks, RolloutConfig(user="scripted"))
    oracle = RewardOracle(domains)
    assert [oracle.score(trajectory).value for trajectory in trajectories] == [1.0] * COUNT


def test_the_scripted_user_pays_bills_in_the_same_tasks_of_both_wordings(
    domain: GetDomain, pairs: GetPairs
) -> None:
    ask = Message(role="assistant", content="Please accept the payment request.")
    answers: list[tuple[bool, bool]] = []
    for tasks in pairs("telecom"):
        calls = []
        for task in tasks:
            user = ScriptedUser(task, domain("telecom").user_tools)
            hello = Message(role="assistant", content="Hi! How can I help you today?")
            opening = asyncio.run(user.respond([hello]))
            reply = asyncio.run(user.respond([hello, opening, ask]))
            calls.append(reply.tool_calls is not None)
        answers.append((calls[0], calls[1]))
    assert all(plain == told for plain, told in answers)
    assert {plain for plain, _ in answers} == {True, False}


@pytest.mark.parametrize("name", ["healthcare", "doordash"])
def test_own_tasks_of_a_generated_domain_stay_plain(
    domain: GetDomain, varied: GetDomain, name: str
) -> None:
    assert varied(name).release == domain(name).release
    assert varied(name).tasks("test")[0] == domain(name).tasks("test")[0]


def test_a_domain_with_one_wording_generates_its_tasks_in_a_varied_run(varied: GetDomain) -> None:
    class OwnDomain(GeneratedDomain):
        name = folder = "own"
        agent_side = varied("retail").agent_side
        task_seed = 1

        def task_maker(self, split: str) -> Any:
            return varied("retail").task_maker(split)

    config = GRPOConfig.model_validate(
        {"model_name_or_path": "tiny", "tasks": {"wording": "varied"}}
    )
    own = OwnDomain()
    assert own.configured(config).generate(seed=1, count=3) == own.generate(seed=1, count=3)


def test_a_domain_that_only_implements_generate_is_left_as_it_is() -> None:
    config = GRPOConfig.model_validate(
        {"model_name_or_path": "tiny", "tasks": {"wording": "varied"}}
    )
    toy: Domain = load_domain("toy_left")
    assert toy.configured(config) is toy


def test_an_unknown_wording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"plain.*varied"):
        GRPOConfig.model_validate({"tasks": {"wording": "florid"}})
