"""Orders in, answers out: what the routes of the server do."""

import asyncio
from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Any

from grpo_cl.policy.sampler import Completion
from grpo_cl.policy.tabular import TabularChat
from grpo_cl.serve.conversations import Conversations, read_chat
from grpo_cl.serve.orders import ChatOrder, Order, RequestError, TextOrder
from grpo_cl.serve.replies import Reply, chat_reply, cut, numbered, text_reply
from grpo_cl.serve.scribe import Prompt, Scribe


class Service:
    """Answers requests for replies; everything but the writing happens in the caller's loop."""

    def __init__(self, scribe: Scribe, *, rng: Random) -> None:
        self.scribe = scribe
        self._rng = rng
        self._model = scribe.weights.voices.model

    @cached_property
    def _conversations(self) -> Conversations:
        if isinstance(self._model.chat, TabularChat):
            raise RequestError("the tabular policy has no chat; use /v1/completions")
        return Conversations(self._model.chat)

    async def complete(self, order: TextOrder) -> dict[str, Any]:
        """An answer of ``/v1/completions``."""
        ids = self._ids(order.prompt)
        stops = () if order.ignore_eos else self._model.chat.stop_ids
        prompt = self._prompt(order, ids, stops)
        scores = None
        if order.prompt_logprobs is not None:
            scores = await self._await(self.scribe.score(prompt.voice, ids))
        completion = await self._await(self.scribe.write(prompt))
        shown = self._plain(completion.ids, prompt.stop_ids)
        completion, text = self._cut(order, completion, shown)
        reply = self._reply(order, prompt, completion, shows_logprobs=order.logprobs is not None)
        return text_reply(reply, text, self._decode, scores)

    async def chat(self, order: ChatOrder) -> dict[str, Any]:
        """An answer of ``/v1/chat/completions``."""
        chat = read_chat(order)
        prompt = self._prompt(order, self._conversations.prompt(chat), self._model.chat.stop_ids)
        completion = await self._await(self.scribe.write(prompt))
        completion, _ = self._cut(order, completion, completion.ids)
        message = numbered(self._model.chat.read(completion.ids))
        has_ended = completion.ids[-1] in self._model.chat.stop_ids
        self._conversations.remember(
            chat, message, [*prompt.ids, *completion.ids], has_ended=has_ended
        )
        reply = self._reply(order, prompt, completion, shows_logprobs=bool(order.logprobs))
        return chat_reply(reply, message, self._decode)

    async def _await(self, work: Any) -> Any:
        """What the scribe's thread makes of ``work``; given up with the request."""
        try:
            return await asyncio.wrap_future(self.scribe.send(work))
        except FloatingPointError as error:
            raise RequestError(str(error), status=500) from error

    def _prompt(self, order: Order, ids: Sequence[int], stop_ids: Sequence[int]) -> Prompt:
        weights = self.scribe.weights
        voice = order.model or weights.voices.name
        weights.require(voice)
        room = self._model.context - len(ids)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(ids)} tokens and a maximum context length of "
                f"{self._model.context} leaves no room for a reply; shorten it",
                code="context_length_exceeded",
            )
        wanted = order.max_completion_tokens or order.max_tokens or room
        return Prompt(
            voice=voice,
            ids=ids,
            max_new_tokens=min(wanted, room),
            temperature=1.0 if order.temperature is None else order.temperature,
            top_p=order.top_p or 1.0,
            stop_ids=(*stop_ids, *(order.stop_token_ids or ())),
            seed=self._rng.getrandbits(63) if order.seed is None else order.seed,
        )

    def _ids(self, given: str | list[int] | list[list[int]]) -> list[int]:
        if isinstance(given, str):
            return [int(one) for one in self._model.tokenizer(given)["input_ids"]]
        rows = [row for row in given if isinstance(row, list)] or [
            [one for one in given if isinstance(one, int)]
        ]
        if len(rows) != 1:
            raise RequestError(f"{len(rows)} prompts in one request; send one request for each")
        size = len(self._model.tokenizer)
        wrong = next((one for one in rows[0] if not 0 <= one < size), None)
        if wrong is not None or not rows[0]:
            raise RequestError(f"a prompt has one or more token ids from 0 to {size - 1}")
        return rows[0]

    def _plain(self, ids: Sequence[int], stop_ids: Sequence[int]) -> Sequence[int]:
        """The ids whose text is shown: a stop token ends a reply and is not part of its text."""
        return ids[:-1] if ids and ids[-1] in stop_ids else ids

    def _cut(
        self, order: Order, completion: Completion, shown: Sequence[int]
    ) -> tuple[Completion, str]:
        found = cut(shown, order.stops, self._decode) if order.stops else None
        if found is None:
            return completion, self._decode(shown)
        count, text = found
        kept, logprobs = completion.ids[:count], completion.logprobs[:count]
        return completion._replace(ids=kept, logprobs=logprobs, reason="stop"), text

    def _reply(
        self, order: Order, prompt: Prompt, completion: Completion, *, shows_logprobs: bool
    ) -> Reply:
        return Reply(
            model=prompt.voice,
            version=self.scribe.weights.version,
            prompt_ids=prompt.ids,
            ids=completion.ids,
            logprobs=completion.logprobs,
            reason=completion.reason,
            shows_ids=order.return_token_ids,
            shows_logprobs=shows_logprobs,
        )

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._model.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)
