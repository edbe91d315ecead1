"""A real server in a thread on loopback, over an in-memory policy."""

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
from grpo_cl.policy.inference.adapter_pool import AdapterPool
from grpo_cl.policy.inference.server_client import ServerPool
from grpo_cl.policy.inference.server_sampler import ServerSampler
from grpo_cl.policy.inference.weight_sync import WeightPublisher
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.loading import ModelSource
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.serving.app import AccessRules, make_app
from grpo_cl.serving.generation_worker import GenerationWorker
from grpo_cl.serving.process import BindAddress, HttpServer
from grpo_cl.serving.service import Service
from grpo_cl.serving.weights import ServedWeights

NAME = "policy"
MAX_BODY = 1 << 16


class Served(NamedTuple):
    url: str
    weights: ServedWeights
    worker: GenerationWorker
    server: HttpServer
    thread: threading.Thread

    def kill(self) -> None:
        """Stop without answering running requests."""
        self.server.force_exit = True
        self.server.stop()
        self.thread.join()


@contextmanager
def served(
    model: PolicyModel,
    config: GRPOConfig,
    *,
    slots: int = 4,
    folders: Sequence[Path] = (),
    api_key: str | None = None,
    max_body: int = MAX_BODY,
) -> Generator[Served]:
    weights = ServedWeights(AdapterPool(model, config, NAME), folders)
    worker = GenerationWorker(weights, slots=slots)
    with serve_worker(worker, api_key=api_key, max_body=max_body) as server:
        yield server


@contextmanager
def serve_worker(
    worker: GenerationWorker, *, api_key: str | None = None, max_body: int = MAX_BODY
) -> Generator[Served]:
    app = make_app(Service(worker, rng=Random(0)), AccessRules(api_key, max_body))
    listener = BindAddress("127.0.0.1", 0).listen()
    server = HttpServer(app)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    while not server.started:
        time.sleep(0.005)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield Served(url, worker.weights, worker, server, thread)
    finally:
        server.stop()
        thread.join()
        worker.close()
        listener.close()


def word_policy(module: torch.nn.Module, **settings: Any) -> tuple[PolicyModel, GRPOConfig]:
    """A policy around a module of ``architectures`` with a word tokenizer."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), pad_token="w0"
    )
    defaults = {"kl_coef": 0.0, "model_dtype": "float32", "temperature": 1.0}
    config = GRPOConfig.model_validate(defaults | settings)
    untyped: Any = module
    return PolicyModel.build(untyped, tokenizer, ModelSource("random", "random"), config), config


@contextmanager
def remote_sampler(
    module: torch.nn.Module, *, slots: int = 4, context: int = CONTEXT
) -> Generator[ServerSampler]:
    """A sampler over a server with its own copy of the module, which another thread uses."""
    settings = {"sampling": {"max_context": context}}
    model, config = word_policy(copy.deepcopy(module), **settings)
    with served(model, config, slots=slots) as server:
        pool = ServerPool([server.url])
        pool.open()
        publisher = WeightPublisher(pool, config, DistributedContext())
        engine = ServerSampler(pool, publisher, context=pool.context, vocabulary=VOCABULARY)
        try:
            yield engine
        finally:
            engine.close()
