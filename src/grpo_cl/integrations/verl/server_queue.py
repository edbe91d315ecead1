"""Request queue that samples replies on verl's token server."""

import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from grpo_cl.errors import ConfigError, ContextFullError
from grpo_cl.policy.inference.policy_agent import RequestQueue
from grpo_cl.policy.inference.sampler import GenerationRequest, TokenCompletion
from grpo_cl.rollout import MIN_REPLY


class TokenLimits(NamedTuple):
    """verl's token limits of an episode."""

    prompt: int
    response: int


class _UnusedSampler:
    """Placeholder for a local sampler; ``ServerRequestQueue`` checks the context length."""

    context = sys.maxsize

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        raise AssertionError(f"verl's server answers {list(requests)}")

    def poll(self) -> list[TokenCompletion]:
        raise AssertionError("verl's server answers the requests")

    def release(self, sequence: int) -> None:
        """Nothing to release: the server manages its KV cache."""


class ServerRequestQueue(RequestQueue):
    """Sends each generation request of an episode to verl's server."""

    def __init__(self, server: Any, params: Mapping[str, Any], limits: TokenLimits) -> None:
        super().__init__(_UnusedSampler())
        self.generation_s = 0.0
        self.steps: list[int] = []
        """Global steps of the weights that sampled the replies, if the server reports them."""
        self._server = server
        self._params = params
        self._limits = limits
        self._ids: dict[int, list[int]] = {}
        self._prompt_lengths: dict[int, int] = {}
        self._request_id = uuid.uuid4().hex  # routes to the replica that has the KV cache

    @override
    async def generate(self, request: GenerationRequest) -> TokenCompletion:
        """Wait for the reply; raises ``ContextFullError`` if no tokens are left for one."""
        prompt_ids = [*self._ids.get(request.sequence, ()), *request.append]
        max_tokens = self._tokens_left(request, len(prompt_ids))
        params = {
            **self._params,
            "max_tokens": min(max_tokens, request.max_new_tokens),
            "stop_token_ids": list(request.stop_ids),
        }
        started = time.monotonic()
        output = await self._server.generate(
            request_id=self._request_id, prompt_ids=prompt_ids, sampling_params=params
        )
        self.generation_s += time.monotonic() - started
        self.steps += _reported_steps(output.extra_fields)
        reply_ids = list(output.token_ids)
        self._ids[request.sequence] = [*prompt_ids, *reply_ids]
        logprobs = output.log_probs or [0.0] * len(reply_ids)
        is_complete = bool(reply_ids) and reply_ids[-1] in request.stop_ids
        return TokenCompletion(
            request.id, reply_ids, list(logprobs), "stop" if is_complete else "length"
        )

    def _tokens_left(self, request: GenerationRequest, count: int) -> int:
        """Tokens left for a reply after ``count`` tokens."""
        prompt = self._prompt_lengths.setdefault(request.sequence, count)
        if prompt > self._limits.prompt:
            raise ConfigError(
                f"the prompt has {prompt} tokens; verl would truncate it to data.max_prompt_length="
                f"{self._limits.prompt}. Raise that to {prompt} or more"
            )
        left = prompt + self._limits.response - count
        if left < min(MIN_REPLY, request.max_new_tokens):
            raise ContextFullError(f"{left} of {self._limits.response} response tokens are left")
        return left


def _reported_steps(fields: Mapping[str, Any]) -> Sequence[int]:
    steps = (fields.get("min_global_steps"), fields.get("max_global_steps"))
    return [step for step in steps if step is not None]
