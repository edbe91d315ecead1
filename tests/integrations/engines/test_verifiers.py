"""The real ``verifiers.v1`` environment, with policies behind an API on loopback."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown elsewhere.

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "verifiers", reason="verifiers needs a separate environment: make test-engine-verifiers"
)

import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import environment_class, load_environment

from chat_server import ChatServer, calling
from grpo_cl.envs import load_domain
from grpo_cl.integrations.verifiers.harness import EpisodeEnv, EpisodeEnvConfig
from grpo_cl.rewards import RewardOracle
from grpo_cl.runs.episodes import FOLDER_VARIABLE, read_episode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of verifiers and its dependencies
    pytest.mark.timeout(600),
]

PACKAGE = "grpo-cl-verifiers"


def environment(**taskset: Any) -> EpisodeEnv:
    assert environment_class(PACKAGE) is EpisodeEnv
    return load_environment(EpisodeEnvConfig(taskset={"id": PACKAGE, **taskset}))


def run_episodes(
    env: EpisodeEnv, url: str, *, count: int, model: str = "policy"
) -> list[vf.Episode]:
    os.environ["NO_KEY"] = "none"
    client = EvalClientConfig(base_url=url, api_key_var="NO_KEY")

    async def episodes() -> list[vf.Episode]:
        async with env.serving():
            slots = [slot for task in env.taskset for slot in env.slots(task, count)]
            ctx = ModelContext(model=model, client=client)
            return [await env.run_slot(slot, ctx) for slot in slots]

    return asyncio.run(episodes())


class Gold:
    """Replies with the gold actions of a task, one per turn, and then a closing message."""

    def __init__(self, domain: str, task_id: str) -> None:
        self._actions = load_domain(domain, None).task(task_id).gold_actions

    def __call__(self, body: Any) -> str | dict[str, Any]:
        index = sum(message["role"] == "assistant" for message in body["messages"]) - 1
        if index < len(self._actions):
            return calling(self._actions[index].name, self._actions[index].arguments, index)
        return "It is done. Is there anything else?"


def test_solved_task_with_a_user_has_reward_one_and_a_complete_trace():
    env = environment(domains=["mock"], split="base", max_tasks=1, user_strategy="scripted")
    (task,) = env.taskset
    with ChatServer(Gold("mock", task.data.id)) as server:
        (episode,) = run_episodes(env, server.url, count=1)
    (trace,) = episode.traces
    assert episode.ok, episode.errors
    assert trace.reward == 1.0
    assert trace.state.termination == "user_stop"
    schemas = load_domain("mock", None).tools()
    assert [tool["function"] for tool in server.requests[0]["tools"]] == [
        schema["function"] for schema in schemas
    ]
    roles = [message.role for message in trace.branches[-1].messages]
    assert roles[:3] == ["system", "assistant", "user"]
    assert "tool" in roles
    assert len(trace.branches) == 1


def test_reply_without_tool_calls_has_reward_zero():
    env = environment(domains=["mock"], split="base", max_tasks=1, user_strategy="solo")
    with ChatServer(lambda body: "I would rather not.") as server:
        (episode,) = run_episodes(env, server.url, count=1)
    assert episode.ok
    assert episode.traces[0].reward == 0.0
    assert episode.traces[0].state.termination == "agent_error"


def test_episode_with_a_failing_user_endpoint_is_an_error():
    env = environment(
        domains=["mock"],
        split="base",
        max_tasks=1,
        user_strategy="llm",
        user_model="openai-api/nowhere/model",
        user_base_url="http://127.0.0.1:9/v1",
        settings={"models": {"retries": 0, "cache_dir": None}},
    )
    os.environ["NOWHERE_API_KEY"] = "none"
    with ChatServer(lambda body: "Hello.") as server:
        (episode,) = run_episodes(env, server.url, count=1)
    assert not episode.ok
    assert "failing endpoint" in str(episode.traces[0].errors)


@pytest.fixture
def tiny_server() -> Iterator[str]:
    command = [sys.executable, "-m", "grpo_cl", "serve", "tiny", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.split()[-1]
        process.terminate()


def test_embedded_policy_over_http_has_the_rewards_of_a_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_server: str
):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    settings = {"model_name_or_path": "tiny", "seed": 21}
    env = environment(domains=["retail"], max_tasks=2, settings=settings)
    episodes = run_episodes(env, tiny_server, count=4, model="tiny")
    lines = [
        json.loads(line)
        for path in tmp_path.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(lines) == len(episodes) == 8
    domain = load_domain("retail", None)
    oracle = RewardOracle({"retail": domain})
    for line, episode in zip(lines, episodes, strict=True):
        trajectory = read_episode(line, domain.task(line["task_id"]), oracle).trajectory
        assert episode.ok, episode.errors
        assert episode.traces[0].task.data.id == line["task_id"]
        assert episode.traces[0].reward == oracle.score(trajectory).value
    assert {episode.traces[0].reward for episode in episodes} == {0.0, 1.0}
