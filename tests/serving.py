"""A real server in a thread on loopback, over a policy in memory."""

import asyncio
import copy
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from architectures import CONTEXT, VOCABULARY
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.loading import Source
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.publishing import Publisher
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.remote import RemoteSampler
from grpo_cl.policy.servers import Fleet
from grpo_cl.policy.voices import Voices
from grpo_cl.serve.app import Rules, make_app
from grpo_cl.serve.process import Address, HttpServer
from grpo_cl.serve.scribe import Scribe
from grpo_cl.serve.service import Service
from grpo_cl.serve.weights import Weights

NAME = "policy"
MAX_BODY = 1 << 16


class Served(NamedTuple):
    url: str
    weights: Weights
    scribe: Scribe
    server: HttpServer
    thread: threading.Thread

    def kill(self) -> None:
        """End it with requests under way unanswered."""
        self.server.force_exit = True
        self.server.end()
        self.thread.join()


@contextmanager
def served(
    model: PolicyModel,
    config: GRPOConfig,
    *,
    slots: int = 4,
    folders: Sequence[Path] = (),
    api_key: str | None = None,
) -> Generator[Served]:
    weights = Weights(Voices(model, config, NAME), folders)
    with serve_scribe(Scribe(weights, slots=slots), api_key=api_key) as server:
        yield server


@contextmanager
def serve_scribe(scribe: Scribe, *, api_key: str | None = None) -> Generator[Served]:
    app = make_app(Service(scribe, rng=Random(0)), Rules(api_key, MAX_BODY))
    listener = Address("127.0.0.1", 0).listen()
    server = HttpServer(app)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    while not server.started:
        time.sleep(0.005)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield Served(url, scribe.weights, scribe, server, thread)
    finally:
        server.end()
        thread.join()
        scribe.close()
        listener.close()


def word_policy(module: torch.nn.Module, **settings: Any) -> tuple[PolicyModel, GRPOConfig]:
    """A policy around a module of ``architectures``, whose tokens are words."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), pad_token="w0"
    )
    defaults = {"kl_coef": 0.0, "model_dtype": "float32", "temperature": 1.0}
    config = GRPOConfig.model_validate(defaults | settings)
    own: Any = module
    return PolicyModel(own, tokenizer, Source("random", "random"), config), config


@contextmanager
def remote_sampler(
    module: torch.nn.Module, *, slots: int = 4, context: int = CONTEXT
) -> Generator[RemoteSampler]:
    """A sampler over a server that has a copy of the module, for two threads want one each."""
    settings = {"sampling": {"max_context": context}}
    model, config = word_policy(copy.deepcopy(module), **settings)
    with served(model, config, slots=slots) as server:
        fleet = Fleet([server.url])
        fleet.open()
        engine = RemoteSampler(fleet, Publisher(fleet, config, Ranks()), context=fleet.context)
        try:
            yield engine
        finally:
            engine.close()
