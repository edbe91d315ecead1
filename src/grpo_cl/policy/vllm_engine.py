"""vLLM in this process: a copy of the policy's weights that is overwritten after each update."""

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
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.reference import whole
from grpo_cl.policy.sampler import Completion, Releasing, Request, require_room
from grpo_cl.policy.scoring import causal_model

OLDEST, NEWEST = (0, 20), (0, 27)
"""The versions it was written for: from the first up to, not including, the second."""
READ_AT_ONCE = 16384
"""Tokens that one step reads: an engine that is asked for by its own name would read 2048, and a
batch of prompts would take eight times as many steps."""


class VLLMSampler(Releasing):
    """Continuous batching by vLLM.

    A sequence is sent whole with every request; vLLM's prefix cache finds what it has read before,
    of this sequence or of another that begins alike.
    """

    def __init__(self, model: PolicyModel, config: GRPOConfig, ranks: Ranks) -> None:
        super().__init__()
        _require_version()
        _require_settings(config, ranks)
        self.context = model.context
        self._releases_cache = config.sampling.release_cache
        self._is_asleep = False
        self._sequences: dict[int, list[int]] = {}
        self._waiting: dict[int, Request] = {}
        self._engine = _start(model, config)

    def submit(self, requests: Iterable[Request]) -> None:
        """Take requests; a sequence has one at a time."""
        self._wake()
        with self._busy():
            for request in requests:
                self._take(request)

    def poll(self) -> list[Completion]:
        """Let vLLM take steps until a reply is finished."""
        finished: list[Completion] = []
        with self._busy():
            while not finished and self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    name = int(output.request_id)
                    if output.finished and name in self._waiting:
                        finished.append(self._finish(name, output.outputs[0]))
        return finished

    def refresh(self, model: PolicyModel) -> None:
        """Overwrite the copy; what was cached of older weights is dropped."""
        self._wake()
        worker = self._engine.model_executor.driver_worker.worker
        worker.model_runner.model.load_weights(merged_weights(model.module))
        if not self._engine.reset_prefix_cache():
            raise RuntimeError(
                f"vLLM still holds the cache of {len(self._waiting)} replies and would go on with "
                "keys and values of older weights; bring new weights between episodes"
            )

    def close(self) -> None:
        """Let go of the engine's memory."""
        self._engine.model_executor.shutdown()

    @override
    def _forget(self, sequence: int) -> None:
        if self._waiting.pop(sequence, None):
            self._engine.abort_request([str(sequence)])
        self._sequences.pop(sequence, None)
        if self._releases_cache and not self._sequences and not self._is_asleep:
            self._engine.sleep(level=1)  # the memory of the cache is the update's until then
            self._is_asleep = True

    def _take(self, request: Request) -> None:
        name = request.sequence
        ids = self._sequences.setdefault(name, [])
        if name in self._waiting:
            raise ValueError(f"sequence {name} already waits for a reply; poll until it is there")
        start = len(ids) + len(request.append)
        require_room(name, start, self.context)
        ids += request.append
        self._waiting[name] = request
        parameters = _parameters(request, self.context - start)
        self._engine.add_request(str(name), {"prompt_token_ids": list(ids)}, parameters)

    def _wake(self) -> None:
        if self._is_asleep:
            self._engine.wake_up()
            self._is_asleep = False

    def _finish(self, name: int, reply: Any) -> Completion:
        request = self._waiting.pop(name)
        ids = list(reply.token_ids)
        self._sequences[name] += ids
        logprobs = [
            options[token].logprob for token, options in zip(ids, reply.logprobs, strict=True)
        ]
        reason = "stop" if reply.finish_reason == "stop" else "length"
        return Completion(request.id, ids, logprobs, reason)


@torch.no_grad()
def merged_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights as a checkpoint names them, with what active adapters add."""
    causal = causal_model(module) if isinstance(module, PeftModel) else module
    adapted = {name: part for name, part in causal.named_modules() if isinstance(part, LoraLayer)}
    for name, weight in causal.state_dict().items():
        if "lora_" in name:
            continue
        owner = name.removesuffix(".base_layer.weight")
        value = whole(weight)
        if owner in adapted and name != owner:
            layer: Any = adapted[owner]
            for adapter in layer.active_adapters:
                value = value + layer.get_delta_weight(adapter).to(value.dtype)
        yield name.replace(".base_layer.", "."), value


def _start(model: PolicyModel, config: GRPOConfig) -> Any:
    """Optional and slow to import, vLLM is looked for only where it is used."""
    # In a process of its own the engine's weights would be out of reach.
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
                max_num_batched_tokens=max(READ_AT_ONCE, config.sampling.slots),
                disable_log_stats=True,  # nobody reads them, and they are made at every token
                gpu_memory_utilization=config.sampling.gpu_share,
                enable_prefix_caching=True,
                enable_sleep_mode=config.sampling.release_cache,
                logprobs_mode="processed_logprobs",
                attention_backend="FLASH_ATTN",
                seed=config.seed,
            )
        )


def _save(model: PolicyModel, folder: Path) -> None:
    """Whatever vLLM needs to start; the weights it then serves come with ``refresh``."""
    causal = causal_model(model.module) if isinstance(model.module, PeftModel) else model.module
    state = {name: value.contiguous() for name, value in merged_weights(model.module)}
    causal.save_pretrained(folder, state_dict=state)


def _parameters(request: Request, room: int) -> Any:
    vllm: Any = import_module("vllm")
    return vllm.SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=min(request.max_new_tokens, room),
        seed=request.seed,
        stop_token_ids=list(request.stop_ids),
        ignore_eos=True,  # what ends a reply is for the request to say
        logprobs=0,
        detokenize=False,
        output_kind=import_module("vllm.sampling_params").RequestOutputKind.FINAL_ONLY,
    )


def _require_version() -> None:
    try:
        found = version("vllm")
    except PackageNotFoundError:
        raise ConfigError(
            "sampling.engine='vllm' needs the package vllm, which is not installed; install "
            f"vllm>={_dotted(OLDEST)},<{_dotted(NEWEST)} or set sampling.engine='transformers'"
        ) from None
    numbers = tuple(int(part) for part in found.split(".")[:2])
    if not OLDEST <= numbers < NEWEST:
        raise ConfigError(
            f"vllm {found} is installed; sampling.engine='vllm' works with "
            f"vllm>={_dotted(OLDEST)},<{_dotted(NEWEST)}"
        )


def _require_settings(config: GRPOConfig, ranks: Ranks) -> None:
    if ranks.device.type != "cuda":
        raise ConfigError(
            f"sampling.engine='vllm' works on a GPU and the policy is on {ranks.device.type}; "
            "set sampling.engine='transformers', or 'server' for a vLLM elsewhere"
        )
    if config.sampling.top_p < 1:
        raise ConfigError(
            f"sampling.top_p={config.sampling.top_p} with sampling.engine='vllm' gives log-probs "
            "of what top_p left, not of the policy; set top_p=1, or sampling.engine='transformers'"
        )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
