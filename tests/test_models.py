import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chat_server import Body, ChatServer, Fault, calling
from grpo_cl.errors import BudgetError, ConfigError, ModelCallError
from grpo_cl.models import Endpoint, Form, Manner, Models, Prompt, Reply, Voice
from grpo_cl.models.budget import Budget
from grpo_cl.models.prompt import Completion
from grpo_cl.models.reading import read_object
from grpo_cl.roles import ModelsConfig
from grpo_cl.types import Message, ToolCall

MODEL = "openai-api/loopback/small"
HELLO = Prompt("Be brief.", [Message(role="user", content="Hello there")])
QUICK = ModelsConfig(cache_dir=None, retries=2, backoff_s=0.001, timeout_s=20)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")


def echo(body: Body) -> str:
    return f"You said: {body['messages'][-1]['content']}"


def opened(models: Models, server: ChatServer, *, temperature: float = 0.0) -> Endpoint:
    return models.open(MODEL, Manner(temperature, 64), base_url=server.url)


def ask(endpoint: Endpoint, prompt: Prompt = HELLO, seed: int = 7) -> Reply:
    return asyncio.run(endpoint.reply(prompt, seed=seed))


def test_a_model_is_asked_with_all_that_was_configured():
    with ChatServer(echo) as server, Models(QUICK) as models:
        reply = ask(opened(models, server, temperature=0.3))
    assert reply.completion == Completion(
        content="You said: Hello there", input_tokens=4, output_tokens=4
    )
    (body,) = server.requests
    assert (body["model"], body["seed"], body["temperature"]) == ("small", 7, 0.3)
    assert body["max_tokens"] == 64
    assert [m["role"] for m in body["messages"]] == ["system", "user"]


def test_tools_go_out_as_schemas_and_calls_come_back():
    schema = {
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
    call = ToolCall(id="c1", name="look_up", arguments={"id": 1})
    past = [
        Message(role="user", content="Look up 1"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", id="c1", content="nothing"),
    ]
    with ChatServer(lambda body: calling("look_up", {"id": 2})) as server, Models(QUICK) as models:
        reply = ask(opened(models, server), Prompt("", past, [schema]))
    (made,) = reply.completion.tool_calls
    assert (made.name, made.arguments) == ("look_up", {"id": 2})
    (body,) = server.requests
    assert body["tools"][0]["function"]["name"] == "look_up"
    assert body["tools"][0]["function"]["parameters"]["required"] == ["id"]
    assert body["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"id": 1}'
    assert (body["messages"][3]["role"], body["messages"][3]["tool_call_id"]) == ("tool", "c1")


def test_a_form_is_asked_for_by_its_schema():
    form = Form("check", {"type": "object", "properties": {"fits": {"type": "boolean"}}})
    with ChatServer(lambda body: '{"fits": true}') as server, Models(QUICK) as models:
        ask(opened(models, server), HELLO._replace(form=form))
    wanted = server.requests[0]["response_format"]["json_schema"]
    assert wanted["name"] == "check"
    assert "fits" in wanted["schema"]["properties"]


@pytest.mark.parametrize("fault", ["429", "500", "garbage", "truncated", "empty", "odd"])
def test_a_passing_fault_is_waited_out_and_counted(fault: Fault):
    with ChatServer(echo, [fault, fault]) as server, Models(QUICK) as models:
        reply = ask(opened(models, server))
    assert reply.completion.content == "You said: Hello there"
    assert reply.retries == 2
    assert len(server.requests) == 3


def test_an_endpoint_that_is_silent_is_asked_again():
    config = QUICK.model_copy(update={"timeout_s": 0.5, "retries": 3})
    with ChatServer(echo, ["silence"]) as server, Models(config) as models:
        reply = ask(opened(models, server))
    assert reply.completion.content == "You said: Hello there"
    assert reply.retries >= 1


def test_a_lasting_fault_is_an_error_that_says_which():
    with ChatServer(echo, ["500", "500", "500"]) as server, Models(QUICK) as models:
        with pytest.raises(ModelCallError, match=r"failed 3 times.*made to fail with 500"):
            ask(opened(models, server))
        assert ask(opened(models, server)).retries == 0


def test_a_question_that_is_refused_is_not_asked_again():
    with ChatServer(echo, ["400"]) as server, Models(QUICK) as models:
        with pytest.raises(ModelCallError, match="cannot answer: BadRequestError"):
            ask(opened(models, server))
        assert len(server.requests) == 1


def test_a_wrong_key_is_a_mistake_in_the_description_of_the_run():
    with ChatServer(echo, ["401"]) as server, Models(QUICK) as models:
        with pytest.raises(ConfigError, match=r"refuses us.*environment variable"):
            ask(opened(models, server))
        assert len(server.requests) == 1


def test_a_model_nobody_knows_is_refused_before_it_is_asked():
    with Models(QUICK) as models:
        with pytest.raises(ConfigError, match="cannot open the model 'nobody/x'"):
            models.open("nobody/x", Manner(0.0, 8))
        with pytest.raises(ConfigError, match="UNSET_API_KEY"):
            models.open("openai-api/unset/x", Manner(0.0, 8), base_url="http://127.0.0.1:9")


def test_the_mock_model_needs_no_endpoint():
    with Models(QUICK) as models:
        reply = ask(models.open("mockllm/model", Manner(0.0, 8)))
    assert "mockllm" in reply.completion.content


def test_a_reply_is_paid_for_once_and_depends_on_the_seed(tmp_path: Path):
    config = QUICK.model_copy(update={"cache_dir": tmp_path})
    with ChatServer(echo) as server, Models(config) as models:
        first = ask(opened(models, server))
        again = ask(opened(models, server))
        assert (again.completion, again.digest) == (first.completion, first.digest)
        assert (first.is_cached, again.is_cached) == (False, True)
        assert ask(opened(models, server), seed=8).is_cached is False
        assert ask(opened(models, server, temperature=1.0)).is_cached is False
        assert len(server.requests) == 3


def test_a_damaged_entry_of_the_cache_is_asked_for_again(tmp_path: Path):
    config = QUICK.model_copy(update={"cache_dir": tmp_path})
    with ChatServer(echo) as server, Models(config) as models:
        ask(opened(models, server))
        (entry,) = tmp_path.rglob("*.json")
        entry.write_text("{")
        assert ask(opened(models, server)).is_cached is False
        assert ask(opened(models, server)).is_cached is True


def many(endpoint: Endpoint, count: int) -> list[Reply]:
    async def everything() -> list[Reply]:
        return await asyncio.gather(*(endpoint.reply(HELLO, seed=n) for n in range(count)))

    return asyncio.run(everything())


def test_no_more_calls_are_under_way_than_allowed():
    config = QUICK.model_copy(update={"concurrency": 2})
    with ChatServer(slowly) as server, Models(config) as models:
        assert len(many(opened(models, server), 6)) == 6
    assert server.most_at_once == 2


def slowly(body: Body) -> str:
    asyncio.run(asyncio.sleep(0.05))
    return echo(body)


def test_requests_keep_their_distance():
    config = QUICK.model_copy(update={"requests_per_minute": 600.0})
    with ChatServer(echo) as server, Models(config) as models:
        ask(opened(models, server), seed=99)
        started = time.monotonic()
        many(opened(models, server), 4)
    assert server.times[-1] - started >= 0.3


def test_a_token_budget_ends_the_run_with_a_way_out():
    config = QUICK.model_copy(update={"budget_tokens": 10})
    with ChatServer(echo) as server, Models(config) as models:
        endpoint = opened(models, server)
        ask(endpoint, seed=1)
        ask(endpoint, seed=2)
        with pytest.raises(BudgetError, match=r"16 of models.budget_tokens=10.*--resume_from"):
            ask(endpoint, seed=3)
        assert len(server.requests) == 2


def test_money_is_counted_by_the_prices_of_a_thousand_tokens():
    prices = {MODEL: (1.0, 2.0)}
    config = QUICK.model_copy(update={"budget_money": 0.02, "prices": prices})
    with ChatServer(echo) as server, Models(config) as models:
        endpoint = opened(models, server)
        assert ask(endpoint, seed=1).cost == pytest.approx(0.004 * 1 + 0.004 * 2)
        ask(endpoint, seed=2)
        assert models.budget.money == pytest.approx(0.024)
        with pytest.raises(BudgetError, match=r"0.0240 of models.budget_money=0.02"):
            ask(endpoint, seed=3)


def test_a_budget_of_money_needs_prices():
    models = Models(QUICK.model_copy(update={"budget_money": 1.0}))
    with pytest.raises(ConfigError, match=r"models\.prices"):
        models.open("mockllm/model", Manner(0.0, 8))


def test_spending_is_remembered_by_the_run(tmp_path: Path):
    paid = Completion(input_tokens=30, output_tokens=10)
    config = ModelsConfig(budget_tokens=100)
    first = Budget(config)
    first.open_ledger(tmp_path / "spending.jsonl")
    first.spend("m", paid)
    again = Budget(config)
    again.open_ledger(tmp_path / "spending.jsonl")
    assert again.tokens == 40


def test_a_budget_says_beforehand_that_it_will_not_last():
    budget = Budget(ModelsConfig(budget_tokens=100))
    assert budget.covers_another()
    budget.spend("m", Completion(input_tokens=40))
    assert budget.covers_another()  # 40 + 40 fit
    budget.spend("m", Completion(input_tokens=30))
    assert not budget.covers_another()  # 70 + 40, the dearest, do not


def test_a_voice_numbers_seeds_and_records_its_calls():
    with ChatServer(echo, [None, "500"]) as server, Models(QUICK) as models:
        voice = Voice(opened(models, server), role="user", seed=5)
        asyncio.run(voice.ask(HELLO, purpose="reply"))
        asyncio.run(voice.ask(HELLO, purpose="check"))
        voice.reject("odd", purposes=("reply",))
        twin = Voice(opened(models, server), role="user", seed=5)
        asyncio.run(twin.ask(HELLO, purpose="reply"))
    first, second = voice.calls
    assert (first.purpose, first.rejected, first.retries) == ("reply", "odd", 0)
    assert (second.purpose, second.rejected, second.retries) == ("check", None, 1)
    assert (first.reply, first.model) == ("You said: Hello there", MODEL)
    assert (first.input_tokens, first.output_tokens) == (4, 4)
    assert first.seed != second.seed
    assert twin.calls[0].seed == first.seed


def test_a_call_that_failed_is_in_the_record_too():
    with ChatServer(echo, ["400"]) as server, Models(QUICK) as models:
        voice = Voice(opened(models, server), role="user", seed=5)
        with pytest.raises(ModelCallError):
            asyncio.run(voice.ask(HELLO, purpose="reply"))
    assert "BadRequestError" in (voice.calls[0].error or "")


@pytest.mark.parametrize(
    "text",
    ['{"a": 1}', 'Sure! {"a": 1} there.', '```json\n{"a": 1}\n```', '{broken {"a": 1}'],
)
def test_an_object_is_found_in_whatever_stands_around_it(text: str):
    assert read_object(text) == {"a": 1}


def test_a_text_without_an_object_is_no_answer():
    with pytest.raises(ValueError, match="no JSON object"):
        read_object("[1, 2] and {")


def test_the_first_callers_may_come_from_many_threads():
    with ChatServer(echo) as server, Models(QUICK) as models:
        endpoint = opened(models, server)

        def from_a_thread(seed: int) -> str:
            return models.wait_for(endpoint.reply(HELLO, seed=seed)).completion.content

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(from_a_thread, range(8))) == {"You said: Hello there"}
