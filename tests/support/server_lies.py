"""Answers that no rollout server can give, by name, and a sampler over servers that give them."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from architectures import CONTEXT, VOCABULARY, built, llama
from grpo_cl.policy.inference.server_client import Patience, ServerPool
from grpo_cl.policy.inference.server_sampler import ServerSampler
from grpo_cl.policy.inference.weight_sync import WeightPublisher
from grpo_cl.policy.model.distributed import DistributedContext
from lying_server import Answer, HungError, Lie, RefusedError
from serving import word_policy

QUICK = Patience(retry_delays_s=(0.001, 0.001, 0.001))


def honest(body: Any, answer: Answer) -> Answer:
    del body
    return answer


def changed(**fields: Any) -> Callable[[Any, Answer], Answer]:
    """A lie about fields of the choice."""

    def lie(body: Any, answer: Answer) -> Answer:
        del body
        return answer | {"choices": [answer["choices"][0] | fields]}

    return lie


def sampled(*ids: Any, **fields: Any) -> Callable[[Any, Answer], Answer]:
    """A lie about the tokens; each has a log-prob."""
    return changed(token_ids=list(ids), logprobs={"token_logprobs": [-1.0] * len(ids)}, **fields)


def scored(*logprobs: Any) -> Callable[[Any, Answer], Answer]:
    """A lie about the log-probs of the six tokens."""
    return changed(logprobs={"token_logprobs": [*logprobs, *[-1.0] * (6 - len(logprobs))]})


def sent(answer: object) -> Callable[[Any, Answer], object]:
    return lambda body, good: answer


def refused(body: Any, answer: Answer) -> Answer:
    raise RefusedError


def hung(body: Any, answer: Answer) -> Answer:
    raise HungError


@contextmanager
def sampling(urls: Sequence[str], patience: Patience = QUICK) -> Generator[ServerSampler]:
    pool = ServerPool(urls, patience=patience)
    pool.open()
    config = word_policy(built(llama))[1]
    publisher = WeightPublisher(pool, config, DistributedContext())
    engine = ServerSampler(pool, publisher, context=CONTEXT, vocabulary=VOCABULARY)
    try:
        yield engine
    finally:
        engine.close()


LIES: dict[str, tuple[Lie, str]] = {
    "nothing": (sent(b""), "does not return JSON"),
    "html": (sent(b"<html>"), "does not return JSON"),
    "deep": (sent(b"[" * 100_000), "does not return JSON"),
    "null": (sent(None), "invalid answer"),
    "list": (sent([]), "invalid answer"),
    "object": (sent({}), "choices: Field required"),
    "no choice": (sent({"choices": []}), "choices: List should have at least 1 item"),
    "empty choice": (sent({"choices": [{}]}), "Field required"),
    "refusal": (refused, "/v1/completions answers 404"),
    "no tokens": (sampled(), "token_ids: List should have at least 1 item"),
    "no ids": (changed(token_ids=None), "token_ids: Input should be a valid list"),
    "text ids": (sampled("7"), "token_ids.0: Input should be a valid integer"),
    "negative id": (sampled(7, -1), "token_ids.1: Input should be greater than or equal to 0"),
    "id beyond the vocabulary": (sampled(7, 50), "token 50 and the vocabulary has 50 tokens"),
    "huge id": (sampled(10**30), "the vocabulary has 50 tokens"),
    "too many tokens": (sampled(*[7] * 300), "returns 300 tokens and max_tokens was 6"),
    "too many bytes": (sent(b" " * (1 << 21)), "returns more than"),
    "fewer log-probs": (changed(token_ids=[7] * 5), "5 tokens with 6 log-probs"),
    "no log-probs": (changed(logprobs=None), "logprobs: Input should be"),
    "log-prob above 0": (scored(0.5), "token_logprobs.0: Input should be less than or equal to"),
    "log-prob of minus infinity": (scored(-1.0, -math.inf), "token_logprobs.1: Input should be"),
    "log-prob of vLLM's minus infinity": (scored(-9999.0), "token_logprobs.0: Input should be"),
    "log-prob that is no number": (scored(math.nan), "token_logprobs.0: Input should be"),
    "log-prob that is missing": (scored(None), "token_logprobs.0: Input should be"),
    "other stop token": (sampled(7, 8, finish_reason="stop"), "token 8, which is no stop token"),
    "on after a stop token": (sampled(9, 7), "goes on after a stop token"),
    "aborts": (changed(finish_reason="abort"), "it aborted a request"),
}
"""Lies, with what is said of the server that tells one."""
