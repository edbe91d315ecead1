import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedTokenizerFast
from typing_extensions import override

from architectures import CONTEXT, built, llama, llama_with_adapter
from grpo_cl.cli import main
from grpo_cl.cli.serve import serving_config
from grpo_cl.config import ModelsConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError, ModelCallError
from grpo_cl.llm import GenerationParams, ModelPool, Prompt
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rollout import run_episodes
from grpo_cl.serving.chat_tokens import ChatHistory, ChatTokenCache
from grpo_cl.serving.process import BindAddress
from grpo_cl.serving.responses import GeneratedReply, chat_response, find_stop
from grpo_cl.serving.service import BODY_ALLOWANCE, BODY_BYTES_PER_TOKEN
from grpo_cl.trainer.evaluate import episode_seed
from grpo_cl.trainer.hosted import HostedEvaluation
from grpo_cl.types import Message, ToolCall, Trajectory
from sampling import forward_sizes, greedy
from serving import MAX_BODY, Served, served, word_policy
from small_runs import make_policy, small_config
from tiny_policies import config, load, perturb, save_model
from word_chat import WordChat

USER = {"role": "user", "content": "hello"}


@contextmanager
def word_server(**options: Any) -> Generator[tuple[Served, torch.nn.Module]]:
    """A server over a random Llama with a vocabulary of fifty words."""
    module = built(llama)
    with served(*word_policy(module), **options) as server:
        yield server, module


def post(server: Served, path: str, body: Any = None, **options: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60, trust_env=False, **options)


def completed(server: Served, prompt: Sequence[int], **changes: Any) -> list[int]:
    body = {"prompt": list(prompt), "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer = post(server, "/v1/completions", {**body, "return_token_ids": True, **changes})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def reload(server: Served, folder: Path) -> httpx.Response:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    return post(server, "/collective_rpc", body)


def error_message(answer: httpx.Response) -> str:
    return answer.json()["error"]["message"]


def test_completion_of_token_ids_returns_ids_and_logprobs():
    with word_server() as (server, module):
        body = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        more = {"logprobs": 1, "prompt_logprobs": 1, "return_token_ids": True}
        answer = post(server, "/v1/completions", body | more).json()
        (choice,) = answer["choices"]
        assert choice["token_ids"] == greedy(module, [1, 2, 3], 5)
        assert choice["prompt_token_ids"] == [1, 2, 3]
        assert choice["finish_reason"] == "length"
        scored = word_policy(module)[0].token_logprobs([1, 2, 3, *choice["token_ids"]])
        returned = [choice["prompt_logprobs"][n][str(n + 1)]["logprob"] for n in (1, 2)]
        returned += choice["logprobs"]["token_logprobs"]
        assert returned == pytest.approx(scored, abs=1e-4)
        counts = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        assert answer["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 0}}


def test_continued_prompt_is_prefilled_from_the_cached_sequence():
    with word_server() as (server, module):
        sizes = forward_sizes(module)
        prompt = [n % 50 for n in range(40)]
        reply = completed(server, prompt, max_tokens=3)
        sizes.clear()
        completed(server, [*prompt, *reply, 7, 7, 7], max_tokens=2)
        assert sizes == [3, 1, 1]
        post(server, "/reset_prefix_cache")
        sizes.clear()
        completed(server, [*prompt, *reply, 7, 7, 7], max_tokens=2)
        assert sizes == [45, 1, 1]


def test_usage_has_the_prompt_tokens_that_were_cached():
    with word_server() as (server, _):

        def cached(prompt: Sequence[int]) -> tuple[int, list[int]]:
            body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "return_token_ids": True}
            answer = post(server, "/v1/completions", {**body, "ignore_eos": True}).json()
            count = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            return count, answer["choices"][0]["token_ids"]

        prompt = [n % 50 for n in range(40)]
        count, reply = cached(prompt)
        assert count == 0
        # The last sampled token was never read.
        assert cached([*prompt, *reply, 7, 7, 7])[0] == len(prompt) + len(reply) - 1
        # Another conversation with the same beginning copies it.
        assert cached([*prompt[:36], 9, 9, 9])[0] == 36
        post(server, "/reset_prefix_cache")
        assert cached(prompt)[0] == 0


def test_idle_sequences_are_evicted_for_new_ones():
    with word_server(slots=2) as (server, module):
        prompts = [[n, n + 1, n + 2] for n in range(6)]
        replies = [completed(server, prompt) for prompt in prompts]
        assert replies == [greedy(module, prompt, 6) for prompt in prompts]


def test_completion_ends_at_stop_tokens_and_before_stop_strings():
    with word_server() as (server, module):
        plain = greedy(module, [1, 2, 3], 6)
        stop = plain[2]
        end = plain.index(stop) + 1
        assert completed(server, [1, 2, 3], stop_token_ids=[stop]) == plain[:end]
        body = {"prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        answer = post(server, "/v1/completions", {**body, "stop": f"w{stop}"}).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert f"w{stop}" not in answer["choices"][0]["text"].split()


def test_text_before_the_first_stop_string_is_kept():
    def decode(ids: Sequence[int]) -> str:
        return "".join(chr(97 + n) for n in ids)

    assert find_stop([0, 1, 2, 3, 4], ["cd", "e"], decode) == (4, "ab")
    assert find_stop([0, 1], ["x"], decode) is None


def test_same_seed_gives_the_same_completion():
    with word_server() as (server, _):
        params = {"temperature": 1.0, "max_tokens": 20}
        first = completed(server, [1, 2], seed=5, **params)
        assert completed(server, [1, 2], seed=5, **params) == first
        assert completed(server, [1, 2], seed=6, **params) != first
        assert completed(server, [1, 2], **params) != completed(server, [1, 2], **params)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "must be a JSON object"),
        ({}, "prompt: Field required"),
        ({"prompt": []}, "token ids from 0 to 49"),
        ({"prompt": [50]}, "token ids from 0 to 49"),
        ({"prompt": [-1]}, "token ids from 0 to 49"),
        ({"prompt": [1] * 256}, "leaves no room for a reply"),
        ({"prompt": [[1], [2]]}, "2 prompts in one request"),
        ({"prompt": [1], "temperature": -1}, "temperature: "),
        ({"prompt": [1], "top_p": 0}, "top_p: "),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens: "),
        ({"prompt": [1], "stop_token_ids": [50]}, "stop_token_ids are from 0 to 49"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [1], "stream": True}, "stream=True is not served"),
        ({"prompt": [1], "n": 2}, "n=2 is not served"),
        ({"prompt": [1], "logprobs": 5}, "logprobs: "),
        ({"prompt": [1], "stop": [""]}, "none of them empty"),
    ],
)
def test_invalid_request_returns_an_error_message(body: Any, message: str):
    with word_server() as (server, _):
        more = {"ignore_eos": True} if isinstance(body, dict) else {}
        answer = post(server, "/v1/completions", {**body, **more} if more else body)
        assert answer.status_code == 400
        assert message in error_message(answer)


def test_invalid_json_long_bodies_and_unknown_models_are_rejected():
    with word_server() as (server, _):
        url = f"{server.url}/v1/completions"
        assert httpx.post(url, content=b"{", trust_env=False).status_code == 400
        assert httpx.post(url, content=b" " * (MAX_BODY + 1), trust_env=False).status_code == 413
        answer = post(
            server, "/v1/completions", {"prompt": [1], "ignore_eos": True, "model": "other"}
        )
        assert (answer.status_code, error_message(answer)) == (
            404,
            "the model 'other' is not served; there is policy",
        )
        assert post(server, "/collective_rpc", {"method": "shutdown"}).status_code == 400


def test_requests_need_the_api_key_and_web_pages_are_rejected():
    with word_server(api_key="secret") as (server, _):
        body = {"prompt": [1], "max_tokens": 1, "ignore_eos": True}
        key = {"authorization": "Bearer secret"}
        wrong = {"authorization": "Bearer secreT"}
        assert post(server, "/v1/completions", body).status_code == 401
        assert post(server, "/v1/completions", body, headers=wrong).status_code == 401
        assert post(server, "/v1/completions", body, headers=key).status_code == 200
        web_page = key | {"origin": "http://example.org"}
        assert post(server, "/v1/completions", body, headers=web_page).status_code == 403
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200


def test_host_other_than_loopback_needs_an_api_key():
    BindAddress("127.0.0.1", 0).check(has_key=False)
    BindAddress("::1", 0).check(has_key=False)
    BindAddress("0.0.0.0", 0).check(has_key=True)
    with pytest.raises(ConfigError, match="lets other machines connect"):
        BindAddress("0.0.0.0", 0).check(has_key=False)
    with pytest.raises(ConfigError, match="lets other machines connect"):
        BindAddress("example.org", 0).check(has_key=False)


def test_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]):
    with BindAddress("127.0.0.1", 0).listen() as listener:
        port = listener.getsockname()[1]
        assert main(["serve", "tiny", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_pause_holds_requests_back_until_resume():
    with word_server() as (server, module):
        assert post(server, "/pause?mode=wait").json() == {"status": "paused"}
        replies: list[list[int]] = []
        waiting = threading.Thread(target=lambda: replies.append(completed(server, [1, 2])))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert httpx.get(f"{server.url}/is_paused", trust_env=False).json() == {"is_paused": True}
        post(server, "/resume")
        waiting.join()
        assert replies == [greedy(module, [1, 2], 6)]


def test_pause_can_abort_running_requests():
    with word_server() as (server, _):
        answers: list[httpx.Response] = []
        body = {"prompt": [1], "ignore_eos": True}
        client = threading.Thread(
            target=lambda: answers.append(post(server, "/v1/completions", body))
        )
        client.start()
        while server.worker.gate.num_running == 0:
            pass
        post(server, "/pause?mode=abort")
        client.join()
        post(server, "/resume")
        assert answers[0].status_code in (200, 503)  # the request may have finished first
        assert completed(server, [1, 2])


def test_request_of_a_disconnected_client_is_cancelled():
    with word_server() as (server, _):
        body = {"prompt": [1], "ignore_eos": True}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.02, trust_env=False)
        while server.worker.gate.num_running:
            pass
        assert completed(server, [1, 2])


def test_chat_with_a_model_that_has_no_end_token_returns_an_error_message():
    with word_server() as (server, _):
        answer = post(server, "/v1/chat/completions", {"messages": [USER]})
        assert answer.status_code == 400
        assert "has a token that ends a reply" in error_message(answer)


class BlockedTokenizer(PreTrainedTokenizerFast):
    """Waits in every call until it is released."""

    started = threading.Event()
    released = threading.Event()

    @override
    def __call__(self, *texts: Any, **options: Any) -> Any:
        self.started.set()
        assert self.released.wait(60)
        return super().__call__(*texts, **options)


def test_server_responds_while_it_tokenizes_a_prompt():
    model, config = word_policy(built(llama))
    model.tokenizer = BlockedTokenizer(tokenizer_object=model.tokenizer.backend_tokenizer)
    answers: list[httpx.Response] = []
    with served(model, config) as server:
        body = {"prompt": "w1", "max_tokens": 1, "ignore_eos": True}
        client = threading.Thread(
            target=lambda: answers.append(post(server, "/v1/completions", body))
        )
        client.start()
        assert BlockedTokenizer.started.wait(60)
        assert httpx.get(f"{server.url}/health", trust_env=False, timeout=60).status_code == 200
        assert answers == []
        BlockedTokenizer.released.set()
        client.join()
    assert answers[0].status_code == 200


def test_body_that_cannot_fit_the_context_is_not_read():
    with word_server(max_body=1 << 30) as (server, _):
        limit = BODY_ALLOWANCE + BODY_BYTES_PER_TOKEN * CONTEXT
        answer = post(server, "/v1/completions", {"prompt": "w1 " * (limit // 3)})
        assert answer.status_code == 413
        assert f"more than {limit} bytes" in error_message(answer)


def test_tabular_policy_completes_and_chats():
    config = serving_config("tabular", [])
    with served(PolicyModel.load(config), config) as server:
        for n in range(5, 9):
            assert completed(server, [n]) == [0] * 6  # untrained and greedy
        system = {"role": "system", "content": "The ticket:\nThe signal is left-03."}
        body = {"messages": [system, USER], "temperature": 0}
        (choice,) = post(server, "/v1/chat/completions", body).json()["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "choose", "arguments": '{"option": "stay"}'}
        result = {"role": "tool", "content": "Chosen.", "tool_call_id": call["id"]}
        messages = [system, USER, choice["message"], result]
        (last,) = post(server, "/v1/chat/completions", {"messages": messages}).json()["choices"]
        assert last["message"]["tool_calls"][0]["function"]["name"] == "done"
        answer = post(server, "/v1/chat/completions", {"messages": [USER]})
        assert (answer.status_code, "names no signal" in error_message(answer)) == (400, True)


def save_moved_weights(folder: Path) -> PolicyModel:
    policy = load(save_model(folder / "base"))
    perturb(policy)
    policy.save(folder / "moved")
    return policy


@pytest.mark.slow
def test_reloaded_weights_are_used_from_then_on(tmp_path: Path):
    moved = save_moved_weights(tmp_path)
    base = load(tmp_path / "base")
    config = small_config(tmp_path / "base", tmp_path / "log")
    before = greedy(load(tmp_path / "base").module, [1, 2], 6)
    with served(base, config, folders=[tmp_path]) as server:
        assert completed(server, [1, 2]) == before
        assert reload(server, tmp_path / "moved").status_code == 200
        assert completed(server, [1, 2]) == greedy(moved.module, [1, 2], 6) != before
        info = httpx.get(f"{server.url}/weight_info", trust_env=False)
        assert info.json() == {"weight_version": 1}
        assert reload(server, tmp_path / "base").status_code == 200
        assert completed(server, [1, 2]) == before


def test_weights_are_loaded_only_from_allowed_folders_and_only_if_they_fit(tmp_path: Path):
    base = load(save_model(tmp_path / "base"))
    save_model(tmp_path / "open" / "other", "qwen2")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "base")
    config = small_config(tmp_path / "base", tmp_path / "log")
    before = greedy(load(tmp_path / "base").module, [1, 2], 6)
    with served(base, config, folders=[tmp_path / "open"]) as server:
        for outside in ("base", "open/../base", "open/link"):
            answer = reload(server, tmp_path / outside)
            assert (answer.status_code, "--weights_dir" in error_message(answer)) == (403, True)
        assert "is no folder" in error_message(reload(server, tmp_path / "open" / "absent"))
        assert "no config.json" in error_message(reload(server, tmp_path / "open"))
        message = error_message(reload(server, tmp_path / "open" / "other"))
        assert "of another architecture or size" in message
        assert completed(server, [1, 2]) == before


def test_adapters_are_served_beside_the_policy_and_replaced_in_place(tmp_path: Path):
    adapted: Any = built(llama_with_adapter)
    adapted.save_pretrained(str(tmp_path / "one"))
    expected = greedy(adapted, [1, 2], 6)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.mul_(-3.0)
    adapted.save_pretrained(str(tmp_path / "two"))
    swapped = greedy(adapted, [1, 2], 6)
    with word_server(folders=[tmp_path]) as (server, _):
        plain = completed(server, [1, 2])
        load_one = {"lora_name": "a", "lora_path": str(tmp_path / "one")}
        assert post(server, "/v1/load_lora_adapter", load_one).status_code == 200
        assert completed(server, [1, 2], model="a") == expected
        assert completed(server, [1, 2]) == plain
        load_two = {"lora_name": "a", "lora_path": str(tmp_path / "two")}
        assert "load in place" in error_message(post(server, "/v1/load_lora_adapter", load_two))
        answer = post(server, "/v1/load_lora_adapter", load_two | {"load_inplace": True})
        assert answer.status_code == 200
        assert completed(server, [1, 2], model="a") == swapped
        models = httpx.get(f"{server.url}/v1/models", trust_env=False).json()
        assert [entry["id"] for entry in models["data"]] == ["policy", "a"]
        assert post(server, "/v1/unload_lora_adapter", {"lora_name": "a"}).status_code == 200
        assert completed(server, [1, 2]) == plain
        assert (
            post(
                server, "/v1/completions", {"prompt": [1], "ignore_eos": True, "model": "a"}
            ).status_code
            == 404
        )


def test_tool_calls_have_the_openai_format():
    call = ToolCall(id="call_1", name="get", arguments={"id": "x"})
    message = Message(role="assistant", tool_calls=(call,))
    reply = GeneratedReply("m", 0, [1], [2], [-0.5], "stop", 0, has_ids=True, has_logprobs=True)
    (choice,) = chat_response(reply, message, lambda ids: "w")["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (returned,) = choice["message"]["tool_calls"]
    assert returned["function"] == {"name": "get", "arguments": '{"id": "x"}'}
    assert choice["logprobs"]["content"][0]["logprob"] == -0.5
    assert choice["token_ids"] == [2]


def test_continued_chat_keeps_the_sampled_tokens():
    chat, cache = WordChat(), ChatTokenCache(WordChat())
    first = ChatHistory("task", (), (Message(role="user", content="hello"),))
    opening = cache.prompt(first)
    reply = Message(role="assistant", content="please")
    cache.store(first, reply, [*opening, 40, 41, 1], has_ended=True)
    later = Message(role="user", content="please")
    second = first._replace(messages=(*first.messages, reply, later))
    assert cache.prompt(second) == [
        *opening,
        *(40, 41, 1),
        *chat.continuation([later], ended=True),
    ]
    unknown = Message(role="assistant", content="hello")
    third = first._replace(messages=(*first.messages, unknown, later))
    assert 40 not in cache.prompt(third)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: "),
        ([USER, {"role": "system", "content": "x"}], "system messages come first"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "function.arguments of the call of 'f' is not JSON",
        ),
    ],
)
def test_invalid_chat_returns_an_error_message(messages: Any, message: str):
    with word_server() as (server, _):
        answer = post(server, "/v1/chat/completions", {"messages": messages})
        assert answer.status_code == 400
        assert message in error_message(answer)


def test_chat_with_a_response_format_is_json_of_the_schema(tmp_path: Path):
    policy, settings = load(save_model(tmp_path)), config(tmp_path)
    schema = {"type": "object", "properties": {"fits": {"type": "boolean"}}}
    form = {"type": "json_schema", "json_schema": {"name": "check", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "?"}], "temperature": 1.0, "max_tokens": 40}
    with served(policy, settings) as server:

        def chat(seed: int, **options: Any) -> httpx.Response:
            return post(server, "/v1/chat/completions", {**body, "seed": seed, **options})

        replies = [chat(seed, response_format=form).json()["choices"][0] for seed in range(8)]
        texts = [reply["message"]["content"] for reply in replies]
        assert {json.loads(text)["fits"] for text in texts} == {True, False}
        assert {reply["finish_reason"] for reply in replies} == {"stop"}
        free = chat(0).json()["choices"][0]["message"]["content"]
        assert chat(0, response_format={"type": "text"}).json()["choices"][0]["message"] == {
            "role": "assistant",
            "content": free,
        }


def test_prompt_beyond_the_context_is_a_failed_call_and_no_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    prompt = Prompt("x" * 200, [Message(role="user", content="hello")])
    with (
        served(load(save_model(tmp_path)), config(tmp_path)) as server,
        ModelPool(ModelsConfig(cache_dir=None)) as models,
    ):
        url = f"{server.url}/v1"
        model = models.open("openai-api/loopback/policy", GenerationParams(0.0, 8), base_url=url)
        with pytest.raises(
            ModelCallError, match=f"at {url} cannot answer: the prompt has .* of 64"
        ):
            asyncio.run(model.reply(prompt, seed=0))
        assert models.budget.tokens == 0
        assert models.use.take()["model_calls_failed"] == 1.0


@pytest.mark.parametrize(
    ("path", "form", "message"),
    [
        ("chat/completions", {"type": "json_object"}, "response_format.type: "),
        ("chat/completions", {"type": "json_schema"}, "has a field json_schema"),
        (
            "chat/completions",
            {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
            "type None",
        ),
        ("completions", {"type": "json_schema"}, "response_format: Input should be None"),
    ],
)
def test_response_format_that_is_not_served_is_refused(path: str, form: Any, message: str):
    with word_server() as (server, _):
        body = {"messages": [USER], "prompt": [1], "response_format": form}
        answer = post(server, f"/v1/{path}", body)
    assert answer.status_code == 400
    assert message in error_message(answer)


def contents(trajectory: Trajectory) -> list[Any]:
    return [
        (m.role, m.content or "", [(c.name, c.arguments) for c in m.tool_calls or ()])
        for m in trajectory.messages
    ]


@pytest.mark.slow
def test_served_policy_plays_as_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    config = serving_config("tiny", [])
    config = config.model_copy(
        update={
            "task_order": ("airline",),
            "log_dir": tmp_path,
            "evaluation": config.evaluation.model_copy(update={"trials": 1, "generated": 3}),
            "models": config.models.model_copy(update={"cache_dir": None}),
        }
    )
    tasks = TaskDataLoader(config)
    evaluation_tasks = tasks.evaluation_tasks("airline")
    seeds = [episode_seed(task.id) for task in evaluation_tasks]
    runtime = PolicyRuntime(config)
    local = run_episodes(
        runtime.actor(temperature=0.0), tasks.domains, evaluation_tasks, config.rollout, seeds=seeds
    )
    with served(PolicyModel.load(config), config, slots=8) as server:
        url = f"{server.url}/v1"
        name = "openai-api/loopback/policy"
        with HostedEvaluation(config, name, base_url=url) as hosted:
            remote = [scored.trajectory for scored in hosted._play(evaluation_tasks, seeds)]
    assert [contents(played) for played in remote] == [contents(played) for played in local]
    assert any(message.tool_calls for played in local for message in played.messages)


def test_checkpoint_is_served_with_the_dialect_of_its_run(tmp_path: Path):
    stage = tmp_path / "checkpoint_task_0"
    make_policy(stage / "model")
    config = small_config(stage / "model", tmp_path)
    (stage / "config.json").write_text(config.model_dump_json())
    (tmp_path / "metrics.jsonl").write_text("")
    for path in (tmp_path, stage, stage / "model"):
        served_config = serving_config(str(path), ["--sampling.slots", "3"])
        assert served_config.model_name_or_path == str(stage / "model")
        assert (served_config.sampling.dialect, served_config.sampling.max_context) == (
            "compact",
            512,
        )
        assert served_config.sampling.slots == 3
        assert served_config.model_dtype == "float32"
    assert serving_config("tiny", []).sampling.dialect == "compact"


@pytest.mark.slow
def test_server_finishes_running_requests_on_sigterm(tmp_path: Path):
    command = [sys.executable, "-m", "grpo_cl", "serve", "tiny", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]

        async def request_and_stop() -> httpx.Response:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                body = {"prompt": [5, 6], "max_tokens": 200, "ignore_eos": True, "temperature": 0}
                pending = asyncio.create_task(client.post(f"{url}/completions", json=body))
                await asyncio.sleep(0.3)
                process.send_signal(signal.SIGTERM)
                return await pending

        answer = asyncio.run(request_and_stop())
        assert json.loads(answer.text)["usage"]["completion_tokens"] == 200
        assert process.wait(timeout=60) == 0
