"""The episode loop: an actor, an environment and a user produce trajectories.

The turn order is τ²-bench's: the agent greets, the user answers, tool results go back to the side
that made the calls, and limits are checked after every message. In a domain whose environment
sends observations itself there is no user.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Protocol

from typing_extensions import override

from grpo_cl.config import RolloutConfig
from grpo_cl.envs.base import DONE, STOP, Domain, Environment, StreamingEnvironment
from grpo_cl.errors import ContextFullError, ModelCallError
from grpo_cl.types import Message, Task, Termination, TokenTrace, ToolCall, ToolSchema, Trajectory
from grpo_cl.users import SOLO, LLMUserFactory, make_user
from grpo_cl.users.base import STOP_TOKENS, User, is_stop
from grpo_cl.users.scripted.ticket import ticket

GREETING = "Hi! How can I help you today?"

MIN_REPLY = 8
"""Fewest tokens of free context for which a policy is asked for a reply."""

Side = Literal["assistant", "user"]
"""The side that writes the next message."""


class Scene(NamedTuple):
    """What an agent receives before the first turn."""

    task: Task
    system: str
    tools: Sequence[ToolSchema]
    solo: bool
    seed: int


class Agent(Protocol):
    """The agent of one episode."""

    async def act(self, messages: Sequence[Message]) -> Message:
        """The message after ``messages``; each call has the earlier messages as its prefix.

        Raises ``ContextFullError`` if the context window is full.
        """
        ...

    def trace(self) -> TokenTrace | None:
        """The prompt and sampled tokens so far; None for an agent without tokens."""
        ...


class Actor(Protocol):
    """Makes agents; one actor serves many concurrent episodes."""

    def join(self, scene: Scene) -> Agent:
        """The agent of one episode."""
        ...


class ScriptedActor:
    """Makes given tool calls one by one, requests the user's calls, then ends the conversation."""

    def __init__(
        self,
        calls: Callable[[Task], Sequence[ToolCall]],
        *,
        closing: Callable[[Task], str] = lambda task: "",
    ) -> None:
        self._calls = calls
        self._closing = closing

    def join(self, scene: Scene) -> "ScriptedAgent":
        """An agent that makes the calls for ``scene.task``."""
        return ScriptedAgent(self._calls(scene.task), self._closing(scene.task), solo=scene.solo)


class ScriptedAgent:
    """A scripted agent in one episode."""

    def __init__(self, calls: Sequence[ToolCall], closing: str, *, solo: bool) -> None:
        self._calls = calls
        self._closing = closing
        self._solo = solo
        self._turn = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        """The next call, or the closing message."""
        del messages
        await asyncio.sleep(0)  # yields to other episodes, as a model would
        turn, self._turn = self._turn, self._turn + 1
        if turn < len(self._calls):
            return _scripted_turn(self._calls[turn], number=turn, solo=self._solo)
        if self._solo:
            return _call_message(ToolCall(id=DONE, name=DONE))
        closing = f"{self._closing} Is there anything else I can help you with?"
        return Message(role="assistant", content=closing.strip())

    def trace(self) -> None:
        """None: a scripted agent has no tokens."""


def _scripted_turn(call: ToolCall, *, number: int, solo: bool) -> Message:
    own = call.model_copy(update={"id": f"scripted_{number}", "requestor": "assistant"})
    if solo or call.requestor == "assistant":
        return _call_message(own)
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    request = f"Please use `{call.name}({arguments})` on your side and tell me what you see."
    return Message(role="assistant", content=request)


def _call_message(call: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=(call,))


class Episode:
    """One episode of a task between an agent and a user, or with a ticket if there is no user."""

    def __init__(
        self, task: Task, environment: Environment, user: User | None, limits: RolloutConfig
    ) -> None:
        self.task = task
        self.solo = user is None
        self.termination: Termination | None = None
        self.messages: list[Message] = []
        self._environment = environment
        self._user = user
        self._limits = limits
        self._steps = self._turns = self._errors = 0
        self._started = time.monotonic()

    async def play(self, agent: Agent, *, seed: int = 0) -> Trajectory:
        """Request messages in turn until one side stops or a limit is reached."""
        side = self._open()
        while self.termination is None:
            try:
                message = await (self._user_turn() if side == "user" else self._agent_turn(agent))
                side = self._apply(message)
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

    def _open(self) -> Side:
        """Add the messages before the first turn; returns the side whose turn it is."""
        self.messages += self.task.message_history
        if self.solo:
            return "assistant"
        if not self.messages:
            self.messages.append(Message(role="assistant", content=GREETING))
        last = self.messages[-1]
        if last.role == "tool":
            return last.requestor
        return "user" if last.role == "assistant" else "assistant"

    async def _agent_turn(self, agent: Agent) -> Message:
        self._turns += 1
        return await agent.act(self.messages)

    async def _user_turn(self) -> Message:
        assert self._user is not None
        return await self._user.respond([m for m in self.messages if _user_sees(m)])

    def _apply(self, message: Message) -> Side:
        """Record a message and run its calls; returns the side whose turn it is."""
        self._steps += 1
        if message.role == "assistant" and self.solo and _calls_done(message):
            message = Message(role="assistant", content=STOP)
        self.messages.append(message)
        self.termination = self._termination(message)
        if self.termination is None and message.tool_calls:
            self._steps += 1
            for call in message.tool_calls:
                result = self._environment.call(call)
                self._errors += result.error
                self.messages.append(result.message(call))
        return self._next_side(message)

    def _next_side(self, message: Message) -> Side:
        """The side that reads the results of ``message``, or answers it."""
        if message.role == "assistant":
            return "assistant" if message.tool_calls else "user"
        return "user" if message.tool_calls else "assistant"

    def _termination(self, message: Message) -> Termination | None:
        if message.role == "user":
            if not message.content and not message.tool_calls:
                return Termination.USER_ERROR
            return Termination.USER_STOP if is_stop(message) else None
        if self.solo and message.content == STOP and not message.tool_calls:
            return Termination.AGENT_STOP
        # Without a user a text has no reader: every turn of a solo agent is a tool call.
        is_empty = not message.tool_calls and (self.solo or not message.content)
        return Termination.AGENT_ERROR if is_empty else None

    def _check_limits(self) -> None:
        """End the episode at a limit; as in τ²-bench, a limit overrides a stop on the same step."""
        self._check_counts()
        elapsed_s = time.monotonic() - self._started
        if self._limits.timeout_s is not None and elapsed_s >= self._limits.timeout_s:
            self.termination = Termination.TIMEOUT

    def _check_counts(self) -> None:
        limits = self._limits
        if self._steps >= limits.max_steps or self._turns >= (limits.max_turns or self._turns + 1):
            self.termination = self._at_step_limit()
        if self._errors >= limits.max_errors:
            self.termination = Termination.TOO_MANY_ERRORS

    def _at_step_limit(self) -> Termination:
        # A stop on the last turn under max_turns counts; a stop on step max_steps does not.
        if self.termination is not None and self._steps < self._limits.max_steps:
            return self.termination
        return Termination.MAX_STEPS


class EnvironmentDrivenEpisode(Episode):
    """An episode in which the environment sends every observation and the agent replies to each.

    It ends with the last observation. Steps and errors are not limited: the length is the
    environment's, and failed calls count in the reward.
    """

    def __init__(
        self, task: Task, environment: StreamingEnvironment, limits: RolloutConfig
    ) -> None:
        super().__init__(task, environment, None, limits)
        self.solo = False
        self._observations = environment

    @override
    def _open(self) -> Side:
        self.messages += self.task.message_history
        return "user"

    @override
    async def _user_turn(self) -> Message:
        observation = self._observations.next_observation()
        if observation is None:
            return Message(role="user", content=STOP)
        for token in STOP_TOKENS:  # a stop token inside an observation must not end the episode
            observation = observation.replace(token, token.strip("#"))
        return Message(role="user", content=observation)

    @override
    def _next_side(self, message: Message) -> Side:
        return "user" if message.role == "assistant" else "assistant"

    @override
    def _termination(self, message: Message) -> Termination | None:
        # An empty reply is a valid one: it changes nothing.
        return None if message.role == "assistant" else super()._termination(message)

    @override
    def _check_counts(self) -> None:
        """No limit of steps, turns or errors."""


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
    models: LLMUserFactory | None = None,
) -> list[Trajectory]:
    """Play one episode of each task, all concurrently."""
    episode_seeds = seeds if seeds is not None else [0] * len(tasks)
    return run_all(
        play(actor, domains[task.domain], task, config, seed=seed, models=models)
        for task, seed in zip(tasks, episode_seeds, strict=True)
    )


def run_all(episodes: Iterable[Coroutine[Any, Any, Trajectory]]) -> list[Trajectory]:
    """The trajectories of episodes that are played concurrently."""
    trajectories: list[Trajectory] = []

    async def play_all() -> None:
        # Not returned: asyncio.run formats the result of its task, with all token ids in it.
        trajectories.extend(await asyncio.gather(*episodes))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(play_all())
        return trajectories
    # A notebook runs its own event loop, which cannot be entered again.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, play_all()).result()
    return trajectories


async def play(
    actor: Actor,
    domain: Domain,
    task: Task,
    config: RolloutConfig,
    *,
    seed: int = 0,
    models: LLMUserFactory | None = None,
) -> Trajectory:
    """One episode of ``task``; replayed if an endpoint failed, ``config.replays`` times at most."""
    replays = 0
    while True:
        # A replay has another user seed, to avoid the same failure; the agent's seed stays.
        episode = _new_episode(domain, task, config, models, user_seed=seed + replays)
        scene = _make_scene(domain, task, config, solo=episode.solo, seed=seed)
        trajectory = await episode.play(actor.join(scene), seed=seed)
        is_lost = trajectory.termination is Termination.INFRASTRUCTURE_ERROR
        if not is_lost or replays == config.replays:
            return trajectory
        replays += 1


def _new_episode(
    domain: Domain,
    task: Task,
    config: RolloutConfig,
    models: LLMUserFactory | None,
    *,
    user_seed: int,
) -> Episode:
    streaming = domain.streaming_environment(task)
    if streaming is not None:
        return EnvironmentDrivenEpisode(task, streaming, config)
    user = make_user(config.user, task, domain.user_tools, models=models, seed=user_seed)
    return Episode(task, domain.environment(task, solo=user is None), user, config)


def _make_scene(
    domain: Domain, task: Task, config: RolloutConfig, *, solo: bool, seed: int
) -> Scene:
    compact = config.prompt == "compact"
    return Scene(
        task=task,
        system=system_prompt(domain, task, solo=solo, compact=compact),
        tools=() if compact else domain.tools(solo=solo),
        solo=solo,
        seed=seed,
    )


class Opening(NamedTuple):
    """What an agent reads before its first reply."""

    scene: Scene
    messages: Sequence[Message]


def known_opening(domain: Domain, task: Task, config: RolloutConfig) -> Opening:
    """The opening of an episode, as far as it is known before a user has said anything."""
    streaming = domain.streaming_environment(task)
    solo = streaming is None and config.user == SOLO
    messages = list(task.message_history)
    if streaming is not None:
        messages.append(Message(role="user", content=streaming.next_observation() or ""))
    elif not solo and not messages:
        messages.append(Message(role="assistant", content=GREETING))
        messages.append(Message(role="user", content=""))
    return Opening(_make_scene(domain, task, config, solo=solo, seed=0), messages)


def system_prompt(domain: Domain, task: Task, *, solo: bool, compact: bool = False) -> str:
    """The system prompt of ``task``, which holds its ticket if ``solo``."""
    return domain.system_prompt(ticket(task) if solo else None, compact=compact)
