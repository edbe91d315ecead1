"""The processes of one run and what they tell each other.

A run is one process by default, and then every exchange is the identity. Under ``torchrun`` the
processes meet over two groups: tensors of the update travel over the fast one (nccl on GPUs, gloo
on CPUs), numbers and objects over a gloo group with its own long limit, because a rank that has
finished its episodes may wait long for one whose users talk more.

Objects are pickled by torch's collectives. That stays inside one ``torchrun`` job, between
processes that the same person started with the same code; nothing here listens to anybody else.
"""

import atexit
import os
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

UPDATE_LIMIT = timedelta(minutes=30)
"""Until a collective of the update is given up; all ranks are known to be there when it starts."""
EXCHANGE_LIMIT = timedelta(days=2)
"""Until waiting for another rank's episodes is given up."""

Value = TypeVar("Value")


class Ranks:
    """One process among the processes of a run."""

    def __init__(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
        exchange: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device or default_device()
        self._exchange = exchange

    @classmethod
    def join(cls, *, device: torch.device | None = None) -> Self:
        """Meet the other processes as ``torchrun``'s variables say; without them, be alone."""
        if "WORLD_SIZE" not in os.environ:
            return cls(device=device)
        rank, world_size = _number("RANK"), _number("WORLD_SIZE")
        chosen = device or default_device(_number("LOCAL_RANK"))
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        dist.init_process_group(
            backend="nccl" if chosen.type == "cuda" else "gloo",
            store=_attempt_store(rank, world_size),
            rank=rank,
            world_size=world_size,
            timeout=UPDATE_LIMIT,
            device_id=chosen if chosen.type == "cuda" else None,
        )
        exchange = dist.new_group(backend="gloo", timeout=EXCHANGE_LIMIT)
        assert isinstance(exchange, dist.ProcessGroup)  # every rank is a member
        ranks = cls(rank=rank, world_size=world_size, device=chosen, exchange=exchange)
        # A thread of the group that still lets go of a tensor while Python shuts down aborts.
        atexit.register(ranks.close)
        return ranks

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all; a rank that stays away is named in the error."""
        if self._exchange is not None:
            dist.monitored_barrier(self._exchange, timeout=EXCHANGE_LIMIT, wait_all_ranks=True)

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Each number summed over all ranks, which must give the same names."""
        return self._reduce(numbers, dist.ReduceOp.SUM)

    def mean(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Each number averaged over all ranks, which must give the same names."""
        return {name: total / self.world_size for name, total in self.sum(numbers).items()}

    def maximum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The largest of each number over all ranks, which must give the same names."""
        return self._reduce(numbers, dist.ReduceOp.MAX)

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value, in the order of ranks, on every rank."""
        if self._exchange is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._exchange)
        return values

    def broadcast(self, value: Value) -> Value:
        """Rank 0's value, on every rank."""
        if self._exchange is None:
            return value
        values: list[Any] = [value if self.is_main else None]
        dist.broadcast_object_list(values, src=0, group=self._exchange)
        return values[0]

    def scatter(self, values: Sequence[Value]) -> Value:
        """Of rank 0's ``values`` the one for this rank; what others pass is not looked at."""
        if self._exchange is None:
            (own,) = values
            return own
        received: list[Any] = [None]
        given = list(values) if self.is_main else None
        dist.scatter_object_list(received, given, src=0, group=self._exchange)
        return received[0]

    def all_reduce_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Sum the gradients over all ranks; a parameter without one gets zeros.

        The loss of a batch is a sum over its tokens, so ranks and micro-batches just add up:
        one flat sum after the last micro-batch is all there is to exchange. DDP would average
        instead, reduce in each backward pass unless told not to, and insist that all ranks make
        the same number of passes. Sharded parameters are left out: FSDP2 has summed theirs.
        """
        flats: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if not isinstance(parameter.grad, DTensor):
                flats.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        if self.world_size > 1:
            for gradients in flats.values():
                _sum_flat(gradients)

    def close(self) -> None:
        """Leave the group; a process that goes without leaves the others waiting or warning."""
        if self._exchange is not None:
            self._exchange = None
            dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reduce(self, numbers: Mapping[str, float], operation: Any) -> dict[str, float]:
        if self._exchange is None or not numbers:
            return dict(numbers)
        names = sorted(numbers)
        values = torch.tensor([numbers[name] for name in names], dtype=torch.float64)
        dist.all_reduce(values, op=operation, group=self._exchange)
        return dict(zip(names, cast(list[float], values.tolist()), strict=True))


def default_device(local_rank: int = 0) -> torch.device:
    """The GPU of a local rank, or the CPU where there is none."""
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    if not value.isdigit():
        raise ConfigError(
            f"{name} is {value!r} but must be a number where WORLD_SIZE is set; "
            "start with torchrun, or unset WORLD_SIZE to run as one process"
        )
    return int(value)


def _attempt_store(rank: int, world_size: int) -> Store:
    # torchrun's agent keeps one store over all restarts. Without a prefix of its own an attempt
    # reads the addresses of the dead one and waits for them.
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=UPDATE_LIMIT))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"grpo_cl/attempt_{attempt}", store)


def _sum_flat(gradients: Sequence[Tensor]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    start = 0
    for gradient in gradients:
        end = start + gradient.numel()
        gradient.copy_(flat[start:end].view_as(gradient))
        start = end
