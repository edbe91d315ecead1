"""The verifiers harness: runs an episode in this process with verifiers' endpoint as the policy.

Users, tools and limits are those of a local run. Every reply goes through the interception server,
so the trace has the tokens to train on.
"""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unknown here.

import json
from collections.abc import Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from openai import APIStatusError, AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig

from grpo_cl.errors import ModelCallError
from grpo_cl.integrations.episode_context import Outcome, episode_config, shared_context
from grpo_cl.integrations.rows import SOLO_PROMPT
from grpo_cl.integrations.session import Session
from grpo_cl.integrations.verifiers.tasks import EpisodeData
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, Task, ToolCall

PACKAGE = "grpo_cl_verifiers"


class EpisodeHarnessConfig(vf.HarnessConfig):
    """``--env.agent.harness.*``."""

    id: str = PACKAGE


class EpisodeHarness(vf.Harness[EpisodeHarnessConfig]):
    """Runs one episode with the policy behind verifiers' endpoint."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(  # noqa: PLR0913  # verifiers' own signature
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: EpisodeData,
    ) -> ProgramResult:
        """Run the episode and store its score in the trace's state."""
        del runtime, mcp_urls  # everything runs in this process
        context = shared_context(episode_config(data.settings))
        session = Session(context, Task.model_validate_json(data.task))
        try:
            async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
                await _play(session, client, ctx.model, trace)
            _record(trace, await session.finish())
        finally:
            await session.close()
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _play(session: Session, client: AsyncOpenAI, model: str, trace: vf.Trace) -> None:
    turn = await session.open()
    messages: list[Any] = _initial_messages(session.scene, turn.messages)
    tools: Any = {"tools": list(session.scene.tools)} if session.scene.tools else {}
    while not turn.done:
        try:
            completion = await client.chat.completions.create(
                model=model, messages=messages, **tools
            )
        except APIStatusError:
            if trace.stop_condition is None:
                raise
            return  # a limit of verifiers ended the episode
        reply = _from_openai(completion.choices[0].message.model_dump())
        turn = await session.step(reply)
        messages += [_to_openai(message) for message in (reply, *turn.messages)]


def _initial_messages(scene: Scene, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages before the first reply."""
    chat = [_to_openai(message) for message in messages]
    if not any(message.role == "user" for message in messages):
        chat.append({"role": "user", "content": SOLO_PROMPT})
    return [{"role": "system", "content": scene.system}, *chat] if scene.system else chat


def _to_openai(message: Message) -> dict[str, Any]:
    """A message in OpenAI's chat completions format."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.id, "content": message.content or ""}
    entry: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.tool_calls:
        entry["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return entry


def _from_openai(reply: Mapping[str, Any]) -> Message:
    """A reply of the endpoint; malformed arguments do not raise."""
    calls = tuple(_parse_call(call) for call in reply.get("tool_calls") or ())
    content = (reply.get("content") or "").strip()
    return Message(role="assistant", content=content or None, tool_calls=calls or None)


def _parse_call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (ValueError, RecursionError):
        arguments = {}  # the tool's error names the missing arguments to the policy
    arguments = arguments if isinstance(arguments, dict) else {}
    return ToolCall(id=call.get("id") or "", name=function["name"], arguments=arguments)


def _record(trace: vf.Trace, outcome: Outcome) -> None:
    trajectory = outcome.trajectory
    if outcome.training_reward is None:
        # An error lets verifiers drop or retry the episode; reward 0 would penalise the policy.
        raise ModelCallError(f"a failing endpoint ended the episode: {outcome.reward.reason}")
    trace.state.reward = outcome.training_reward
    trace.state.success = outcome.reward.value
    trace.state.termination = trajectory.termination
    trace.state.tool_accuracy = outcome.reward.tool_accuracy


class EpisodeEnvConfig(vf.EnvConfig):
    """``--env.*``: the agent, which needs no container."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=SubprocessConfig())


class EpisodeEnv(vf.Env[EpisodeEnvConfig]):
    """Runs one agent per task; the task's settings choose the user."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Run the agent on the task."""
        await agents.agent.run(task)
