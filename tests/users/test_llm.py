"""Model-driven users against a real server on loopback."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from chat_parts import THOUGHT, Customers
from chat_server import Answer, Body, ChatServer, Fault, calling, calling_text, form_of
from grpo_cl.config import ModelsConfig, RolloutConfig, UserConfig
from grpo_cl.envs import DOMAINS, Domain
from grpo_cl.errors import ConfigError, ModelCallError
from grpo_cl.llm import GenerationParams, ModelPool
from grpo_cl.rewards import RewardOracle
from grpo_cl.rewards.advantages import masked_rewards
from grpo_cl.rollout import GREETING, ScriptedActor, run_episodes
from grpo_cl.types import Message, Task, Termination, Trajectory, TrajectoryGroup
from grpo_cl.users import STRATEGIES, LLMUserFactory, make_user
from grpo_cl.users.base import OUT_OF_SCOPE, STOP, TRANSFER, User
from grpo_cl.users.llm.guards import first_violation
from grpo_cl.users.llm.prompts import user_system_prompt
from parameters import mostly_slow

GetDomain = Callable[[str], Domain]
MODEL = "openai-api/loopback/customer"
GOLD = ScriptedActor(lambda task: [action.call for action in task.gold_actions])
QUICK = ModelsConfig(cache_dir=None, retries=3, backoff_s=0.001, timeout_s=30)
FAULTS: tuple[Fault | None, ...] = ("429", None, "500", None, "garbage", "truncated")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


def users(
    models: ModelPool, server: ChatServer, config: UserConfig | None = None
) -> LLMUserFactory:
    model = models.open(MODEL, GenerationParams(0.0, 256), base_url=server.url)
    return LLMUserFactory(config or UserConfig(model=MODEL), lambda task: model)


def fourth_task(domain: Domain) -> Task:
    return domain.tasks("test" if "test" in domain.splits else "base")[3]


def play(domain: Domain, task: Task, config: RolloutConfig, models: LLMUserFactory | None = None):
    return run_episodes(GOLD, {domain.name: domain}, [task], config, models=models)[0]


def said(trajectory: Trajectory) -> list[tuple[str, str | None, Sequence[str]]]:
    return [
        (m.role, m.content, [f"{c.name}{c.arguments}" for c in m.tool_calls or ()])
        for m in trajectory.messages
    ]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize(  # episodes of memory have no user
    "name", mostly_slow(sorted({*DOMAINS} - {"memory"}), fast=["retail", "telecom"])
)
def test_every_domain_is_playable_with_transient_endpoint_failures(
    domain: GetDomain, name: str, strategy: str
):
    world = domain(name)
    task = fourth_task(world)
    scripted = play(world, task, RolloutConfig(user="scripted"))
    with ChatServer(Customers(world, [task]), FAULTS) as server, ModelPool(QUICK) as models:
        played = play(world, task, RolloutConfig(user=strategy), users(models, server))
    assert played.termination is Termination.USER_STOP
    assert said(played) == said(scripted)
    oracle = RewardOracle({name: world})
    assert oracle.score(played).value == oracle.score(scripted).value
    injected = [fault for fault in FAULTS[: len(server.requests)] if fault]
    assert sum(call.retries for call in played.model_calls) == len(injected) >= 2
    assert all(call.reply and call.input_tokens for call in played.model_calls)


def test_system_prompt_has_the_stop_tokens_and_the_scenario(domain: GetDomain):
    telecom, task = domain("telecom"), fourth_task(domain("telecom"))
    text = user_system_prompt(task, telecom.user_tools)
    assert all(token in text for token in (STOP, TRANSFER, OUT_OF_SCOPE))
    assert "tools that act on it" in text
    assert "tools that act on it" not in user_system_prompt(task, ())
    instructions = task.user_scenario.instructions
    assert not isinstance(instructions, str)
    assert instructions.reason_for_call in text


def respond(
    answer: Answer, strategy: str, agent_text: str, *, checks: int = 2, guard_retries: int = 3
) -> tuple[Message, User]:
    """The user's answer in a small task to one message of the agent."""
    task = Task.model_validate(
        {"id": "t", "domain": "mock", "user_scenario": {"instructions": "You want a refund."}}
    )
    config = UserConfig(model=MODEL, checks=checks, guard_retries=guard_retries)
    with ChatServer(answer) as server, ModelPool(QUICK) as models:
        user = make_user(strategy, task, (), models=users(models, server, config), seed=1)
        assert user is not None
        messages = [Message(role="assistant", content=agent_text)]
        return asyncio.run(user.respond(messages)), user


def answers_in_order(*texts: str) -> Answer:
    replies = iter(texts)
    return lambda body: next(replies)


def test_thought_is_hidden_from_the_agent():
    message, user = respond(
        answers_in_order(f"<thought>{THOUGHT}</thought> I want a refund."), "react", GREETING
    )
    assert message == Message(role="user", content="I want a refund.")
    assert THOUGHT in user.model_calls[0].reply


def test_unclosed_thought_is_not_leaked():
    message, user = respond(
        answers_in_order(f"<thought>{THOUGHT}", "<thought>ok</thought>Refund, please."),
        "react",
        GREETING,
    )
    assert message.content == "Refund, please."
    assert [call.rejected for call in user.model_calls] == ["empty", None]


def test_rejected_draft_is_rewritten_with_the_reason():
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


def test_number_of_rewrites_is_limited_by_the_config():
    def answer(body: Body) -> str:
        return '{"fits": false, "problem": "No."}' if form_of(body) else "I want a refund."

    _, user = respond(answer, "verify", GREETING, checks=3)
    assert [call.purpose for call in user.model_calls].count("rewrite") == 3


def test_second_unreadable_check_is_a_model_call_error():
    with pytest.raises(ModelCallError, match="no readable check"):
        respond(lambda body: "Fine!" if form_of(body) else "Refund!", "verify", GREETING)


def test_critique_leads_to_a_rewrite():
    message, user = respond(
        answers_in_order("Hello, I am John.", "Say why you are here.", "I want a refund."),
        "reflection",
        GREETING,
    )
    assert message.content == "I want a refund."
    assert [call.purpose for call in user.model_calls] == ["reply", "critique", "rewrite"]


@pytest.mark.parametrize(
    ("agent_text", "bad", "reason"),
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
def test_guard_violation_is_asked_for_again_and_recorded(
    agent_text: str, bad: str, reason: str, strategy: str
):
    asked: list[str] = []

    def answer(body: Body) -> str:
        asked.append(str(body["messages"][-1]["content"]))
        return bad if len(asked) == 1 else "Yes, do it."

    message, user = respond(answer, strategy, agent_text)
    assert message.content == "Yes, do it."
    assert [call.rejected for call in user.model_calls] == [reason, None]
    assert "not from the agent" in asked[1]


@pytest.mark.parametrize(
    ("agent_text", "reply"),
    [
        ("Is there anything else I can help you with?", f"No, that is all. {STOP}"),
        ("Your refund has been issued.", f"Great. {STOP}"),
        ("Shall I cancel it?", f"No, leave it then. {STOP}"),
        ("I am transferring you to a person.", TRANSFER),
        ("What is your name?", f"I do not know. {OUT_OF_SCOPE}"),
    ],
)
def test_stop_at_the_right_time_passes_the_guards(agent_text: str, reply: str):
    message, user = respond(answers_in_order(reply), "llm", agent_text)
    assert message.content == reply
    assert [call.rejected for call in user.model_calls] == [None]


def test_consent_is_kept_without_the_stop_token_after_the_last_retry():
    message, user = respond(
        lambda body: f"Yes. {STOP}", "llm", "Shall I go ahead?", guard_retries=2
    )
    assert message.content == "Yes."
    assert [call.rejected for call in user.model_calls] == ["stop_at_confirmation"] * 3


def test_guard_violations_in_all_attempts_are_a_model_call_error():
    with pytest.raises(ModelCallError, match="3 replies that no user would give"):
        respond(lambda body: "", "llm", GREETING, guard_retries=2)


def test_tool_call_never_violates_a_guard():
    call = Message.model_validate({"role": "user", "tool_calls": [{"name": "look"}]})
    assert first_violation(call, [Message(role="assistant", content="Shall I?")]) is None


def test_text_next_to_a_tool_call_is_dropped(domain: GetDomain):
    telecom = domain("telecom")

    def answer(body: Body) -> dict[str, object]:
        return {"content": "Let me look.", **calling("check_status_bar", {})}

    with ChatServer(answer) as server, ModelPool(QUICK) as models:
        factory = users(models, server)
        user = make_user("llm", fourth_task(telecom), telecom.user_tools, models=factory)
        assert user is not None
        message = asyncio.run(user.respond([Message(role="assistant", content="What is shown?")]))
    assert message.content is None
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert (call.name, call.requestor, call.id) == ("check_status_bar", "user", "user_call_0")
    assert "check_status_bar" in {t["function"]["name"] for t in server.requests[0]["tools"]}


def play_with_faults(
    domain: Domain, faults: Sequence[Fault | None], replays: int = 0
) -> Trajectory:
    task = domain.task("create_task_1")
    quick = QUICK.model_copy(update={"retries": 0})
    with ChatServer(Customers(domain, [task]), faults) as server, ModelPool(quick) as models:
        return play(domain, task, RolloutConfig(user="llm", replays=replays), users(models, server))


def test_failed_endpoint_ends_the_episode_and_masks_its_reward(domain: GetDomain):
    mock = domain("mock")
    failed = play_with_faults(mock, [None, "500"])
    assert failed.termination is Termination.INFRASTRUCTURE_ERROR
    assert "500" in (failed.model_calls[-1].error or "")
    reward = RewardOracle({"mock": mock}).score(failed)
    group = TrajectoryGroup(
        task=failed.task,
        trajectories=(failed,),
        rewards=(reward,),
        training_rewards=(reward.value,),
    )
    assert masked_rewards(group, group.training_rewards) == [None]


@pytest.mark.parametrize(
    "call",
    [
        calling_text("toggle_airplane_mode", '{"a": '),
        {**calling("toggle_airplane_mode", {}), "finish_reason": "length"},
        calling("toggle_air_plane_mode", {}),
        calling_text("toggle_airplane_mode", '{"a": ' + "[" * 900 + "]" * 900 + "}"),
    ],
    ids=["malformed", "cut off", "unknown", "too deep"],
)
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_broken_call_of_the_user_is_an_infrastructure_error_and_no_zero(
    domain: GetDomain, strategy: str, call: dict[str, object]
):
    telecom = domain("telecom")
    task = fourth_task(telecom)
    with ChatServer(lambda body: call) as server, ModelPool(QUICK) as models:
        config = RolloutConfig(user=strategy, replays=0)
        played = play(telecom, task, config, users(models, server))
    assert played.termination is Termination.INFRASTRUCTURE_ERROR
    assert not any(message.tool_calls for message in played.messages if message.role == "user")
    reward = RewardOracle({"telecom": telecom}).score(played)
    group = TrajectoryGroup(
        task=task, trajectories=(played,), rewards=(reward,), training_rewards=(reward.value,)
    )
    assert masked_rewards(group, group.training_rewards) == [None]


def test_episode_ended_by_an_endpoint_failure_is_replayed(domain: GetDomain):
    played = play_with_faults(domain("mock"), ["500"], replays=1)
    assert played.termination is Termination.USER_STOP


def test_same_seed_sends_the_same_request_seeds(domain: GetDomain):
    mock = domain("mock")
    task = mock.task("create_task_1")

    def seeds(seed: int) -> list[int]:
        with ChatServer(Customers(mock, [task])) as server, ModelPool(QUICK) as models:
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


def test_model_calls_survive_serialization_and_are_optional(domain: GetDomain):
    played = play_with_faults(domain("mock"), [])
    assert Trajectory.model_validate_json(played.model_dump_json()) == played
    old = played.model_dump(mode="json", exclude={"model_calls"})
    assert Trajectory.model_validate(old).model_calls == ()


def test_model_driven_user_without_a_model_is_a_config_error(domain: GetDomain):
    with pytest.raises(ConfigError, match=r"'verify' is driven by a model.*user\.model"):
        make_user("verify", domain("mock").task("create_task_1"), ())
