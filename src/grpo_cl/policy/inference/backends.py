"""The inference backend of a run: in process on the trainer's weights, or on synced copies."""

from collections.abc import Iterable
from typing import Protocol, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grpo_cl.config import GRPOConfig, LoraConfig
from grpo_cl.policy.inference.policy_agent import PolicyActor, TabularActor
from grpo_cl.policy.inference.sampler import GenerationRequest, Sampler, TokenCompletion
from grpo_cl.policy.inference.server_sampler import connect_servers
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.policy.inference.vllm_sampler import VLLMSampler
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.tabular import TabularChat


class RemoteWeightsSampler(Sampler, Protocol):
    """A sampler with its own copy of the policy's weights."""

    def sync_weights(self, model: PolicyModel) -> None:
        """Copy the current weights; a collective call of all ranks, between episodes.

        The weights may be sharded. State computed with older weights is dropped.
        """
        ...

    def close(self) -> None:
        """Free connections, threads and memory."""
        ...


def transformers_sampler_for(model: PolicyModel, config: GRPOConfig) -> TransformersSampler:
    """An in-process sampler on the model's own weights."""
    cuda_graphs = config.sampling.cuda_graphs
    return TransformersSampler(
        model.module,
        context=model.context,
        slots=config.sampling.slots,
        device=model.device,
        graphs=model.device.type == "cuda" if cuda_graphs is None else cuda_graphs,
    )


def make_remote_sampler(
    model: PolicyModel, config: GRPOConfig, ranks: DistributedContext
) -> RemoteWeightsSampler:
    """The sampler that ``sampling.engine`` names, before its first weight sync."""
    if config.sampling.engine == "vllm":
        return VLLMSampler(model, config, ranks)
    assert config.sampling.engine == "server"
    return connect_servers(model, config, ranks)


def load_initial_policy(config: GRPOConfig, device: torch.device) -> PolicyModel:
    """A frozen copy of the model the run starts from, without adapter and reference model."""
    plain = config.model_copy(update={"kl_coef": 0.0, "lora": LoraConfig()})
    return PolicyModel.load(plain, device=device)


class SamplerClient:
    """One actor's view of a shared sampler: it receives only its own completions."""

    def __init__(self, sampler: Sampler, owners: dict[int, "SamplerClient"]) -> None:
        self.context = sampler.context
        self._sampler = sampler
        self._owners = owners
        self._finished: list[TokenCompletion] = []

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Queue requests; a sequence has at most one unfinished request."""
        for request in requests:
            self._sampler.submit([request])
            self._owners[request.id] = self

    def poll(self) -> list[TokenCompletion]:
        """Poll the shared sampler and return this client's completions."""
        for completion in self._sampler.poll():
            owner = self._owners.pop(completion.id, None)
            if owner is not None:
                owner._finished.append(completion)
        finished, self._finished = self._finished, []
        return finished

    def release(self, sequence: int) -> None:
        """Drop a sequence and its unfinished request."""
        self._sampler.release(sequence)


class InferenceBackend:
    """The inference backend of a run."""

    def __init__(self, model: PolicyModel, config: GRPOConfig, ranks: DistributedContext) -> None:
        self._model = model
        self._ranks = ranks
        is_local = config.sampling.engine == "transformers"
        self._local = transformers_sampler_for(model, config) if is_local else None
        self._remote = None if is_local else make_remote_sampler(model, config, ranks)
        self._owners: dict[int, SamplerClient] = {}
        self._synced: tuple[object, ...] | None = None

    def sampler(self) -> Sampler:
        """A client of the run's sampler; actors may use it at the same time."""
        return SamplerClient(self._remote or cast(Sampler, self._local), self._owners)

    def sync_weights(self) -> None:
        """Make the sampler use the current weights and drop its KV state; a collective call.

        A remote copy whose weights are current is left alone.
        """
        if self._local is not None:
            # Keys and values of older weights must not be reused as a prefix.
            self._local.release_all()
        if self._remote is None:
            return
        current = weight_fingerprint(self._model.module)
        if any(self._ranks.all_gather(current != self._synced)):
            self._remote.sync_weights(self._model)
            self._synced = current

    def close(self) -> None:
        """Free what a remote sampler holds."""
        if self._remote is not None:
            self._remote.close()


def weight_fingerprint(module: nn.Module) -> tuple[object, ...]:
    """A value that changes with any weight of this rank; hashed on the device of the weights."""
    active = tuple(module.active_adapters) if isinstance(module, PeftModel) else ()
    hashes = [torch.hash_tensor(_local_shard(weight.detach())) for weight in module.parameters()]
    # One transfer for all; as int64, because uint64 tensors cannot be stacked on every device.
    signed = torch.stack([value.view(torch.int64) for value in hashes])
    return (*active, *signed.tolist())


def _local_shard(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


def make_actor(
    model: PolicyModel, sampler: Sampler, config: GRPOConfig, *, temperature: float
) -> PolicyActor | TabularActor:
    """An actor with the chat format of ``model`` that samples from ``sampler``."""
    actor = PolicyActor(
        model.chat,
        sampler,
        temperature=temperature,
        max_new_tokens=config.max_new_tokens,
        top_p=config.sampling.top_p,
    )
    return TabularActor(actor) if isinstance(model.chat, TabularChat) else actor
