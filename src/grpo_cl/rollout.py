"""An actor meets an environment and a user: tasks in, trajectories out.

The turn loop is τ²-bench's: the agent greets, the user answers, tool results go back to whoever
called, and limits are checked whenever a person is next to speak.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from grpo_cl.config import RolloutConfig
from grpo_cl.domains.base import DONE, Domain, Environment, ToolSchema
from grpo_cl.errors import ContextFullError, ModelCallError
from grpo_cl.types import Message, Task, Termination, TokenTrace, ToolCall, Trajectory
from grpo_cl.users import ModelUsers, make_user
from grpo_cl.users.base import STOP, User, is_stop
from grpo_cl.users.briefing import system_prompt as system_prompt
from grpo_cl.users.stream import Stream

GREETING = "Hi! How can I help you today?"


class Scene(NamedTuple):
    """What an agent is given before the first turn."""

    task: Task
    system: str
    tools: Sequence[ToolSchema]
    solo: bool
    seed: int


class Agent(Protocol):
    """The assistant of one episode."""

    async def act(self, messages: Sequence[Message]) -> Message:
        """Write the next message after ``messages``, which only ever grow.

        Raises ``ContextFullError`` where nothing more can be read.
        """
        ...

    def trace(self) -> TokenTrace | None:
        """The tokens read and written so far; None for an agent that is no model."""
        ...


class Actor(Protocol):
    """The only thing an episode needs from a policy; it serves many at once."""

    def join(self, scene: Scene) -> Agent:
        """An agent for one episode."""
        ...


class ScriptedActor:
    """Plays given tool calls one by one, asks the user for theirs, and then closes."""

    def __init__(
        self,
        calls: Callable[[Task], Sequence[ToolCall]],
        *,
        closing: Callable[[Task], str] = lambda task: "",
    ) -> None:
        self._calls = calls
        self._closing = closing

    def join(self, scene: Scene) -> "ScriptedAgent":
        """An agent that solves ``scene.task`` as told."""
        return ScriptedAgent(self._calls(scene.task), self._closing(scene.task), solo=scene.solo)


class ScriptedAgent:
    """One episode of a script."""

    def __init__(self, calls: Sequence[ToolCall], closing: str, *, solo: bool) -> None:
        self._calls = calls
        self._closing = closing
        self._solo = solo
        self._turn = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        """The next call, or the closing words."""
        del messages
        await asyncio.sleep(0)  # lets other episodes go on, as a model that takes time would
        turn, self._turn = self._turn, self._turn + 1
        if turn < len(self._calls):
            return _scripted_turn(self._calls[turn], number=turn, solo=self._solo)
        if self._solo:
            return _calling(ToolCall(id=DONE, name=DONE))
        closing = f"{self._closing} Is there anything else I can help you with?"
        return Message(role="assistant", content=closing.strip())

    def trace(self) -> None:
        """A script has no tokens."""


def _scripted_turn(call: ToolCall, *, number: int, solo: bool) -> Message:
    own = call.model_copy(update={"id": f"scripted_{number}", "requestor": "assistant"})
    if solo or call.requestor == "assistant":
        return _calling(own)
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    request = f"Please use `{call.name}({arguments})` on your side and tell me what you see."
    return Message(role="assistant", content=request)


def _calling(call: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=(call,))


class Episode:
    """One play of a task, a message at a time."""

    def __init__(
        self, task: Task, environment: Environment, user: User | None, limits: RolloutConfig
    ) -> None:
        self.task = task
        self.solo = user is None
        self._is_stream = user is not None and user.is_stream
        self.termination: Termination | None = None
        self.messages: list[Message] = []
        self._environment = environment
        self._user = user
        self._limits = limits
        self._steps = self._turns = self._errors = 0
        self._started = time.monotonic()

    async def play(self, agent: Agent, *, seed: int = 0) -> Trajectory:
        """Let agent and user speak in turn until one stops or a limit is reached."""
        speaker = self._open()
        while self.termination is None:
            try:
                message = await (self._ask_user() if speaker == "user" else self._ask(agent))
                speaker = self._take(message)
                self._check_limits()
            except ContextFullError:
                self.termination = Termination.CONTEXT_WINDOW_EXCEEDED
            except ModelCallError:
                self.termination = Termination.INFRASTRUCTURE_ERROR
        return Trajectory(
            task=self.task,
            messages=tuple(self.messages),
            termination=self.termination,
            solo=self.solo,
            seed=seed,
            tokens=agent.trace(),
            model_calls=tuple(self._user.model_calls) if self._user else (),
            duration_s=time.monotonic() - self._started,
        )

    def _open(self) -> str:
        self.messages += self.task.message_history
        if self.solo:
            return "assistant"
        if self._is_stream:
            return "user"
        if not self.messages:
            self.messages.append(Message(role="assistant", content=GREETING))
        last = self.messages[-1]
        spoken = last.requestor if last.role == "tool" else last.role
        waits = last.role != "tool"
        return ("user" if spoken == "assistant" else "assistant") if waits else spoken

    async def _ask(self, agent: Agent) -> Message:
        self._turns += 1
        return await agent.act(self.messages)

    async def _ask_user(self) -> Message:
        assert self._user is not None
        return await self._user.respond([m for m in self.messages if _user_sees(m)])

    def _take(self, message: Message) -> str:
        """Record a message, run its calls, and say who speaks next."""
        self._steps += 1
        if message.role == "assistant" and self.solo and _calls_done(message):
            message = Message(role="assistant", content=STOP)
        self.messages.append(message)
        self.termination = self._ending(message)
        if self.termination is None and message.tool_calls:
            self._steps += 1
            for call in message.tool_calls:
                result = self._environment.call(call)
                self._errors += result.error
                self.messages.append(result.message(call))
            return "user" if self._is_stream else message.role
        return "user" if message.role == "assistant" else "assistant"

    def _ending(self, message: Message) -> Termination | None:
        if message.role == "user":
            if not message.content and not message.tool_calls:
                return Termination.USER_ERROR
            return Termination.USER_STOP if is_stop(message) else None
        if self.solo and message.content == STOP and not message.tool_calls:
            return Termination.AGENT_STOP
        empty = not message.content and not message.tool_calls and not self._is_stream
        mute = self.solo and not message.tool_calls  # nobody hears what is said alone
        return Termination.AGENT_ERROR if empty or mute else None

    def _check_limits(self) -> None:
        """As in the reference, a limit overrides a stop that falls on the same step.

        A stream is as long as it is, and what fails there is part of its score.
        """
        limits = self._limits
        if not self._is_stream:
            self._check_counts(limits)
        late = time.monotonic() - self._started
        if limits.timeout_s is not None and late >= limits.timeout_s:
            self.termination = Termination.TIMEOUT

    def _check_counts(self, limits: RolloutConfig) -> None:
        if self._steps >= limits.max_steps or self._turns >= (limits.max_turns or self._turns + 1):
            self.termination = self._overridden(Termination.MAX_STEPS)
        if self._errors >= limits.max_errors:
            self.termination = Termination.TOO_MANY_ERRORS

    def _overridden(self, limit: Termination) -> Termination:
        # The last permitted turn may be the one that ends the episode; a step too many may not.
        stopped = self.termination is not None and self._steps < self._limits.max_steps
        return self.termination if stopped and self.termination else limit


def _calls_done(message: Message) -> bool:
    return any(call.name == DONE for call in message.tool_calls or ())


def _user_sees(message: Message) -> bool:
    if message.role == "tool":
        return message.requestor == "user"
    return message.role == "user" or not message.tool_calls


def run_episodes(
    actor: Actor,
    domains: Mapping[str, Domain],
    tasks: Sequence[Task],
    config: RolloutConfig,
    *,
    seeds: Sequence[int] | None = None,
    models: ModelUsers | None = None,
) -> list[Trajectory]:
    """Play one episode of each task, all at once; none waits for another."""
    chosen = seeds if seeds is not None else [0] * len(tasks)

    async def everything() -> list[Trajectory]:
        plays = zip(tasks, chosen, strict=True)
        games = (
            play(actor, domains[task.domain], task, config, seed=seed, models=models)
            for task, seed in plays
        )
        return await asyncio.gather(*games)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(everything())
    # A notebook has a loop of its own that cannot be entered again.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, everything()).result()


async def play(
    actor: Actor,
    domain: Domain,
    task: Task,
    config: RolloutConfig,
    *,
    seed: int = 0,
    models: ModelUsers | None = None,
) -> Trajectory:
    """One episode of ``task``; one that a failing endpoint ended is played again."""
    again = 0
    while True:
        # Other words of the user may lead past what failed; the agent's seed stays.
        world = domain.environment(task) if domain.is_narrated else None
        user = (
            Stream(world)
            if world
            else make_user(config.user, task, domain.user_tools, models=models, seed=seed + again)
        )
        solo = user is None
        compact = config.prompt == "compact"
        scene = Scene(
            task=task,
            system=system_prompt(domain, task, solo=solo, compact=compact),
            tools=() if compact else domain.tools(solo=solo),
            solo=solo,
            seed=seed,
        )
        episode = Episode(task, world or domain.environment(task, solo=solo), user, config)
        played = await episode.play(actor.join(scene), seed=seed)
        if played.termination is not Termination.INFRASTRUCTURE_ERROR or again == config.replays:
            return played
        again += 1
