import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chat_server import Answer, Body, ChatServer, Fault, calling, calling_text
from grpo_cl.config import ModelsConfig
from grpo_cl.errors import BudgetError, ConfigError, ModelCallError
from grpo_cl.llm import (
    ChatSession,
    GenerationParams,
    HostedModel,
    ModelPool,
    Prompt,
    Reply,
    ResponseSchema,
)
from grpo_cl.llm.budget import BYTES_PER_TOKEN, Budget
from grpo_cl.llm.json_replies import parse_json_object
from grpo_cl.llm.model_use import CALL_COUNTS
from grpo_cl.llm.prompt import Completion
from grpo_cl.types import Message, ToolCall

MODEL = "openai-api/loopback/small"
HELLO = Prompt("Be brief.", [Message(role="user", content="Hello there")])
QUICK = ModelsConfig(cache_dir=None, retries=2, backoff_s=0.001, timeout_s=20)
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"id": {"type": "integer", "description": "Which."}},
            "required": ["id"],
        },
    },
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


def echo(body: Body) -> str:
    return f"You said: {body['messages'][-1]['content']}"


def open_model(models: ModelPool, server: ChatServer, *, temperature: float = 0.0) -> HostedModel:
    return models.open(MODEL, GenerationParams(temperature, 64), base_url=server.url)


def ask(model: HostedModel, prompt: Prompt = HELLO, seed: int = 7) -> Reply:
    return asyncio.run(model.reply(prompt, seed=seed))


def test_request_has_the_configured_model_seed_temperature_and_max_tokens():
    with ChatServer(echo) as server, ModelPool(QUICK) as models:
        reply = ask(open_model(models, server, temperature=0.3))
    assert reply.completion == Completion(
        content="You said: Hello there", input_tokens=4, output_tokens=4
    )
    (body,) = server.requests
    assert (body["model"], body["seed"], body["temperature"]) == ("small", 7, 0.3)
    assert body["max_tokens"] == 64
    assert [m["role"] for m in body["messages"]] == ["system", "user"]


def test_tools_are_sent_as_schemas_and_tool_calls_are_parsed():
    call = ToolCall(id="c1", name="look_up", arguments={"id": 1})
    past = [
        Message(role="user", content="Look up 1"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", id="c1", content="nothing"),
    ]
    with (
        ChatServer(lambda body: calling("look_up", {"id": 2})) as server,
        ModelPool(QUICK) as models,
    ):
        reply = ask(open_model(models, server), Prompt("", past, [LOOK_UP]))
    (made,) = reply.completion.tool_calls
    assert (made.name, made.arguments) == ("look_up", {"id": 2})
    (body,) = server.requests
    assert body["tools"][0]["function"]["name"] == "look_up"
    assert body["tools"][0]["function"]["parameters"]["required"] == ["id"]
    assert body["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"id": 1}'
    assert (body["messages"][3]["role"], body["messages"][3]["tool_call_id"]) == ("tool", "c1")


def test_response_schema_is_sent_as_response_format():
    schema = ResponseSchema(
        "check", {"type": "object", "properties": {"fits": {"type": "boolean"}}}
    )
    with ChatServer(lambda body: '{"fits": true}') as server, ModelPool(QUICK) as models:
        ask(open_model(models, server), HELLO._replace(response_schema=schema))
    sent = server.requests[0]["response_format"]["json_schema"]
    assert sent["name"] == "check"
    assert "fits" in sent["schema"]["properties"]


@pytest.mark.parametrize("fault", ["429", "500", "garbage", "truncated", "empty", "odd"])
def test_transient_failures_are_retried_and_counted(fault: Fault):
    with ChatServer(echo, [fault, fault]) as server, ModelPool(QUICK) as models:
        reply = ask(open_model(models, server))
    assert reply.completion.content == "You said: Hello there"
    assert reply.retries == 2
    assert len(server.requests) == 3


def test_timed_out_attempt_is_retried():
    config = QUICK.model_copy(update={"timeout_s": 0.5, "retries": 3})
    with ChatServer(echo, ["silence"]) as server, ModelPool(config) as models:
        reply = ask(open_model(models, server))
    assert reply.completion.content == "You said: Hello there"
    assert reply.retries >= 1


def test_error_after_the_last_retry_names_the_failure():
    with ChatServer(echo, ["500", "500", "500"]) as server, ModelPool(QUICK) as models:
        with pytest.raises(ModelCallError, match=r"failed 3 times.*made to fail with 500"):
            ask(open_model(models, server))
        assert ask(open_model(models, server)).retries == 0


def test_calls_of_all_models_are_counted_with_their_failures(tmp_path: Path):
    config = QUICK.model_copy(update={"cache_dir": tmp_path, "prices": {MODEL: (1.0, 10.0)}})
    faults: list[Fault | None] = ["500", None, "429", "500", "500"]
    with ChatServer(echo, faults) as server, ModelPool(config) as models:
        model = open_model(models, server)
        first = ask(model)  # retried once
        assert ask(model).is_cached
        with pytest.raises(ModelCallError):
            ask(model, seed=8)  # fails three times
        model.forget(first.digest)
        taken = models.use.take()
        assert models.use.take() == {}
    counts = {name: taken[name] for name in CALL_COUNTS}
    assert counts == {
        "model_calls": 3.0,
        "model_calls_cached": 1.0,
        "model_calls_failed": 1.0,
        "model_calls_rejected": 1.0,
        "model_retries": 3.0,
        "model_input_tokens": 4.0,
        "model_output_tokens": 4.0,
        "model_cost": pytest.approx((4 * 1.0 + 4 * 10.0) / 1000),
    }
    # No episode runs: all the time is that of a judge.
    assert taken["scoring_wait_s"] == taken["policy_idle_s"] > 0.0
    assert taken["user_wait_s"] == taken["episode_s"] == 0.0


@pytest.mark.slow
def test_bad_request_is_not_retried():
    with ChatServer(echo, ["400"]) as server, ModelPool(QUICK) as models:
        with pytest.raises(ModelCallError, match="cannot answer: BadRequestError"):
            ask(open_model(models, server))
        assert len(server.requests) == 1


def test_rejected_api_key_is_a_config_error():
    with ChatServer(echo, ["401"]) as server, ModelPool(QUICK) as models:
        with pytest.raises(ConfigError, match=r"rejects the API key.*environment variable"):
            ask(open_model(models, server))
        assert len(server.requests) == 1


def test_unknown_model_and_missing_key_are_config_errors_before_any_request():
    with ModelPool(QUICK) as models:
        with pytest.raises(ConfigError, match="cannot open the model 'unknown/x'"):
            models.open("unknown/x", GenerationParams(0.0, 8))
        with pytest.raises(ConfigError, match="UNSET_API_KEY"):
            models.open(
                "openai-api/unset/x", GenerationParams(0.0, 8), base_url="http://127.0.0.1:9"
            )


def test_mock_model_needs_no_endpoint():
    with ModelPool(QUICK) as models:
        reply = ask(models.open("mockllm/model", GenerationParams(0.0, 8)))
    assert "mockllm" in reply.completion.content


def test_reply_is_cached_by_prompt_seed_and_temperature(tmp_path: Path):
    config = QUICK.model_copy(update={"cache_dir": tmp_path})
    with ChatServer(echo) as server, ModelPool(config) as models:
        first = ask(open_model(models, server))
        again = ask(open_model(models, server))
        assert (again.completion, again.digest) == (first.completion, first.digest)
        assert (first.is_cached, again.is_cached) == (False, True)
        assert ask(open_model(models, server), seed=8).is_cached is False
        assert ask(open_model(models, server, temperature=1.0)).is_cached is False
        assert len(server.requests) == 3


def test_damaged_cache_entry_is_requested_again(tmp_path: Path):
    config = QUICK.model_copy(update={"cache_dir": tmp_path})
    with ChatServer(echo) as server, ModelPool(config) as models:
        ask(open_model(models, server))
        (entry,) = tmp_path.rglob("*.json")
        entry.write_text("{")
        assert ask(open_model(models, server)).is_cached is False
        assert ask(open_model(models, server)).is_cached is True


def ask_concurrently(model: HostedModel, count: int) -> list[Reply]:
    async def everything() -> list[Reply]:
        return await asyncio.gather(*(model.reply(HELLO, seed=n) for n in range(count)))

    return asyncio.run(everything())


def test_concurrent_calls_do_not_exceed_the_limit():
    config = QUICK.model_copy(update={"concurrency": 2})
    with ChatServer(slow_echo) as server, ModelPool(config) as models:
        assert len(ask_concurrently(open_model(models, server), 6)) == 6
    assert server.most_at_once == 2


def slow_echo(body: Body) -> str:
    asyncio.run(asyncio.sleep(0.05))
    return echo(body)


def test_requests_per_minute_space_the_requests():
    config = QUICK.model_copy(update={"requests_per_minute": 600.0})
    with ChatServer(echo) as server, ModelPool(config) as models:
        ask(open_model(models, server), seed=99)
        started = time.monotonic()
        ask_concurrently(open_model(models, server), 4)
    assert server.times[-1] - started >= 0.3


def test_exhausted_token_budget_is_an_error_that_names_resume():
    config = QUICK.model_copy(update={"budget_tokens": 10})
    with ChatServer(echo) as server, ModelPool(config) as models:
        model = open_model(models, server)
        ask(model, seed=1)
        ask(model, seed=2)
        with pytest.raises(BudgetError, match=r"16 of models.budget_tokens=10.*--resume_from"):
            ask(model, seed=3)
        assert len(server.requests) == 2


def test_cost_is_computed_from_prices_per_thousand_tokens():
    prices = {MODEL: (1.0, 2.0)}
    config = QUICK.model_copy(update={"budget_money": 0.02, "prices": prices})
    with ChatServer(echo) as server, ModelPool(config) as models:
        model = open_model(models, server)
        assert ask(model, seed=1).cost == pytest.approx(0.004 * 1 + 0.004 * 2)
        ask(model, seed=2)
        assert models.budget.money == pytest.approx(0.024)
        with pytest.raises(BudgetError, match=r"0.0240 of models.budget_money=0.02"):
            ask(model, seed=3)


def test_money_budget_requires_a_price_for_each_model():
    models = ModelPool(QUICK.model_copy(update={"budget_money": 1.0}))
    with pytest.raises(ConfigError, match=r"models\.prices"):
        models.open("mockllm/model", GenerationParams(0.0, 8))


def test_spending_is_restored_from_the_journal(tmp_path: Path):
    paid = Completion(input_tokens=30, output_tokens=10)
    config = ModelsConfig(budget_tokens=100)
    first = Budget(config)
    first.open_journal(tmp_path / "spending.jsonl")
    first.spend("m", paid)
    again = Budget(config)
    again.open_journal(tmp_path / "spending.jsonl")
    assert again.tokens == 40


def test_budget_covers_a_next_step_as_expensive_as_the_most_expensive_so_far():
    budget = Budget(ModelsConfig(budget_tokens=100))
    assert budget.covers_next_step()
    budget.spend("m", Completion(input_tokens=40))
    assert budget.covers_next_step()  # 40 + 40 fit
    budget.spend("m", Completion(input_tokens=30))
    assert not budget.covers_next_step()  # 70 + 40, the most expensive step, do not


def test_session_seeds_and_records_its_calls():
    with ChatServer(echo, [None, "500"]) as server, ModelPool(QUICK) as models:
        session = ChatSession(open_model(models, server), role="user", seed=5)
        asyncio.run(session.ask(HELLO, purpose="reply"))
        asyncio.run(session.ask(HELLO, purpose="check"))
        session.reject("odd", purposes=("reply",))
        same_seed = ChatSession(open_model(models, server), role="user", seed=5)
        asyncio.run(same_seed.ask(HELLO, purpose="reply"))
    first, second = session.calls
    assert (first.purpose, first.rejected, first.retries) == ("reply", "odd", 0)
    assert (second.purpose, second.rejected, second.retries) == ("check", None, 1)
    assert (first.reply, first.model) == ("You said: Hello there", MODEL)
    assert (first.input_tokens, first.output_tokens) == (4, 4)
    assert first.seed != second.seed
    assert same_seed.calls[0].seed == first.seed


def test_failed_call_is_recorded_with_its_error():
    with ChatServer(echo, ["400"]) as server, ModelPool(QUICK) as models:
        session = ChatSession(open_model(models, server), role="user", seed=5)
        with pytest.raises(ModelCallError):
            asyncio.run(session.ask(HELLO, purpose="reply"))
    assert "BadRequestError" in (session.calls[0].error or "")


@pytest.mark.parametrize(
    "text",
    ['{"a": 1}', 'Sure! {"a": 1} there.', '```json\n{"a": 1}\n```', '{broken {"a": 1}'],
)
def test_json_object_is_parsed_from_surrounding_text(text: str):
    assert parse_json_object(text) == {"a": 1}


def test_text_without_a_json_object_is_an_error():
    with pytest.raises(ValueError, match="no JSON object"):
        parse_json_object("[1, 2] and {")


def test_json_nested_too_deeply_for_the_parser_is_an_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json_object('{"a":' * 100_000)


def test_first_calls_may_come_from_several_threads():
    with ChatServer(echo) as server, ModelPool(QUICK) as models:
        model = open_model(models, server)

        def ask_from_thread(seed: int) -> str:
            return models.run_sync(model.reply(HELLO, seed=seed)).completion.content

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(ask_from_thread, range(8))) == {"You said: Hello there"}


WITH_TOOL = HELLO._replace(tools=[LOOK_UP])
BROKEN: dict[str, Answer] = {
    "cut off": lambda body: calling_text("look_up", '{"id": 1'),
    "cut off before its arguments": lambda body: {
        **calling_text("look_up", ""),
        "finish_reason": "length",
    },
    "cut off before any text": lambda body: {"content": "", "finish_reason": "length"},
    "unknown": lambda body: calling("look_down", {"id": 1}),
    "too deep": lambda body: calling_text("look_up", '{"id": ' + "[" * 900 + "]" * 900 + "}"),
    "far too deep": lambda body: calling_text("look_up", '{"id": ' + "[" * 99_999),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_a_broken_tool_call_is_asked_for_once_more_and_then_a_model_call_error(answer: Answer):
    with ChatServer(answer) as server, ModelPool(QUICK) as models:
        session = ChatSession(open_model(models, server), role="user", seed=5)
        with pytest.raises(ModelCallError, match="the user openai-api/loopback/small gave no read"):
            asyncio.run(session.ask(WITH_TOOL, purpose="reply"))
    assert [call.rejected for call in session.calls] == ["unreadable", "unreadable"]
    assert session.calls[-1].error
    assert len(set(server.seeds)) == len(server.requests) == 2
    assert models.budget.tokens == sum(c.input_tokens + c.output_tokens for c in session.calls) > 0


def test_the_reply_after_a_broken_tool_call_is_used():
    replies = iter([calling_text("look_up", '{"id": 1'), calling("look_up", {"id": 1})])
    with ChatServer(lambda body: next(replies)) as server, ModelPool(QUICK) as models:
        session = ChatSession(open_model(models, server), role="user", seed=5)
        completion = asyncio.run(session.ask(WITH_TOOL, purpose="reply"))
    assert [call.arguments for call in completion.tool_calls] == [{"id": 1}]


@pytest.mark.parametrize("answer", [*BROKEN.values(), lambda body: ""], ids=[*BROKEN, "empty"])
def test_a_reply_that_cannot_be_read_is_not_cached(answer: Answer, tmp_path: Path):
    config = QUICK.model_copy(update={"cache_dir": tmp_path})

    def ask_session(server: ChatServer) -> Completion | None:
        with ModelPool(config) as models:
            session = ChatSession(open_model(models, server), role="user", seed=5)
            try:
                return asyncio.run(session.ask(WITH_TOOL, purpose="reply"))
            except ModelCallError:
                return None

    answers = [answer]
    with ChatServer(lambda body: answers[0](body)) as server:
        ask_session(server)
        num_requests = len(server.requests)
        answers[0] = echo  # the endpoint is mended
        completion = ask_session(server)
        assert len(server.requests) == num_requests + 1
        assert completion is not None
        assert completion.content == "You said: Hello there"
        ask_session(server)
        assert len(server.requests) == num_requests + 1


def test_a_reply_that_cannot_be_parsed_is_not_cached(tmp_path: Path):
    config = QUICK.model_copy(update={"cache_dir": tmp_path})
    texts = iter(["{", "no", '{"a": 1}'])

    def ask_parsed(server: ChatServer) -> object:
        with ModelPool(config) as models:
            session = ChatSession(open_model(models, server), role="judge", seed=0)
            return asyncio.run(session.ask_parsed(HELLO, parse_json_object, purpose="verdict"))

    with ChatServer(lambda body: next(texts)) as server:
        with pytest.raises(ModelCallError, match="no readable verdict"):
            ask_parsed(server)
        assert not list(tmp_path.rglob("*.json"))
        assert ask_parsed(server) == {"a": 1}
        assert ask_parsed(server) == {"a": 1}
    assert len(server.requests) == 3


def test_tokens_are_estimated_if_the_endpoint_reports_no_usage(caplog: pytest.LogCaptureFixture):
    with ChatServer(echo, reports_usage=False) as server, ModelPool(QUICK) as models:
        model = open_model(models, server)
        completion = ask(model).completion
        ask(model, seed=8)
    num_bytes = len(completion.content.encode())
    assert completion.output_tokens == -(-num_bytes // BYTES_PER_TOKEN)
    assert completion.input_tokens >= len(b"Be brief.Hello there") / BYTES_PER_TOKEN
    warnings = [record.getMessage() for record in caplog.records if "no usage" in record.message]
    assert len(warnings) == 1
    assert MODEL in warnings[0]


def test_tools_and_calls_count_in_the_estimate():
    def answer(body: Body) -> dict[str, object]:
        return calling("look_up", {"id": 1}) if body.get("tools") else {"content": "No."}

    with ChatServer(answer, reports_usage=False) as server, ModelPool(QUICK) as models:
        model = open_model(models, server)
        plain, called = (ask(model, prompt).completion for prompt in (HELLO, WITH_TOOL))
    assert called.input_tokens - plain.input_tokens >= len(str(LOOK_UP)) / BYTES_PER_TOKEN / 2
    assert called.output_tokens >= len("look_up") / BYTES_PER_TOKEN


def test_a_token_budget_holds_if_the_endpoint_reports_no_usage():
    config = QUICK.model_copy(update={"budget_tokens": 1000})
    with ChatServer(echo, reports_usage=False) as server, ModelPool(config) as models:
        model = open_model(models, server)
        with pytest.raises(BudgetError, match=r"of models.budget_tokens=1000"):
            for seed in range(200):
                ask(model, seed=seed)
        num_bytes = sum(len("Be brief.Hello thereYou said: Hello there") for _ in server.requests)
        assert 1000 * BYTES_PER_TOKEN / 2 < num_bytes <= 1000 * BYTES_PER_TOKEN


def test_a_money_budget_holds_if_the_endpoint_reports_no_usage():
    config = QUICK.model_copy(update={"budget_money": 0.1, "prices": {MODEL: (1.0, 2.0)}})
    with ChatServer(echo, reports_usage=False) as server, ModelPool(config) as models:
        model = open_model(models, server)
        with pytest.raises(BudgetError, match=r"of models.budget_money=0.1"):
            for seed in range(50):
                ask(model, seed=seed)
        assert len(server.requests) < 20
