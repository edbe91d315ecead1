"""Writers that follow a rule, as agents that play the ``memory`` domain."""

from collections.abc import Sequence

from grpo_cl.memory.baselines import WRITERS, Writer
from grpo_cl.memory.tasks import instance_of
from grpo_cl.registry import pick
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, ToolCall


class WriterActor:
    """A writer in many episodes."""

    def __init__(self, name: str) -> None:
        self._writer = pick(WRITERS, name, "writer")

    def join(self, scene: Scene) -> "WriterAgent":
        """An agent for one episode."""
        return WriterAgent(scene, self._writer)


class WriterAgent:
    """A writer in one episode: a reply for each chunk, in order."""

    def __init__(self, scene: Scene, writer: Writer) -> None:
        self._chunks = iter(instance_of(scene.task).chunks)
        self._writer = writer
        self._num_calls = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        """What the rule does with the next chunk."""
        del messages
        made = self._writer(next(self._chunks))
        first = self._num_calls
        self._num_calls += len(made)
        calls = tuple(
            ToolCall(id=f"call_{number}", name=each.name, arguments=dict(each.arguments))
            for number, each in enumerate(made, first)
        )
        return Message(role="assistant", content=None if calls else "", tool_calls=calls or None)

    def trace(self) -> None:
        """A rule has no tokens."""
