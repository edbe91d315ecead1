"""The completion endpoints: request to prompt, generation, response."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from random import Random
from typing import Any, TypeVar

from grpo_cl.envs.base import DONE
from grpo_cl.errors import TrainingError
from grpo_cl.policy.inference.sampler import TokenCompletion
from grpo_cl.policy.model.tabular import TabularChat
from grpo_cl.serving.chat_tokens import ChatHistory, ChatTokenCache, read_chat
from grpo_cl.serving.generation_worker import GenerationPrompt, GenerationWorker
from grpo_cl.serving.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    RequestError,
    TextCompletionRequest,
)
from grpo_cl.serving.responses import (
    GeneratedReply,
    chat_response,
    find_stop,
    text_response,
    with_unique_call_ids,
)
from grpo_cl.serving.structured_outputs import SchemaConstraint, schema_pattern
from grpo_cl.types import Message, ToolCall

T = TypeVar("T")

BODY_BYTES_PER_TOKEN = 32
"""Bytes of a request's body per token of the context. Text has about four characters per token; the
rest is for JSON. A longer body cannot fit and would cost seconds of tokenizing to find out."""
BODY_ALLOWANCE = 1 << 16
"""Further bytes of a body, for options and tool schemas."""


class Service:
    """Serves completion requests.

    Generation runs in the worker's thread and tokenizing in one of its own, since tokenizers and
    chat templates are not thread-safe; the event loop stays free for other requests.
    """

    def __init__(self, worker: GenerationWorker, *, rng: Random) -> None:
        self.worker = worker
        self._rng = rng
        self._model = worker.weights.pool.model
        self._tokenizing = ThreadPoolExecutor(1, "grpo-cl tokenizer")
        self.max_body: int = BODY_ALLOWANCE + BODY_BYTES_PER_TOKEN * self._model.context
        """Most bytes of the body of a completion request."""

    @cached_property
    def _chats(self) -> ChatTokenCache:
        return ChatTokenCache(self._model.chat)

    async def complete(self, request: TextCompletionRequest) -> dict[str, Any]:
        """The response of ``/v1/completions``."""
        prompt = await self._tokenize(lambda: self._text_prompt(request))
        scores = None
        if request.prompt_logprobs is not None:
            scores = await self._run(self.worker.score(prompt.model, prompt.ids))
        completion = await self._run(self.worker.generate(prompt))
        return await self._tokenize(
            lambda: self._text_response(request, prompt, completion, scores)
        )

    async def chat(self, request: ChatCompletionRequest) -> dict[str, Any]:
        """The response of ``/v1/chat/completions``."""
        chat, prompt = await self._tokenize(lambda: self._chat_prompt(request))
        if isinstance(self._model.chat, TabularChat) and chat.has_reply:
            return self._end_response(request, prompt)
        completion = await self._run(self.worker.generate(prompt))
        return await self._tokenize(lambda: self._chat_response(request, chat, prompt, completion))

    async def _tokenize(self, work: Callable[[], T]) -> T:
        """The result of ``work`` in the tokenizer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work)

    def _text_prompt(self, request: TextCompletionRequest) -> GenerationPrompt:
        self.worker.weights.require(self._model_name(request))
        stop_ids = () if request.ignore_eos else self._model.chat.stop_ids
        return self._prompt(request, self._ids(request.prompt), stop_ids)

    def _chat_prompt(self, request: ChatCompletionRequest) -> tuple[ChatHistory, GenerationPrompt]:
        self.worker.weights.require(self._model_name(request))
        chat = read_chat(request)
        constraint = self._constraint(request)
        ids = self._chats.prompt(chat)
        prompt = self._prompt(request, ids, self._model.chat.stop_ids)
        return chat, prompt._replace(constraint=constraint)

    def _constraint(self, request: ChatCompletionRequest) -> SchemaConstraint | None:
        """What the reply's tokens are restricted to by ``response_format``."""
        schema = request.response_format and request.response_format.schema_of_reply
        if schema is None:
            return None
        pattern = schema_pattern(schema)
        stop_ids = (*self._model.chat.stop_ids, *(request.stop_token_ids or ()))
        return SchemaConstraint(pattern, self._decode_text, stop_ids)

    @cached_property
    def _decode_text(self) -> Callable[[Sequence[int]], str]:
        """Decodes without special tokens in the worker's thread, with a tokenizer of its own."""
        tokenizer = copy.deepcopy(self._model.tokenizer)

        def decode(ids: Sequence[int]) -> str:
            text = tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            return str(text)

        return decode

    def _text_response(
        self,
        request: TextCompletionRequest,
        prompt: GenerationPrompt,
        completion: TokenCompletion,
        scores: Sequence[float] | None,
    ) -> dict[str, Any]:
        text_ids = self._without_stop(completion.ids, prompt.stop_ids)
        completion, text = self._apply_stop_strings(request, completion, text_ids)
        reply = self._reply(request, prompt, completion, has_logprobs=request.logprobs is not None)
        return text_response(reply, text, self._decode, scores)

    def _chat_response(
        self,
        request: ChatCompletionRequest,
        chat: ChatHistory,
        prompt: GenerationPrompt,
        completion: TokenCompletion,
    ) -> dict[str, Any]:
        completion, _ = self._apply_stop_strings(request, completion, completion.ids)
        message = with_unique_call_ids(self._model.chat.parse_reply(completion.ids))
        has_ended = completion.ids[-1] in self._model.chat.stop_ids
        self._chats.store(chat, message, [*prompt.ids, *completion.ids], has_ended=has_ended)
        reply = self._reply(request, prompt, completion, has_logprobs=bool(request.logprobs))
        return chat_response(reply, message, self._decode)

    def _end_response(
        self, request: ChatCompletionRequest, prompt: GenerationPrompt
    ) -> dict[str, Any]:
        """The end of an episode, which the tabular policy does not sample."""
        message = Message(role="assistant", tool_calls=(ToolCall(name=DONE),))
        nothing = TokenCompletion(id=0, ids=[], logprobs=[], reason="stop")
        reply = self._reply(request, prompt, nothing, has_logprobs=bool(request.logprobs))
        return chat_response(reply, with_unique_call_ids(message), self._decode)

    def _model_name(self, request: CompletionRequest) -> str:
        return request.model or self.worker.weights.pool.name

    async def _run(self, coroutine: Any) -> Any:
        """The result of ``coroutine`` in the worker's thread; cancelled with the request."""
        try:
            return await asyncio.wrap_future(self.worker.submit(coroutine))
        except TrainingError as error:
            raise RequestError(str(error), status=500) from error

    def _prompt(
        self, request: CompletionRequest, ids: Sequence[int], stop_ids: Sequence[int]
    ) -> GenerationPrompt:
        size = len(self._model.tokenizer)
        if any(not 0 <= token < size for token in request.stop_token_ids or ()):
            raise RequestError(f"stop_token_ids are from 0 to {size - 1}", param="stop_token_ids")
        if not ids:
            raise RequestError("the prompt is empty; it has at least one token", param="prompt")
        room = self._model.context - len(ids)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(ids)} tokens and a maximum context length of "
                f"{self._model.context} leaves no room for a reply; shorten it",
                code="context_length_exceeded",
            )
        max_tokens = request.max_completion_tokens or request.max_tokens or room
        return GenerationPrompt(
            model=self._model_name(request),
            ids=ids,
            max_new_tokens=min(max_tokens, room),
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=request.top_p or 1.0,
            stop_ids=(*stop_ids, *(request.stop_token_ids or ())),
            seed=self._rng.getrandbits(63) if request.seed is None else request.seed,
        )

    def _ids(self, prompt: str | list[int] | list[list[int]]) -> list[int]:
        if isinstance(prompt, str):
            return [int(token) for token in self._model.tokenizer(prompt)["input_ids"]]
        rows = [row for row in prompt if isinstance(row, list)] or [
            [token for token in prompt if isinstance(token, int)]
        ]
        if len(rows) != 1:
            raise RequestError(f"{len(rows)} prompts in one request; send one request for each")
        size = len(self._model.tokenizer)
        if not rows[0] or any(not 0 <= token < size for token in rows[0]):
            raise RequestError(f"a prompt has one or more token ids from 0 to {size - 1}")
        return rows[0]

    def _without_stop(self, ids: Sequence[int], stop_ids: Sequence[int]) -> Sequence[int]:
        """The ids without a final stop token, which is not part of the text."""
        return ids[:-1] if ids and ids[-1] in stop_ids else ids

    def _apply_stop_strings(
        self, request: CompletionRequest, completion: TokenCompletion, ids: Sequence[int]
    ) -> tuple[TokenCompletion, str]:
        """The completion up to its first stop string, and its text."""
        stop_strings = request.stop_strings
        stop = find_stop(ids, stop_strings, self._decode) if stop_strings else None
        if stop is None:
            return completion, self._decode(ids)
        count, text = stop
        kept, logprobs = completion.ids[:count], completion.logprobs[:count]
        return completion._replace(ids=kept, logprobs=logprobs, reason="stop"), text

    def _reply(
        self,
        request: CompletionRequest,
        prompt: GenerationPrompt,
        completion: TokenCompletion,
        *,
        has_logprobs: bool,
    ) -> GeneratedReply:
        return GeneratedReply(
            model=prompt.model,
            version=self.worker.weights.version,
            prompt_ids=prompt.ids,
            ids=completion.ids,
            logprobs=completion.logprobs,
            finish_reason=completion.reason,
            num_cached=completion.num_cached,
            has_ids=request.return_token_ids,
            has_logprobs=has_logprobs,
        )

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._model.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)
