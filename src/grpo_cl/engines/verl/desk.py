"""Replies from verl's token server: the ids of a whole conversation in, the ids of a reply out."""

import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from grpo_cl.errors import ConfigError, ContextFullError
from grpo_cl.policy.actor import MIN_REPLY, Desk
from grpo_cl.policy.sampler import Completion, Request


class Lengths(NamedTuple):
    """Tokens that verl keeps of an episode."""

    prompt: int
    response: int


class _Elsewhere:
    """Stands where a sampler would; the lengths are the desk's to watch."""

    context = sys.maxsize

    def submit(self, requests: Iterable[Request]) -> None:
        raise AssertionError(f"the server writes the replies to {list(requests)}")

    def poll(self) -> list[Completion]:
        raise AssertionError("the server writes the replies")

    def release(self, sequence: int) -> None:
        """The server's cache is its own affair."""


class ServerDesk(Desk):
    """Asks verl's server for each reply of an episode."""

    def __init__(self, server: Any, params: Mapping[str, Any], lengths: Lengths) -> None:
        super().__init__(_Elsewhere())
        self.generating_s = 0.0
        self.steps: list[int] = []
        """Of the weights that wrote, where the server tells."""
        self._server = server
        self._params = params
        self._lengths = lengths
        self._ids: dict[int, list[int]] = {}
        self._prompts: dict[int, int] = {}
        self._name = uuid.uuid4().hex  # the server keeps to one replica, whose cache has the rest

    @override
    async def reply(self, request: Request) -> Completion:
        """Wait for the reply; ``ContextFullError`` where verl has no room for one."""
        read = [*self._ids.get(request.sequence, ()), *request.append]
        room = self._room(request, len(read))
        params = {
            **self._params,
            "max_tokens": min(room, request.max_new_tokens),
            "stop_token_ids": list(request.stop_ids),
        }
        started = time.monotonic()
        output = await self._server.generate(
            request_id=self._name, prompt_ids=read, sampling_params=params
        )
        self.generating_s += time.monotonic() - started
        self.steps += _told(output.extra_fields)
        written = list(output.token_ids)
        self._ids[request.sequence] = [*read, *written]
        drawn = output.log_probs or [0.0] * len(written)
        has_ended = bool(written) and written[-1] in request.stop_ids
        return Completion(request.id, written, list(drawn), "stop" if has_ended else "length")

    def _room(self, request: Request, count: int) -> int:
        """Tokens left for a reply to a conversation of ``count``."""
        prompt = self._prompts.setdefault(request.sequence, count)
        if prompt > self._lengths.prompt:
            raise ConfigError(
                f"a prompt of {prompt} tokens; verl would cut it to data.max_prompt_length="
                f"{self._lengths.prompt}. Raise that to {prompt} or more"
            )
        room = prompt + self._lengths.response - count
        if room < min(MIN_REPLY, request.max_new_tokens):
            raise ContextFullError(f"{room} of {self._lengths.response} tokens are left to reply")
        return room


def _told(fields: Mapping[str, Any]) -> Sequence[int]:
    steps = (fields.get("min_global_steps"), fields.get("max_global_steps"))
    return [step for step in steps if step is not None]
