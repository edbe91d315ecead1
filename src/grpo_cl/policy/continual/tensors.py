"""Dictionaries with one tensor per trainable parameter: saved, loaded, multiplied, summed."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.weights import WeightSnapshot, full_tensor, shard_like

Tensors = dict[str, Tensor]
FILE = "tensors.safetensors"


def save_tensors(folder: Path, tensors: Mapping[str, Tensor], *, is_main: bool) -> None:
    """Write unsharded tensors into ``folder``; every rank calls, ``is_main`` writes."""
    copies = {name: full_tensor(t.detach()).to("cpu", copy=True) for name, t in tensors.items()}
    if is_main:
        save_file({name: copy.contiguous() for name, copy in copies.items()}, folder / FILE)


def load_tensors(folder: Path) -> Tensors:
    """The tensors of ``save_tensors``, unsharded and on the CPU; empty without a file."""
    return load_file(folder / FILE) if (folder / FILE).exists() else {}


def save_snapshot(folder: Path, snapshot: WeightSnapshot | None, *, is_main: bool) -> None:
    """Write a snapshot into ``folder``; every rank calls, ``is_main`` writes."""
    save_tensors(folder, snapshot.tensors if snapshot else {}, is_main=is_main)


def load_snapshot(folder: Path) -> WeightSnapshot | None:
    """The snapshot of ``save_snapshot``, or None if there was none."""
    tensors = load_tensors(folder)
    return WeightSnapshot(tensors) if tensors else None


def group_tensors(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """Tensors named ``group/parameter`` by group, sharded as the parameter in ``like`` is."""
    groups: dict[str, Tensors] = {}
    for full_name, tensor in tensors.items():
        group, _, name = full_name.partition("/")
        groups.setdefault(group, {})[name] = shard_like(tensor, like[name])
    return groups


def flatten_groups(groups: Mapping[str, Mapping[str, Tensor]]) -> Tensors:
    """The inverse of ``group_tensors``."""
    return {
        f"{group}/{name}": tensor
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
    }


def inner_product(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """The inner product over all parameters and shards; a collective if they are sharded."""
    products = [full_tensor((tensor * right[name]).sum()) for name, tensor in left.items()]
    return float(torch.stack(products).double().sum()) if products else 0.0


def sum_over_ranks(tensors: Mapping[str, Tensor], ranks: DistributedContext) -> None:
    """All-reduce in place; shards, which FSDP has summed already, are left as they are."""
    holders: list[Parameter] = []
    for tensor in tensors.values():
        holder = Parameter(tensor)
        holder.grad = tensor
        holders.append(holder)
    ranks.all_reduce_gradients(holders)
