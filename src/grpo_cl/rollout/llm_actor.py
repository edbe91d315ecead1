"""LLM roles in an episode: a hosted model as the agent, and the policy as the user simulator."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpo_cl.errors import ContextFullError, ModelCallError
from grpo_cl.llm import ChatModel, ChatSession, Completion, Prompt, Reply
from grpo_cl.rollout.episode import Actor, Scene
from grpo_cl.types import Message, Task, Trajectory, number_calls

OPENING = "(The ticket is above.)"
"""The first user message in solo mode: endpoints reject conversations without one."""


class HostedActor:
    """A model behind an API as the agent of many episodes."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._sessions: dict[tuple[str, int], ChatSession] = {}

    def join(self, scene: Scene) -> "HostedAgent":
        """An agent for one episode."""
        session = ChatSession(self._model, role="agent", seed=scene.seed)
        self._sessions[scene.task.id, scene.seed] = session
        return HostedAgent(scene, session)

    def with_calls(self, trajectory: Trajectory) -> Trajectory:
        """A trajectory of this actor with the agent's model calls added to the user's."""
        session = self._sessions.pop((trajectory.task.id, trajectory.seed))
        calls = (*session.calls, *trajectory.model_calls)
        return trajectory.model_copy(update={"model_calls": calls})


class HostedAgent:
    """A model behind an API as the agent of one episode."""

    def __init__(self, scene: Scene, session: ChatSession) -> None:
        self._scene = scene
        self._session = session
        self._num_calls = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        """The model's next message; ``ModelCallError`` if its endpoint fails."""
        visible = [message for message in messages if message.is_visible_to_agent]
        if not any(message.role == "user" for message in visible):
            visible.insert(0, Message(role="user", content=OPENING))
        prompt = Prompt(self._scene.system, visible, self._scene.tools)
        return self._to_message(await self._session.ask(prompt, purpose="reply"))

    def trace(self) -> None:
        """None: the API does not return token ids."""

    def _to_message(self, completion: Completion) -> Message:
        calls = number_calls(completion.tool_calls, self._num_calls)
        self._num_calls += len(calls)
        content = completion.content or None
        return Message(role="assistant", content=content, tool_calls=calls or None)


class PolicyChatModel(NamedTuple):
    """The policy as a chat model; each prompt is prefilled from its first token."""

    actor: Actor
    task: Task
    label: str

    @property
    def name(self) -> str:
        """The policy's name in results."""
        return self.label

    async def reply(self, prompt: Prompt, *, seed: int) -> Reply:
        """The policy's reply; ``ModelCallError`` if the prompt exceeds its context."""
        scene = Scene(self.task, prompt.system, prompt.tools, solo=False, seed=seed)
        agent = self.actor.join(scene)
        try:
            message = await agent.act(prompt.messages)
        except ContextFullError as error:
            raise ModelCallError(f"the policy cannot play the user: {error}") from error
        trace = agent.trace()
        output_tokens = len(trace.logprobs) if trace else 0
        completion = Completion(
            content=message.content or "",
            tool_calls=message.tool_calls or (),
            input_tokens=len(trace.ids) - output_tokens if trace else 0,
            output_tokens=output_tokens,
        )
        return Reply(completion, prompt.digest(model=self.label, seed=seed))

    def forget(self, digest: str) -> None:
        """Nothing: the policy's replies are not cached."""


def policy_as_user(actor: Actor, label: str) -> Callable[[Task], ChatModel]:
    """A function that returns the policy of ``actor`` as the user simulator's model for a task."""
    return lambda task: PolicyChatModel(actor, task, label)
