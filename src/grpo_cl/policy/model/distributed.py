"""The process groups of a run and its collectives.

A run is one process by default; collectives are then the identity. Under ``torchrun`` there are two
process groups: tensors of the update use the default group (nccl on GPUs, gloo on CPUs), numbers
and objects use a gloo group with a long timeout, because a rank that has finished its episodes may
wait long for a rank with longer conversations.

Objects are pickled by torch's collectives. This is safe inside one ``torchrun`` job, whose
processes run the same code of one user; nothing here listens to other processes.
"""

import atexit
import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from grpo_cl.errors import ConfigError

UPDATE_TIMEOUT = timedelta(minutes=30)
"""Timeout of collectives of the update; all ranks have arrived when they start."""
ROLLOUT_TIMEOUT = timedelta(days=2)
"""Timeout of waiting for the episodes of another rank."""

PR_SET_PDEATHSIG = 1
"""The option of Linux's ``prctl`` that sets the signal a process gets when its parent ends."""

Value = TypeVar("Value")


class DistributedContext:
    """Rank, world size, device and collectives of this process."""

    def __init__(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
        object_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device or default_device()
        self._object_group = object_group

    @classmethod
    def initialize(cls, *, device: torch.device | None = None) -> Self:
        """Join the process groups from ``torchrun``'s variables; without them, one process."""
        if "WORLD_SIZE" not in os.environ:
            return cls(device=device)
        _end_with_launcher()
        rank, world_size = _env_int("RANK"), _env_int("WORLD_SIZE")
        chosen = device or default_device(_env_int("LOCAL_RANK"))
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        dist.init_process_group(
            backend="nccl" if chosen.type == "cuda" else "gloo",
            store=_store_of_restart(rank, world_size),
            rank=rank,
            world_size=world_size,
            timeout=UPDATE_TIMEOUT,
            device_id=chosen if chosen.type == "cuda" else None,
        )
        group = dist.new_group(backend="gloo", timeout=ROLLOUT_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)  # every rank is a member
        context = cls(rank=rank, world_size=world_size, device=chosen, object_group=group)
        # A thread of the group that frees a tensor during interpreter shutdown aborts the process.
        atexit.register(context.close)
        return context

    def for_another_thread(self) -> Self:
        """The same ranks with an object group of their own; a collective call.

        Collectives of one group must begin in the same order on every rank, so that two threads
        cannot share it.
        """
        if self._object_group is None:
            return self
        group = dist.new_group(backend="gloo", timeout=ROLLOUT_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)
        return type(self)(
            rank=self.rank, world_size=self.world_size, device=self.device, object_group=group
        )

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Each number summed over all ranks, which must pass the same names."""
        return self._reduce(numbers, dist.ReduceOp.SUM)

    def mean(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Each number averaged over all ranks, which must pass the same names."""
        return {name: total / self.world_size for name, total in self.sum(numbers).items()}

    def maximum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The maximum of each number over all ranks, which must pass the same names."""
        return self._reduce(numbers, dist.ReduceOp.MAX)

    def all_gather(self, value: Value) -> list[Value]:
        """The values of all ranks in rank order, on every rank."""
        if self._object_group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._object_group)
        return values

    def broadcast(self, value: Value) -> Value:
        """The value of rank 0, on every rank."""
        if self._object_group is None:
            return value
        values: list[Any] = [value if self.is_main else None]
        dist.broadcast_object_list(values, src=0, group=self._object_group)
        return values[0]

    def scatter(self, values: Sequence[Value]) -> Value:
        """The element of rank 0's ``values`` for this rank; those of other ranks are ignored."""
        if self._object_group is None:
            (own,) = values
            return own
        received: list[Any] = [None]
        inputs = list(values) if self.is_main else None
        dist.scatter_object_list(received, inputs, src=0, group=self._object_group)
        return received[0]

    def all_reduce_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Sum the gradients over all ranks; a parameter without a gradient gets zeros.

        The loss of a batch is a sum over its tokens, so gradients are summed over micro-batches
        and ranks: one flat all-reduce after the last micro-batch is enough. DDP would average
        instead, reduce in every backward pass by default, and require the same number of backward
        passes on all ranks. Sharded parameters are left out: FSDP2 has summed their gradients.
        """
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if not isinstance(parameter.grad, DTensor):
                by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        if self.world_size > 1:
            for gradients in by_dtype.values():
                _all_reduce_flat(gradients)

    def close(self) -> None:
        """Destroy the process groups; without it the other ranks hang or warn at exit."""
        if self._object_group is not None:
            self._object_group = None
            dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reduce(self, numbers: Mapping[str, float], operation: Any) -> dict[str, float]:
        if self._object_group is None or not numbers:
            return dict(numbers)
        names = sorted(numbers)
        values = torch.tensor([numbers[name] for name in names], dtype=torch.float64)
        dist.all_reduce(values, op=operation, group=self._object_group)
        return dict(zip(names, cast(list[float], values.tolist()), strict=True))


def default_device(local_rank: int = 0) -> torch.device:
    """The GPU of a local rank, or the CPU."""
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def _env_int(name: str) -> int:
    value = os.environ.get(name, "")
    if not value.isdigit():
        raise ConfigError(
            f"{name} is {value!r} but must be a number where WORLD_SIZE is set; "
            "start with torchrun, or unset WORLD_SIZE to run as one process"
        )
    return int(value)


def _store_of_restart(rank: int, world_size: int) -> Store:
    # torchrun's agent keeps one store over all restarts. Without its own prefix a restart reads
    # the addresses of the previous attempt and waits for them.
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=UPDATE_TIMEOUT))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"grpo_cl/attempt_{attempt}", store)


def _all_reduce_flat(gradients: Sequence[Tensor]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    start = 0
    for gradient in gradients:
        end = start + gradient.numel()
        gradient.copy_(flat[start:end].view_as(gradient))
        start = end


def _end_with_launcher() -> None:
    """Let this rank be terminated when ``torchrun`` ends, even by SIGKILL.

    Ranks without their launcher would finish the run, beside the ranks of a restarted one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
