"""Inference clients for SkyRL's generator in tests: scripted replies or a real policy."""
# pyright: basic, reportMissingImports=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_cl.cli import main
from grpo_cl.policy.inference.sampler import GenerationRequest, TokenCompletion
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from tiny_policies import SIZES, byte_tokenizer

CONTEXT = 32768


class InferenceClient:
    """The part of SkyRL's inference client that its generator uses."""

    model_name = "test"
    weight_version = 0

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.replies: dict[str, list[list[int]]] = {}
        self.logprobs: dict[str, list[float]] = {}

    def sample(self, session: str, prompt: list[int]) -> TokenCompletion:
        raise NotImplementedError

    async def generate(self, request: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        (prompt,), (session,) = request["prompt_token_ids"], request["session_ids"]
        reply = self.sample(session, prompt)
        self.replies.setdefault(session, []).append(list(reply.ids))
        self.logprobs.setdefault(session, []).extend(reply.logprobs)
        return {
            "responses": [self.tokenizer.decode(reply.ids, skip_special_tokens=True)],
            "response_ids": [list(reply.ids)],
            "stop_reasons": [reply.reason],
            "response_logprobs": [list(reply.logprobs)],
        }

    async def finish_session(self, session: str) -> None:
        """Nothing to release."""


class ScriptedClient(InferenceClient):
    """Returns scripted texts, one per reply of a session."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, texts: Callable[[str], list[str]]):
        super().__init__(tokenizer)
        self._texts = texts

    def sample(self, session: str, prompt: list[int]) -> TokenCompletion:
        text = self._texts(session)[len(self.replies.get(session, []))]
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        return TokenCompletion(0, ids, [-0.5] * len(ids), "stop")


class PolicyClient(InferenceClient):
    """Samples from a policy with random weights."""

    def __init__(self, *, max_new_tokens: int) -> None:
        super().__init__(byte_tokenizer())
        torch.manual_seed(7)
        sizes = {**SIZES, "max_position_embeddings": CONTEXT}
        module = LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).eval()
        self._sampler = TransformersSampler(module, context=CONTEXT, slots=4, device="cpu")
        self._max_new_tokens = max_new_tokens
        self._num_requests = 0
        self._end: Any = self.tokenizer.eos_token_id

    def sample(self, session: str, prompt: list[int]) -> TokenCompletion:
        self._num_requests += 1
        request = GenerationRequest(
            id=self._num_requests,
            sequence=self._num_requests,
            append=prompt,
            max_new_tokens=self._max_new_tokens,
            temperature=1.0,
            top_p=1.0,
            stop_ids=(self._end,),
            seed=self._num_requests,
        )
        self._sampler.submit([request])
        completions: list[TokenCompletion] = []
        while not completions:
            completions = self._sampler.poll()
        self._sampler.release(self._num_requests)
        return completions[0]


def training_table(folder: Path, *arguments: str) -> Path:
    """The training file that ``prepare-data`` writes."""
    assert main(["prepare-data", "--output_dir", str(folder), *arguments]) == 0
    return folder / "train.parquet"
