"""Tensors by name, one per parameter that learns: written down, read back, multiplied."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.reference import placed, whole

Tensors = dict[str, Tensor]
FILE = "tensors.safetensors"


def save_tensors(folder: Path, mapping: Mapping[str, Tensor], *, is_main: bool) -> None:
    """Write whole tensors into ``folder``; every rank calls, ``is_main`` writes."""
    kept = {name: whole(given.detach()).to("cpu", copy=True) for name, given in mapping.items()}
    if is_main:
        save_file({name: given.contiguous() for name, given in kept.items()}, folder / FILE)


def load_tensors(folder: Path) -> Tensors:
    """What ``save_tensors`` wrote, whole and on the CPU; nothing if it never did."""
    return load_file(folder / FILE) if (folder / FILE).exists() else {}


def grouped(mapping: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """Tensors named ``group/parameter`` by group, each placed as its parameter in ``like``."""
    groups: dict[str, Tensors] = {}
    for full_name, tensor in mapping.items():
        group, _, name = full_name.partition("/")
        groups.setdefault(group, {})[name] = placed(tensor, like[name])
    return groups


def ungrouped(groups: Mapping[str, Mapping[str, Tensor]]) -> Tensors:
    """The inverse of ``grouped``."""
    return {
        f"{group}/{name}": tensor for group, part in groups.items() for name, tensor in part.items()
    }


def inner(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """The inner product over all parameters and all shards; every rank must ask."""
    products = [whole((given * others[name]).sum()) for name, given in some.items()]
    return float(torch.stack(products).double().sum()) if products else 0.0


def sum_over_ranks(mapping: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Add up in place what each rank has; shards, which FSDP has summed, are left as they are."""
    holders: list[Parameter] = []
    for tensor in mapping.values():
        holder = Parameter(tensor)
        holder.grad = tensor
        holders.append(holder)
    ranks.all_reduce_gradients(holders)
