"""Users played by models, against a real server on loopback."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from chat_parts import THOUGHT, Customers
from chat_server import Answer, Body, ChatServer, Fault, calling, form_of
from grpo_cl.advantages import known_rewards
from grpo_cl.config import RolloutConfig
from grpo_cl.domains import DOMAINS, Domain
from grpo_cl.errors import ConfigError, ModelCallError
from grpo_cl.models import Manner, Models
from grpo_cl.rewards import RewardOracle
from grpo_cl.roles import ModelsConfig, UserConfig
from grpo_cl.rollout import GREETING, ScriptedActor, run_episodes
from grpo_cl.types import Message, Task, Termination, Trajectory, TrajectoryGroup
from grpo_cl.users import STRATEGIES, ModelUsers, make_user
from grpo_cl.users.base import OUT_OF_SCOPE, STOP, TRANSFER, User
from grpo_cl.users.guards import find_fault
from grpo_cl.users.guidelines import system_text

GetDomain = Callable[[str], Domain]
MODEL = "openai-api/loopback/customer"
GOLD = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
QUICK = ModelsConfig(cache_dir=None, retries=3, backoff_s=0.001, timeout_s=30)
FAULTS: tuple[Fault | None, ...] = ("429", None, "500", None, "garbage", "truncated")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


def users(models: Models, server: ChatServer, config: UserConfig | None = None) -> ModelUsers:
    endpoint = models.open(MODEL, Manner(0.0, 256), base_url=server.url)
    return ModelUsers(config or UserConfig(model=MODEL), lambda task: endpoint)


def fourth_task(domain: Domain) -> Task:
    return domain.tasks("test" if "test" in domain.splits else "base")[3]


def play(domain: Domain, task: Task, config: RolloutConfig, models: ModelUsers | None = None):
    return run_episodes(GOLD, {domain.name: domain}, [task], config, models=models)[0]


def said(trajectory: Trajectory) -> list[tuple[str, str | None, Sequence[str]]]:
    return [
        (m.role, m.content, [f"{c.name}{c.arguments}" for c in m.tool_calls or ()])
        for m in trajectory.messages
    ]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("name", sorted({*DOMAINS} - {"memory"}))  # it has no user to play
def test_an_endpoint_that_fails_now_and_then_plays_every_domain(
    domain: GetDomain, name: str, strategy: str
):
    world = domain(name)
    task = fourth_task(world)
    scripted = play(world, task, RolloutConfig(user="scripted"))
    with ChatServer(Customers(world, [task]), FAULTS) as server, Models(QUICK) as models:
        played = play(world, task, RolloutConfig(user=strategy), users(models, server))
    assert played.termination is Termination.USER_STOP
    assert said(played) == said(scripted)
    oracle = RewardOracle({name: world})
    assert oracle.score(played).value == oracle.score(scripted).value
    met = [fault for fault in FAULTS[: len(server.requests)] if fault]
    assert sum(call.retries for call in played.model_calls) == len(met) >= 2
    assert all(call.reply and call.input_tokens for call in played.model_calls)


def test_all_three_marks_and_the_scenario_are_in_what_the_model_reads(domain: GetDomain):
    telecom, task = domain("telecom"), fourth_task(domain("telecom"))
    text = system_text(task, telecom.user_tools)
    assert all(mark in text for mark in (STOP, TRANSFER, OUT_OF_SCOPE))
    assert "tools that act on it" in text
    assert "tools that act on it" not in system_text(task, ())
    instructions = task.user_scenario.instructions
    assert not isinstance(instructions, str)
    assert instructions.reason_for_call in text


def respond(
    answer: Answer, strategy: str, heard: str, *, checks: int = 2, guard_retries: int = 3
) -> tuple[Message, User]:
    """What a user of the toy task says to the agent's words."""
    task = Task.model_validate(
        {"id": "t", "domain": "mock", "user_scenario": {"instructions": "You want a refund."}}
    )
    config = UserConfig(model=MODEL, checks=checks, guard_retries=guard_retries)
    with ChatServer(answer) as server, Models(QUICK) as models:
        user = make_user(strategy, task, (), models=users(models, server, config), seed=1)
        assert user is not None
        messages = [Message(role="assistant", content=heard)]
        return asyncio.run(user.respond(messages)), user


def one_after_another(*texts: str) -> Answer:
    replies = iter(texts)
    return lambda body: next(replies)


def test_a_thought_is_hidden_from_the_agent():
    message, user = respond(
        one_after_another(f"<thought>{THOUGHT}</thought> I want a refund."), "react", GREETING
    )
    assert message == Message(role="user", content="I want a refund.")
    assert THOUGHT in user.model_calls[0].reply


def test_a_thought_without_an_end_is_not_leaked():
    message, user = respond(
        one_after_another(f"<thought>{THOUGHT}", "<thought>ok</thought>Refund, please."),
        "react",
        GREETING,
    )
    assert message.content == "Refund, please."
    assert [call.rejected for call in user.model_calls] == ["empty", None]


def test_a_draft_that_does_not_fit_is_written_again_with_the_reason():
    asked: list[str] = []
    checks = iter(['{"fits": false, "problem": "It names a price."}', '{"fits": true}'])

    def answer(body: Body) -> str:
        if form_of(body) == "check":
            return next(checks)
        asked.append(str(body["messages"][-1]["content"]))
        return "I want my 20 back." if len(asked) == 1 else "I want a refund."

    message, user = respond(answer, "verify", GREETING)
    assert message.content == "I want a refund."
    assert "It names a price." in asked[1]
    purposes = [call.purpose for call in user.model_calls]
    assert purposes == ["reply", "check", "rewrite", "check"]


def test_checking_ends_after_as_many_rewrites_as_configured():
    def answer(body: Body) -> str:
        return '{"fits": false, "problem": "No."}' if form_of(body) else "I want a refund."

    _, user = respond(answer, "verify", GREETING, checks=3)
    assert [call.purpose for call in user.model_calls].count("rewrite") == 3


def test_a_checker_that_cannot_be_read_twice_is_an_infrastructure_failure():
    with pytest.raises(ModelCallError, match="no readable check"):
        respond(lambda body: "Fine!" if form_of(body) else "Refund!", "verify", GREETING)


def test_a_critique_leads_to_another_message():
    message, user = respond(
        one_after_another("Hello, I am John.", "Say why you are here.", "I want a refund."),
        "reflection",
        GREETING,
    )
    assert message.content == "I want a refund."
    assert [call.purpose for call in user.model_calls] == ["reply", "critique", "rewrite"]


@pytest.mark.parametrize(
    ("heard", "bad", "reason"),
    [
        ("Shall I go ahead with the refund?", f"Yes, please. {STOP}", "stop_at_confirmation"),
        ("Do you confirm? (yes/no)", f"yes\n{STOP}", "stop_at_confirmation"),
        (GREETING, "", "empty"),
        (GREETING, "  \n", "empty"),
        ("Your order is on its way.", "How can I help you today?", "agent_role"),
        (
            "Your order number is on the invoice.",
            "Your order number is on the invoice.",
            "agent_role",
        ),
    ],
)
@pytest.mark.parametrize("strategy", ["llm", "react"])
def test_a_reply_no_customer_would_give_is_asked_for_again_and_counted(
    heard: str, bad: str, reason: str, strategy: str
):
    asked: list[str] = []

    def answer(body: Body) -> str:
        asked.append(str(body["messages"][-1]["content"]))
        return bad if len(asked) == 1 else "Yes, do it."

    message, user = respond(answer, strategy, heard)
    assert message.content == "Yes, do it."
    assert [call.rejected for call in user.model_calls] == [reason, None]
    assert "not from the agent" in asked[1]


@pytest.mark.parametrize(
    ("heard", "reply"),
    [
        ("Is there anything else I can help you with?", f"No, that is all. {STOP}"),
        ("Your refund has been issued.", f"Great. {STOP}"),
        ("Shall I cancel it?", f"No, leave it then. {STOP}"),
        ("I am transferring you to a person.", TRANSFER),
        ("What is your name?", f"I do not know. {OUT_OF_SCOPE}"),
    ],
)
def test_an_end_at_its_time_is_let_through(heard: str, reply: str):
    message, user = respond(one_after_another(reply), "llm", heard)
    assert message.content == reply
    assert [call.rejected for call in user.model_calls] == [None]


def test_a_model_that_insists_on_stopping_has_its_yes_taken_without_the_stop():
    message, user = respond(
        lambda body: f"Yes. {STOP}", "llm", "Shall I go ahead?", guard_retries=2
    )
    assert message.content == "Yes."
    assert [call.rejected for call in user.model_calls] == ["stop_at_confirmation"] * 3


def test_a_model_that_never_speaks_as_a_customer_is_an_infrastructure_failure():
    with pytest.raises(ModelCallError, match="3 replies that no user would give"):
        respond(lambda body: "", "llm", GREETING, guard_retries=2)


def test_a_call_of_a_tool_is_never_a_fault():
    call = Message.model_validate({"role": "user", "tool_calls": [{"name": "look"}]})
    assert find_fault(call, [Message(role="assistant", content="Shall I?")]) is None


def test_text_beside_a_call_is_not_said(domain: GetDomain):
    telecom = domain("telecom")

    def answer(body: Body) -> dict[str, object]:
        return {"content": "Let me look.", **calling("check_status_bar", {})}

    with ChatServer(answer) as server, Models(QUICK) as models:
        made = users(models, server)
        user = make_user("llm", fourth_task(telecom), telecom.user_tools, models=made)
        assert user is not None
        message = asyncio.run(user.respond([Message(role="assistant", content="What is shown?")]))
    assert message.content is None
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert (call.name, call.requestor, call.id) == ("check_status_bar", "user", "user_call_0")
    assert "check_status_bar" in {t["function"]["name"] for t in server.requests[0]["tools"]}


def lost_episode(domain: Domain, faults: Sequence[Fault | None], replays: int = 0) -> Trajectory:
    task = domain.task("create_task_1")
    quick = QUICK.model_copy(update={"retries": 0})
    with ChatServer(Customers(domain, [task]), faults) as server, Models(quick) as models:
        return play(domain, task, RolloutConfig(user="llm", replays=replays), users(models, server))


def test_an_endpoint_that_stays_down_ends_the_episode_and_blames_nobody(domain: GetDomain):
    mock = domain("mock")
    lost = lost_episode(mock, [None, "500"])
    assert lost.termination is Termination.INFRASTRUCTURE_ERROR
    assert "500" in (lost.model_calls[-1].error or "")
    reward = RewardOracle({"mock": mock}).score(lost)
    group = TrajectoryGroup(
        task=lost.task, trajectories=(lost,), rewards=(reward,), training_rewards=(reward.value,)
    )
    assert known_rewards(group, group.training_rewards) == [None]


def test_an_episode_that_was_lost_is_played_again(domain: GetDomain):
    played = lost_episode(domain("mock"), ["500"], replays=1)
    assert played.termination is Termination.USER_STOP


def test_the_same_seed_asks_the_same_questions(domain: GetDomain):
    mock = domain("mock")
    task = mock.task("create_task_1")

    def seeds(seed: int) -> list[int]:
        with ChatServer(Customers(mock, [task])) as server, Models(QUICK) as models:
            run_episodes(
                GOLD,
                {"mock": mock},
                [task],
                RolloutConfig(user="llm"),
                seeds=[seed],
                models=users(models, server),
            )
        return server.seeds

    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))


def test_a_transcript_outlives_the_disk(domain: GetDomain):
    played = lost_episode(domain("mock"), [])
    assert Trajectory.model_validate_json(played.model_dump_json()) == played
    old = played.model_dump(mode="json", exclude={"model_calls"})
    assert Trajectory.model_validate(old).model_calls == ()


def test_a_model_user_without_a_model_is_refused(domain: GetDomain):
    with pytest.raises(ConfigError, match=r"'verify' is played by a model.*user\.model"):
        make_user("verify", domain("mock").task("create_task_1"), ())
