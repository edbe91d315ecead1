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

from architectures import built, llama, llama_with_adapter
from grpo_cl.cli import main
from grpo_cl.cli.serve import serving_config
from grpo_cl.errors import ConfigError
from grpo_cl.evaluation import episode_seed
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.probing import token_logprobs
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rollout import run_episodes
from grpo_cl.serve.conversations import Chat, Conversations
from grpo_cl.serve.process import Address
from grpo_cl.serve.replies import Reply, chat_reply, cut
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer.hosted import HostedEvaluation
from grpo_cl.types import Message, ToolCall, Trajectory
from sampling import greedy, tokens_read
from serving import MAX_BODY, Served, served, word_policy
from small_runs import make_policy, small_config
from tiny_policies import load, move, save_model
from word_chat import WordChat

USER = {"role": "user", "content": "hello"}


@contextmanager
def words(**options: Any) -> Generator[tuple[Served, torch.nn.Module]]:
    """A server over a random Llama of fifty words."""
    module = built(llama)
    with served(*word_policy(module), **options) as server:
        yield server, module


def post(server: Served, path: str, body: Any = None, **options: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60, trust_env=False, **options)


def written(server: Served, prompt: Sequence[int], **changes: Any) -> list[int]:
    body = {"prompt": list(prompt), "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer = post(server, "/v1/completions", {**body, "return_token_ids": True, **changes})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def reload(server: Served, folder: Path) -> httpx.Response:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    return post(server, "/collective_rpc", body)


def sentence(answer: httpx.Response) -> str:
    return answer.json()["error"]["message"]


def test_a_prompt_of_token_ids_is_answered_with_ids_and_logprobs():
    with words() as (server, module):
        body = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        more = {"logprobs": 1, "prompt_logprobs": 1, "return_token_ids": True}
        answer = post(server, "/v1/completions", body | more).json()
        (choice,) = answer["choices"]
        assert choice["token_ids"] == greedy(module, [1, 2, 3], 5)
        assert choice["prompt_token_ids"] == [1, 2, 3]
        assert choice["finish_reason"] == "length"
        scored = token_logprobs(word_policy(module)[0], [1, 2, 3, *choice["token_ids"]])
        told = [choice["prompt_logprobs"][n][str(n + 1)]["logprob"] for n in (1, 2)]
        told += choice["logprobs"]["token_logprobs"]
        assert told == pytest.approx(scored, abs=1e-4)
        assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def test_a_prompt_that_goes_on_is_read_from_where_it_was_left():
    with words() as (server, module):
        sizes = tokens_read(module)
        prompt = [n % 50 for n in range(40)]
        reply = written(server, prompt, max_tokens=3)
        sizes.clear()
        written(server, [*prompt, *reply, 7, 7, 7], max_tokens=2)
        assert sizes == [3, 1, 1]
        post(server, "/reset_prefix_cache")
        sizes.clear()
        written(server, [*prompt, *reply, 7, 7, 7], max_tokens=2)
        assert sizes == [45, 1, 1]


def test_resting_conversations_make_room_for_new_ones():
    with words(slots=2) as (server, module):
        prompts = [[n, n + 1, n + 2] for n in range(6)]
        replies = [written(server, prompt) for prompt in prompts]
        assert replies == [greedy(module, prompt, 6) for prompt in prompts]


def test_a_reply_ends_at_stop_tokens_and_before_stop_strings():
    with words() as (server, module):
        plain = greedy(module, [1, 2, 3], 6)
        stop = plain[2]
        end = plain.index(stop) + 1
        assert written(server, [1, 2, 3], stop_token_ids=[stop]) == plain[:end]
        body = {"prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        answer = post(server, "/v1/completions", {**body, "stop": f"w{stop}"}).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert f"w{stop}" not in answer["choices"][0]["text"].split()


def test_the_text_before_the_first_stop_string_is_kept():
    def decode(ids: Sequence[int]) -> str:
        return "".join(chr(97 + n) for n in ids)

    assert cut([0, 1, 2, 3, 4], ["cd", "e"], decode) == (4, "ab")
    assert cut([0, 1], ["x"], decode) is None


def test_the_same_seed_writes_the_same():
    with words() as (server, _):
        warm = {"temperature": 1.0, "max_tokens": 20}
        first = written(server, [1, 2], seed=5, **warm)
        assert written(server, [1, 2], seed=5, **warm) == first
        assert written(server, [1, 2], seed=6, **warm) != first
        assert written(server, [1, 2], **warm) != written(server, [1, 2], **warm)


@pytest.mark.parametrize(
    ("body", "said"),
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
        ({"prompt": [1], "stream": True}, "stream=True is not served"),
        ({"prompt": [1], "n": 2}, "n=2 is not served"),
        ({"prompt": [1], "logprobs": 5}, "logprobs: "),
        ({"prompt": [1], "stop": [""]}, "none of them empty"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(body: Any, said: str):
    with words() as (server, _):
        more = {"ignore_eos": True} if isinstance(body, dict) else {}
        answer = post(server, "/v1/completions", {**body, **more} if more else body)
        assert answer.status_code == 400
        assert said in sentence(answer)


def test_what_is_no_json_or_too_long_or_unknown_is_refused():
    with words() as (server, _):
        url = f"{server.url}/v1/completions"
        assert httpx.post(url, content=b"{", trust_env=False).status_code == 400
        assert httpx.post(url, content=b" " * (MAX_BODY + 1), trust_env=False).status_code == 413
        answer = post(
            server, "/v1/completions", {"prompt": [1], "ignore_eos": True, "model": "other"}
        )
        assert (answer.status_code, sentence(answer)) == (
            404,
            "the model 'other' is not served; there is policy",
        )
        assert post(server, "/collective_rpc", {"method": "shutdown"}).status_code == 400


def test_only_those_with_the_key_are_answered_and_web_pages_never():
    with words(api_key="secret") as (server, _):
        body = {"prompt": [1], "max_tokens": 1, "ignore_eos": True}
        key = {"authorization": "Bearer secret"}
        wrong = {"authorization": "Bearer secreT"}
        assert post(server, "/v1/completions", body).status_code == 401
        assert post(server, "/v1/completions", body, headers=wrong).status_code == 401
        assert post(server, "/v1/completions", body, headers=key).status_code == 200
        page = key | {"origin": "http://example.org"}
        assert post(server, "/v1/completions", body, headers=page).status_code == 403
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200


def test_other_machines_are_let_in_with_a_key_only():
    Address("127.0.0.1", 0).check(has_key=False)
    Address("::1", 0).check(has_key=False)
    Address("0.0.0.0", 0).check(has_key=True)
    with pytest.raises(ConfigError, match="lets other machines in"):
        Address("0.0.0.0", 0).check(has_key=False)
    with pytest.raises(ConfigError, match="lets other machines in"):
        Address("example.org", 0).check(has_key=False)


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]):
    with Address("127.0.0.1", 0).listen() as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "tiny", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_pause_holds_requests_back_until_it_ends():
    with words() as (server, module):
        assert post(server, "/pause?mode=wait").json() == {"status": "paused"}
        replies: list[list[int]] = []
        waiting = threading.Thread(target=lambda: replies.append(written(server, [1, 2])))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert httpx.get(f"{server.url}/is_paused", trust_env=False).json() == {"is_paused": True}
        post(server, "/resume")
        waiting.join()
        assert replies == [greedy(module, [1, 2], 6)]


def test_a_pause_can_give_replies_up():
    with words() as (server, _):
        answers: list[httpx.Response] = []
        body = {"prompt": [1], "ignore_eos": True}
        asking = threading.Thread(
            target=lambda: answers.append(post(server, "/v1/completions", body))
        )
        asking.start()
        while server.scribe.gate.num_inside == 0:
            pass
        post(server, "/pause?mode=abort")
        asking.join()
        post(server, "/resume")
        assert answers[0].status_code in (200, 503)  # it may just have finished
        assert written(server, [1, 2])


def test_a_reply_nobody_waits_for_is_given_up():
    with words() as (server, _):
        body = {"prompt": [1], "ignore_eos": True}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.02, trust_env=False)
        while server.scribe.gate.num_inside:
            pass
        assert written(server, [1, 2])


def other_weights(folder: Path) -> PolicyModel:
    policy = load(save_model(folder / "base"))
    move(policy)
    policy.save(folder / "moved")
    return policy


def test_new_weights_write_from_then_on(tmp_path: Path):
    moved = other_weights(tmp_path)
    base = load(tmp_path / "base")
    config = small_config(tmp_path / "base", tmp_path / "log")
    before = greedy(load(tmp_path / "base").module, [1, 2], 6)
    with served(base, config, folders=[tmp_path]) as server:
        assert written(server, [1, 2]) == before
        assert reload(server, tmp_path / "moved").status_code == 200
        assert written(server, [1, 2]) == greedy(moved.module, [1, 2], 6) != before
        info = httpx.get(f"{server.url}/weight_info", trust_env=False)
        assert info.json() == {"weight_version": 1}
        assert reload(server, tmp_path / "base").status_code == 200
        assert written(server, [1, 2]) == before


def test_weights_come_only_from_folders_that_were_named_and_only_if_they_fit(tmp_path: Path):
    base = load(save_model(tmp_path / "base"))
    save_model(tmp_path / "open" / "other", "qwen2")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "base")
    config = small_config(tmp_path / "base", tmp_path / "log")
    before = greedy(load(tmp_path / "base").module, [1, 2], 6)
    with served(base, config, folders=[tmp_path / "open"]) as server:
        for outside in ("base", "open/../base", "open/link"):
            answer = reload(server, tmp_path / outside)
            assert (answer.status_code, "--weights_dir" in sentence(answer)) == (403, True)
        assert "is no folder" in sentence(reload(server, tmp_path / "open" / "absent"))
        assert "no config.json" in sentence(reload(server, tmp_path / "open"))
        unfit = sentence(reload(server, tmp_path / "open" / "other"))
        assert "of another architecture or size" in unfit
        assert written(server, [1, 2]) == before


def test_adapters_are_served_beside_the_policy_and_swapped_in_place(tmp_path: Path):
    adapted: Any = built(llama_with_adapter)
    adapted.save_pretrained(str(tmp_path / "one"))
    expected = greedy(adapted, [1, 2], 6)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.mul_(-3.0)
    adapted.save_pretrained(str(tmp_path / "two"))
    swapped = greedy(adapted, [1, 2], 6)
    with words(folders=[tmp_path]) as (server, _):
        plain = written(server, [1, 2])
        load_one = {"lora_name": "a", "lora_path": str(tmp_path / "one")}
        assert post(server, "/v1/load_lora_adapter", load_one).status_code == 200
        assert written(server, [1, 2], model="a") == expected
        assert written(server, [1, 2]) == plain
        load_two = {"lora_name": "a", "lora_path": str(tmp_path / "two")}
        assert "load in place" in sentence(post(server, "/v1/load_lora_adapter", load_two))
        answer = post(server, "/v1/load_lora_adapter", load_two | {"load_inplace": True})
        assert answer.status_code == 200
        assert written(server, [1, 2], model="a") == swapped
        models = httpx.get(f"{server.url}/v1/models", trust_env=False).json()
        assert [entry["id"] for entry in models["data"]] == ["policy", "a"]
        assert post(server, "/v1/unload_lora_adapter", {"lora_name": "a"}).status_code == 200
        assert written(server, [1, 2]) == plain
        assert (
            post(
                server, "/v1/completions", {"prompt": [1], "ignore_eos": True, "model": "a"}
            ).status_code
            == 404
        )


def test_calls_are_told_as_openai_tells_them():
    call = ToolCall(id="call_1", name="get", arguments={"id": "x"})
    message = Message(role="assistant", tool_calls=(call,))
    reply = Reply("m", 0, [1], [2], [-0.5], "stop", shows_ids=True, shows_logprobs=True)
    (choice,) = chat_reply(reply, message, lambda ids: "w")["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (told,) = choice["message"]["tool_calls"]
    assert told["function"] == {"name": "get", "arguments": '{"id": "x"}'}
    assert choice["logprobs"]["content"][0]["logprob"] == -0.5
    assert choice["token_ids"] == [2]


def test_a_chat_that_goes_on_keeps_the_tokens_that_were_written():
    chat, memory = WordChat(), Conversations(WordChat())
    first = Chat("task", (), (Message(role="user", content="hello"),))
    opening = memory.prompt(first)
    reply = Message(role="assistant", content="please")
    memory.remember(first, reply, [*opening, 40, 41, 1], has_ended=True)
    later = Message(role="user", content="please")
    second = first._replace(messages=(*first.messages, reply, later))
    assert memory.prompt(second) == [
        *opening,
        *(40, 41, 1),
        *chat.continuation([later], ended=True),
    ]
    unknown = Message(role="assistant", content="hello")
    third = first._replace(messages=(*first.messages, unknown, later))
    assert 40 not in memory.prompt(third)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages: "),
        ([USER, {"role": "system", "content": "x"}], "system messages come first"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "the arguments of the call of 'f' are no JSON",
        ),
    ],
)
def test_bad_chats_are_answered_with_a_sentence(messages: Any, said: str):
    with words() as (server, _):
        answer = post(server, "/v1/chat/completions", {"messages": messages})
        assert answer.status_code == 400
        assert said in sentence(answer)


def said(trajectory: Trajectory) -> list[Any]:
    return [
        (m.role, m.content or "", [(c.name, c.arguments) for c in m.tool_calls or ()])
        for m in trajectory.messages
    ]


@pytest.mark.slow
def test_a_served_policy_plays_as_it_plays_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
    chosen = tasks.evaluation_tasks("airline")
    seeds = [episode_seed(task.id) for task in chosen]
    runtime = PolicyRuntime(config)
    home = run_episodes(
        runtime.actor(temperature=0.0), tasks.domains, chosen, config.rollout, seeds=seeds
    )
    with served(PolicyModel.load(config), config, slots=8) as server:
        url = f"{server.url}/v1"
        name = "openai-api/loopback/policy"
        with HostedEvaluation(config, name, base_url=url) as hosted:
            away = hosted.play(chosen, seeds)
    assert [said(one) for one in away] == [said(one) for one in home]
    assert any(message.tool_calls for one in home for message in one.messages)


def test_a_checkpoint_is_served_with_the_dialect_of_its_run(tmp_path: Path):
    stage = tmp_path / "checkpoint_task_0"
    make_policy(stage / "model")
    config = small_config(stage / "model", tmp_path)
    (stage / "config.json").write_text(config.model_dump_json())
    (tmp_path / "metrics.jsonl").write_text("")
    for place in (tmp_path, stage, stage / "model"):
        chosen = serving_config(str(place), ["--sampling.slots", "3"])
        assert chosen.model_name_or_path == str(stage / "model")
        assert (chosen.sampling.dialect, chosen.sampling.max_context) == ("compact", 512)
        assert chosen.sampling.slots == 3
        assert chosen.model_dtype == "float32"
    assert serving_config("tiny", []).sampling.dialect == "compact"


@pytest.mark.slow
def test_a_server_process_ends_in_good_order_on_sigterm(tmp_path: Path):
    command = [sys.executable, "-m", "grpo_cl", "serve", "tiny", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                body = {"prompt": [5, 6], "max_tokens": 200, "ignore_eos": True, "temperature": 0}
                asking = asyncio.create_task(client.post(f"{url}/completions", json=body))
                await asyncio.sleep(0.3)
                process.send_signal(signal.SIGTERM)
                return await asking

        answer = asyncio.run(ask())
        assert json.loads(answer.text)["usage"]["completion_tokens"] == 200
        assert process.wait(timeout=60) == 0
