"""Sampling with an in-process vLLM engine, whose weights are overwritten at each weight sync."""

import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from typing_extensions import override

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.inference.sampler import (
    DeferredRelease,
    GenerationRequest,
    TokenCompletion,
    check_prompt_length,
)
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.logprobs import causal_model
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.weights import full_tensor

MIN_VERSION, END_VERSION = (0, 20), (0, 27)
"""Supported vLLM versions: from the first, up to but not including the second."""
_SUPPORTED = "vllm>={}.{},<{}.{}".format(*MIN_VERSION, *END_VERSION)
MAX_BATCHED_TOKENS = 16384
"""``max_num_batched_tokens``: ``LLMEngine`` defaults to 2048, with which the prefill of a batch of
prompts takes eight times as many steps."""


class VLLMSampler(DeferredRelease):
    """Continuous batching by vLLM.

    The whole sequence is sent with each request; vLLM's prefix cache avoids recomputation, also
    between sequences with a common prefix.
    """

    def __init__(self, model: PolicyModel, config: GRPOConfig, ranks: DistributedContext) -> None:
        super().__init__()
        _require_version()
        _require_settings(config, ranks)
        self.context = model.context
        self._releases_cache = config.sampling.release_cache
        self._is_asleep = False
        self._sequences: dict[int, list[int]] = {}
        self._pending: dict[int, GenerationRequest] = {}
        self._engine = _start(model, config)

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Queue requests; a sequence has at most one unfinished request."""
        self._wake_up()
        with self._busy():
            for request in requests:
                self._add(request)

    def poll(self) -> list[TokenCompletion]:
        """Run vLLM steps until a completion finishes."""
        finished: list[TokenCompletion] = []
        with self._busy():
            while not finished and self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    name = int(output.request_id)
                    if output.finished and name in self._pending:
                        finished.append(self._finish(name, output.outputs[0]))
        return finished

    def sync_weights(self, model: PolicyModel) -> None:
        """Overwrite the engine's weights and reset its prefix cache."""
        self._wake_up()
        worker = self._engine.model_executor.driver_worker.worker
        worker.model_runner.model.load_weights(merged_weights(model.module))
        if not self._engine.reset_prefix_cache():
            raise RuntimeError(
                f"vLLM still has {len(self._pending)} unfinished requests, whose KV cache holds "
                "keys and values of older weights; sync weights between episodes"
            )

    def close(self) -> None:
        """Shut the engine down and free its memory."""
        self._engine.model_executor.shutdown()

    @override
    def _drop(self, sequence: int) -> None:
        if self._pending.pop(sequence, None):
            self._engine.abort_request([str(sequence)])
        self._sequences.pop(sequence, None)
        if self._releases_cache and not self._sequences and not self._is_asleep:
            self._engine.sleep(level=1)  # frees the KV cache for the update
            self._is_asleep = True

    def _add(self, request: GenerationRequest) -> None:
        name = request.sequence
        ids = self._sequences.setdefault(name, [])
        if name in self._pending:
            raise ValueError(f"sequence {name} already waits for a reply; poll until it is there")
        start = len(ids) + len(request.append)
        check_prompt_length(name, start, self.context)
        ids += request.append
        self._pending[name] = request
        params = _sampling_params(request, max_tokens=self.context - start)
        self._engine.add_request(str(name), {"prompt_token_ids": list(ids)}, params)

    def _wake_up(self) -> None:
        if self._is_asleep:
            self._engine.wake_up()
            self._is_asleep = False

    def _finish(self, name: int, output: Any) -> TokenCompletion:
        request = self._pending.pop(name)
        ids = list(output.token_ids)
        self._sequences[name] += ids
        logprobs = [
            by_token[token].logprob for token, by_token in zip(ids, output.logprobs, strict=True)
        ]
        reason = "stop" if output.finish_reason == "stop" else "length"
        return TokenCompletion(request.id, ids, logprobs, reason)


@torch.no_grad()
def merged_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Named weights of the base model with the active adapters merged in."""
    causal = causal_model(module) if isinstance(module, PeftModel) else module
    lora = {name: part for name, part in causal.named_modules() if isinstance(part, LoraLayer)}
    for name, weight in causal.state_dict().items():
        if "lora_" in name:
            continue
        owner = name.removesuffix(".base_layer.weight")
        value = full_tensor(weight)
        if owner in lora and name != owner:
            layer: Any = lora[owner]
            for adapter in layer.active_adapters:
                value = value + layer.get_delta_weight(adapter).to(value.dtype)
        yield name.replace(".base_layer.", "."), value


def _start(model: PolicyModel, config: GRPOConfig) -> Any:
    # vLLM is optional and slow to import, so it is imported here. It runs in process, because the
    # weights of an engine in another process cannot be overwritten.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    vllm: Any = import_module("vllm")

    with TemporaryDirectory() as folder:
        _save(model, Path(folder))
        return vllm.LLMEngine.from_engine_args(
            vllm.EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                dtype=config.model_dtype,
                max_model_len=model.context,
                max_num_seqs=config.sampling.slots,
                max_num_batched_tokens=max(MAX_BATCHED_TOKENS, config.sampling.slots),
                disable_log_stats=True,  # unused, and computed at every token
                gpu_memory_utilization=config.sampling.gpu_share,
                enable_prefix_caching=True,
                enable_sleep_mode=config.sampling.release_cache,
                logprobs_mode="processed_logprobs",
                attention_backend="FLASH_ATTN",
                seed=config.seed,
            )
        )


def _save(model: PolicyModel, folder: Path) -> None:
    """Write a model that vLLM can start from; later weights come with ``sync_weights``."""
    causal = causal_model(model.module) if isinstance(model.module, PeftModel) else model.module
    state = {name: value.contiguous() for name, value in merged_weights(model.module)}
    causal.save_pretrained(folder, state_dict=state)


def _sampling_params(request: GenerationRequest, *, max_tokens: int) -> Any:
    vllm: Any = import_module("vllm")
    return vllm.SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=min(request.max_new_tokens, max_tokens),
        seed=request.seed,
        stop_token_ids=list(request.stop_ids),
        ignore_eos=True,  # the request names its stop tokens
        logprobs=0,
        detokenize=False,
        output_kind=import_module("vllm.sampling_params").RequestOutputKind.FINAL_ONLY,
    )


def _require_version() -> None:
    try:
        installed = version("vllm")
    except PackageNotFoundError:
        raise ConfigError(
            "sampling.engine='vllm' needs the package vllm, which is not installed; install "
            f"{_SUPPORTED} or set sampling.engine='transformers'"
        ) from None
    numbers = tuple(int(part) for part in installed.split(".")[:2])
    if not MIN_VERSION <= numbers < END_VERSION:
        raise ConfigError(
            f"vllm {installed} is installed; sampling.engine='vllm' works with {_SUPPORTED}"
        )


def _require_settings(config: GRPOConfig, ranks: DistributedContext) -> None:
    if ranks.device.type != "cuda":
        raise ConfigError(
            f"sampling.engine='vllm' needs a GPU and the policy is on {ranks.device.type}; "
            "set sampling.engine='transformers', or 'server' for vLLM on another machine"
        )
    if config.sampling.top_p < 1:
        raise ConfigError(
            f"sampling.top_p={config.sampling.top_p} with sampling.engine='vllm' gives log-probs "
            "after top-p filtering, not those of the policy; set top_p=1, or "
            "sampling.engine='transformers'"
        )
