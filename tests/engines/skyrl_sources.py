"""Where SkyRL's generator gets its tokens from in tests: a script, or a real policy."""
# pyright: basic, reportMissingImports=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_cl.cli import main
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.sampler import Completion, Request
from tiny_policies import SIZES, byte_tokenizer

CONTEXT = 32768


class Source:
    """The part of SkyRL's inference client that its generator uses."""

    model_name = "test"
    weight_version = 0

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.written: dict[str, list[list[int]]] = {}
        self.logprobs: dict[str, list[float]] = {}

    def write(self, session: str, prompt: list[int]) -> Completion:
        raise NotImplementedError

    async def generate(self, request: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        (prompt,), (session,) = request["prompt_token_ids"], request["session_ids"]
        reply = self.write(session, prompt)
        self.written.setdefault(session, []).append(list(reply.ids))
        self.logprobs.setdefault(session, []).extend(reply.logprobs)
        return {
            "responses": [self.tokenizer.decode(reply.ids, skip_special_tokens=True)],
            "response_ids": [list(reply.ids)],
            "stop_reasons": [reply.reason],
            "response_logprobs": [list(reply.logprobs)],
        }

    async def finish_session(self, session: str) -> None:
        """Nothing is kept for a session."""


class Script(Source):
    """Writes given texts, each a reply of its session."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, texts: Callable[[str], list[str]]):
        super().__init__(tokenizer)
        self._texts = texts

    def write(self, session: str, prompt: list[int]) -> Completion:
        text = self._texts(session)[len(self.written.get(session, []))]
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        return Completion(0, ids, [-0.5] * len(ids), "stop")


class Policy(Source):
    """Writes what a policy of random weights draws, token by token."""

    def __init__(self, *, max_new_tokens: int) -> None:
        super().__init__(byte_tokenizer())
        torch.manual_seed(7)
        sizes = {**SIZES, "max_position_embeddings": CONTEXT}
        module = LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).eval()
        self._sampler = TransformersSampler(module, context=CONTEXT, slots=4, device="cpu")
        self._max_new_tokens = max_new_tokens
        self._asked = 0
        self._end: Any = self.tokenizer.eos_token_id

    def write(self, session: str, prompt: list[int]) -> Completion:
        self._asked += 1
        request = Request(
            id=self._asked,
            sequence=self._asked,
            append=prompt,
            max_new_tokens=self._max_new_tokens,
            temperature=1.0,
            top_p=1.0,
            stop_ids=(self._end,),
            seed=self._asked,
        )
        self._sampler.submit([request])
        found: list[Completion] = []
        while not found:
            found = self._sampler.poll()
        self._sampler.release(self._asked)
        return found[0]


def tables(folder: Path, *arguments: str) -> Path:
    """What ``prepare-data`` writes for training."""
    assert main(["prepare-data", "--output_dir", str(folder), *arguments]) == 0
    return folder / "train.parquet"
