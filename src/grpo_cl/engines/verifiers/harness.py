"""The harness that plays an episode: a loop in this process, with verifiers' endpoint as policy.

Users, tools and limits are those of a local run; every reply comes through the interception server,
so that the trace has the tokens to train on.
"""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

from typing import Any

import verifiers.v1 as vf
from openai import APIStatusError, AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig

from grpo_cl.engines.session import Session
from grpo_cl.engines.venue import Outcome, episode_config, shared_venue
from grpo_cl.engines.verifiers.tasks import EpisodeData
from grpo_cl.engines.verifiers.wire import opening, read, written
from grpo_cl.errors import ModelCallError
from grpo_cl.types import Task

PACKAGE = "grpo_cl_verifiers"


class EpisodeHarnessConfig(vf.HarnessConfig):
    """``--env.agent.harness.*``."""

    id: str = PACKAGE


class EpisodeHarness(vf.Harness[EpisodeHarnessConfig]):
    """Lets the policy behind verifiers' endpoint play one episode."""

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
        """Play the episode and leave its score in the trace's state."""
        del runtime, mcp_urls  # nothing runs outside of this process
        venue = shared_venue(episode_config(data.settings))
        session = Session(venue, Task.model_validate_json(data.task))
        try:
            async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
                await _play(session, client, ctx.model, trace)
            _record(trace, await session.finish())
        finally:
            await session.close()
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _play(session: Session, client: AsyncOpenAI, model: str, trace: vf.Trace) -> None:
    turn = await session.open()
    messages: list[Any] = list(opening(session.scene, turn.messages))
    tools: Any = {"tools": list(session.scene.tools)} if session.scene.tools else {}
    while not turn.done:
        try:
            made = await client.chat.completions.create(model=model, messages=messages, **tools)
        except APIStatusError:
            if trace.stop_condition is None:
                raise
            return  # verifiers' own limit ended the episode
        reply = read(made.choices[0].message.model_dump())
        turn = await session.step(reply)
        messages += [written(message) for message in (reply, *turn.messages)]


def _record(trace: vf.Trace, outcome: Outcome) -> None:
    trajectory = outcome.trajectory
    if outcome.learned is None:
        # Raised, so that verifiers drops the episode or plays it again; 0 would blame the agent.
        raise ModelCallError(f"a failing endpoint ended the episode: {outcome.reward.reason}")
    trace.state.reward = outcome.learned
    trace.state.success = outcome.reward.value
    trace.state.termination = trajectory.termination
    trace.state.tool_accuracy = outcome.reward.tool_accuracy


class EpisodeEnvConfig(vf.EnvConfig):
    """``--env.*``: the policy's seat, which needs no container."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=SubprocessConfig())


class EpisodeEnv(vf.Env[EpisodeEnvConfig]):
    """One policy plays one task; who speaks to it is of the task's settings."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Let the policy play."""
        await agents.agent.run(task)
