"""A chat format with a vocabulary of a few words."""

from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers

from grpo_cl.rollout import Scene
from grpo_cl.types import Message, ToolCall

SPECIAL = ["<unk>", "<end>", "<system>", "<user>", "<tool>", "<assistant>"]
WORDS = [*SPECIAL, "task", "hello", "please", "error", "result"]
END = 1
MESSAGE = 12


class WordChat:
    """Tokens are words; a reply is two calls of ``tool``, or text if there is none."""

    def __init__(self, tool: str | None = None, stop_ids: tuple[int, ...] = (END,)) -> None:
        numbered = {word: number for number, word in enumerate(WORDS)}
        self.tokenizer = Tokenizer(models.WordLevel(numbered, unk_token="<unk>"))
        self.tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.stop_ids = stop_ids
        self.tool = tool

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[int]:
        return [*self._ids(f"<system> {scene.system}"), *self.continuation(messages, ended=True)]

    def continuation(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        encoded = [self._ids(f"<{m.role}> {m.content}") for m in messages]
        closing = [] if ended else [END]
        return [*closing, *(number for ids in encoded for number in ids), *self._ids("<assistant>")]

    def encode_reply(self, message: Message) -> list[int]:
        return [*self._ids(message.content or ""), END]

    def parse_reply(self, ids: Sequence[int]) -> Message:
        words = self.tokenizer.decode([number for number in ids if number < len(WORDS)])
        if self.tool is None:
            return Message(role="assistant", content=words or "nothing")
        call = ToolCall(id="same", name=self.tool, arguments={"user_id": words})
        return Message(role="assistant", tool_calls=(call, call))

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids[:MESSAGE]
