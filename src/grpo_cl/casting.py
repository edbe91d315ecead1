"""Models in parts that others play otherwise: a hosted one as the agent, the policy as the user."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpo_cl.errors import ContextFullError, ModelCallError
from grpo_cl.models import Completion, Prompt, Reply, Speaker, Voice
from grpo_cl.rollout import Actor, Scene
from grpo_cl.types import Message, Task, Trajectory

OPENING = "(The ticket is above.)"
"""Stands for a user's words where there is none: endpoints want somebody to have spoken."""


class HostedActor:
    """Any model behind an API as the agent of many episodes."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._voices: dict[tuple[str, int], Voice] = {}

    def join(self, scene: Scene) -> "HostedAgent":
        """An agent for one episode."""
        voice = Voice(self._speaker, role="agent", seed=scene.seed)
        self._voices[scene.task.id, scene.seed] = voice
        return HostedAgent(scene, voice)

    def with_calls(self, trajectory: Trajectory) -> Trajectory:
        """An episode that this actor played, with what it asked its model."""
        voice = self._voices.pop((trajectory.task.id, trajectory.seed))
        calls = (*voice.calls, *trajectory.model_calls)
        return trajectory.model_copy(update={"model_calls": calls})


class HostedAgent:
    """A model behind an API in one episode."""

    def __init__(self, scene: Scene, voice: Voice) -> None:
        self._scene = scene
        self._voice = voice
        self._num_calls = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        """The model's next message; ``ModelCallError`` where its endpoint fails."""
        seen = [message for message in messages if agent_sees(message)]
        if not any(message.role == "user" for message in seen):
            seen.insert(0, Message(role="user", content=OPENING))
        prompt = Prompt(self._scene.system, seen, self._scene.tools)
        return self._spoken(await self._voice.ask(prompt, purpose="reply"))

    def trace(self) -> None:
        """The tokens of a hosted model are its own."""

    def _spoken(self, completion: Completion) -> Message:
        first = self._num_calls
        self._num_calls += len(completion.tool_calls)
        calls = tuple(
            call.model_copy(update={"id": f"call_{number}"})
            for number, call in enumerate(completion.tool_calls, first)
        )
        content = completion.content or None
        return Message(role="assistant", content=content, tool_calls=calls or None)


def agent_sees(message: Message) -> bool:
    """Whether an agent reads a message: what users do on their own devices stays with them."""
    if message.role == "tool":
        return message.requestor == "assistant"
    return message.role != "user" or not message.tool_calls


class PolicySpeaker(NamedTuple):
    """A policy that is asked as a hosted model is; each question is read from the start."""

    actor: Actor
    task: Task
    label: str

    @property
    def name(self) -> str:
        """Which policy it is."""
        return self.label

    async def reply(self, prompt: Prompt, *, seed: int) -> Reply:
        """What the policy writes; ``ModelCallError`` where the prompt is too long for it."""
        scene = Scene(self.task, prompt.system, prompt.tools, solo=False, seed=seed)
        agent = self.actor.join(scene)
        try:
            message = await agent.act(prompt.messages)
        except ContextFullError as error:
            raise ModelCallError(f"the policy cannot play the user: {error}") from error
        trace = agent.trace()
        written = len(trace.logprobs) if trace else 0
        completion = Completion(
            content=message.content or "",
            tool_calls=message.tool_calls or (),
            input_tokens=len(trace.ids) - written if trace else 0,
            output_tokens=written,
        )
        return Reply(completion, prompt.digest(model=self.label, seed=seed))


def policy_as_user(actor: Actor, label: str) -> Callable[[Task], Speaker]:
    """Makes the policy behind ``actor`` speak for the users of tasks."""
    return lambda task: PolicySpeaker(actor, task, label)
