"""Who writes a run's replies: the trainer's own weights, or an engine that keeps a copy of them."""

from collections.abc import Iterable
from typing import Protocol, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.remote import open_servers
from grpo_cl.policy.sampler import Completion, Request, Sampler
from grpo_cl.policy.vllm_engine import VLLMSampler


class CopySampler(Sampler, Protocol):
    """A sampler that writes with a copy of the policy's weights."""

    def refresh(self, model: PolicyModel) -> None:
        """Take over the weights of now; all ranks call together, between episodes.

        They may be sharded: ``reference.whole`` gathers them. What the sampler kept of
        sequences read with older weights is worth nothing afterwards.
        """
        ...

    def close(self) -> None:
        """Let go of connections, threads and memory."""
        ...


def own_sampler(model: PolicyModel, config: GRPOConfig) -> TransformersSampler:
    """A sampler over a model's own weights, which needs no copy of them."""
    chosen = config.sampling.cuda_graphs
    return TransformersSampler(
        model.module,
        context=model.context,
        slots=config.sampling.slots,
        device=model.device,
        graphs=model.device.type == "cuda" if chosen is None else chosen,
    )


def make_sampler(model: PolicyModel, config: GRPOConfig, ranks: Ranks) -> CopySampler:
    """The engine that ``sampling.engine`` names, with no weights of the run yet."""
    if config.sampling.engine == "vllm":
        return VLLMSampler(model, config, ranks)
    assert config.sampling.engine == "server"
    return open_servers(model, config, ranks)


class Share:
    """One actor's part of a sampler that several use at once: each gets its own replies."""

    def __init__(self, sampler: Sampler, owners: dict[int, "Share"]) -> None:
        self.context = sampler.context
        self._sampler = sampler
        self._owners = owners
        self._arrived: list[Completion] = []

    def submit(self, requests: Iterable[Request]) -> None:
        """Take requests; a sequence has one at a time."""
        for request in requests:
            self._sampler.submit([request])
            self._owners[request.id] = self

    def poll(self) -> list[Completion]:
        """The replies to this actor's requests; those of others are kept for them."""
        for completion in self._sampler.poll():
            owner = self._owners.pop(completion.id, None)
            if owner is not None:
                owner._arrived.append(completion)
        arrived, self._arrived = self._arrived, []
        return arrived

    def release(self, sequence: int) -> None:
        """Forget a sequence and whatever it still waits for."""
        self._sampler.release(sequence)


class Engine:
    """The samplers of a run, which always write with the policy's weights of now."""

    def __init__(self, model: PolicyModel, config: GRPOConfig, ranks: Ranks) -> None:
        self._model = model
        self._config = config
        self._ranks = ranks
        is_own = config.sampling.engine == "transformers"
        self._own = own_sampler(model, config) if is_own else None
        self._copy = None if is_own else make_sampler(model, config, ranks)
        self._owners: dict[int, Share] = {}
        self._stamp: tuple[object, ...] | None = None

    def sampler(self) -> Sampler:
        """A sampler for the next episodes."""
        # Shared: the policy may play agents and users at once, each with a desk of its own.
        return Share(self._copy or cast(Sampler, self._own), self._owners)

    def refresh(self) -> None:
        """Bring the weights to an engine that has others; all ranks call together."""
        if self._own is not None:
            # Keys and values of older weights must not serve as anyone's prefix.
            self._own.release_all()
        if self._copy is None:
            return
        stamp = weight_stamp(self._model.module)
        if any(self._ranks.gather(stamp != self._stamp)):
            self._copy.refresh(self._model)
            self._stamp = stamp

    def close(self) -> None:
        """Let go of what the engine holds."""
        if self._copy is not None:
            self._copy.close()


def weight_stamp(module: nn.Module) -> tuple[object, ...]:
    """Equal as long as no weight of this rank changes; computed where the weights are."""
    active = tuple(module.active_adapters) if isinstance(module, PeftModel) else ()
    hashes = [torch.hash_tensor(_local(weight.detach())) for weight in module.parameters()]
    # One transfer for all; as signed numbers, for the unsigned ones cannot be stacked everywhere.
    signed = torch.stack([one.view(torch.int64) for one in hashes])
    return (*active, *signed.tolist())


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
